//! Random sequences of operations, failures and crashes: once all failures are repaired, the mounts
//! converge to the desired state, and nothing else is left on the node or at the driver. Calls to
//! the driver are always in order, and no data is lost.

mod kinds;
mod node;
mod state;

use std::cell::RefCell;

use longshore_csi::Code;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use node::Node;

const PODS: [&str; 3] = ["u0", "u1", "u2"];

/// A volume of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A shared claim.
    Shared,
    /// Another claim with the same volume handle.
    Twin,
    /// A read-only claim.
    ReadOnly,
    /// A generic ephemeral volume.
    Generic,
    /// A CSI ephemeral volume.
    Inline,
    /// A shared block volume.
    Raw,
    /// A local volume.
    Local,
    /// A host path.
    HostPath,
}

/// All kinds with their probabilities.
const KINDS: [(Kind, f64); 8] = [
    (Kind::Shared, 0.6),
    (Kind::Twin, 0.2),
    (Kind::ReadOnly, 0.2),
    (Kind::Generic, 0.2),
    (Kind::Inline, 0.3),
    (Kind::Raw, 0.3),
    (Kind::Local, 0.2),
    (Kind::HostPath, 0.1),
];

#[derive(Clone, Debug)]
struct Case {
    /// The volumes of each pod.
    pods: Vec<Vec<Kind>>,
    /// Whether volumes need an attachment.
    attach_required: bool,
    /// Whether volumes are republished periodically.
    requires_republish: bool,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Runs it to its end, unless the driver hangs.
    Do(Work),
    /// Cancels it after that many milliseconds.
    Abandon(Work, u64),
    /// Kills the daemon that many milliseconds after its start, and restarts it.
    Kill(Work, u64),
    /// Kills the daemon while it is idle, and removes that pod before the restart.
    Vanish(usize),
    Break(Failure),
    /// Repairs all failures.
    Mend,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Starts the pod.
    Start(usize),
    /// The pod has terminated; its directory is kept.
    Unmount(usize),
    Remove(usize),
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The next call of that method fails, or each one.
    Call(&'static str, CallFault, bool),
    /// The driver unregisters.
    Withdrawn,
    /// The driver is killed.
    Dead,
    /// Claims and volumes are deleted.
    Deleted,
    /// Attachments fail.
    Detached,
    /// Files in the volumes of that pod are open.
    Busy(usize),
    /// Files in staging directories are open.
    BusyStaged,
    /// The directory of the local volume is missing.
    Missing,
}

/// The fault of a call.
#[derive(Clone, Copy, Debug)]
enum CallFault {
    /// It fails without effect.
    Before(Code),
    /// It succeeds, but the response is lost.
    After(Code),
    Hang,
    HangReply,
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = KINDS.map(|(kind, likely)| {
        prop::bool::weighted(likely).prop_map(move |wanted| wanted.then_some(kind))
    });
    let pod = kinds.prop_map(|kinds| kinds.into_iter().flatten().collect());
    let pods = prop::collection::vec(pod, PODS.len());
    let actions = prop::collection::vec(action(), 1..14);
    (pods, prop::bool::weighted(0.3), prop::bool::weighted(0.2), actions).prop_map(
        |(pods, attach_required, requires_republish, actions)| Case {
            pods,
            attach_required,
            requires_republish,
            actions,
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => work().prop_map(Action::Do),
        2 => (work(), 0u64..30).prop_map(|(work, after)| Action::Abandon(work, after)),
        2 => (work(), 0u64..60).prop_map(|(work, after)| Action::Kill(work, after)),
        1 => (0..PODS.len()).prop_map(Action::Vanish),
        4 => failure().prop_map(Action::Break),
        2 => Just(Action::Mend),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    let pod = 0..PODS.len();
    prop_oneof![
        4 => pod.clone().prop_map(Work::Start),
        1 => pod.clone().prop_map(Work::Unmount),
        2 => pod.prop_map(Work::Remove),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    let uncertain = [Code::DeadlineExceeded, Code::Unavailable, Code::Aborted];
    let before = [Code::Unavailable, Code::Internal, Code::FailedPrecondition, Code::Aborted];
    let fault = prop_oneof![
        4 => select(before.to_vec()).prop_map(CallFault::Before),
        2 => select(uncertain.to_vec()).prop_map(CallFault::After),
        1 => Just(CallFault::Hang),
        1 => Just(CallFault::HangReply),
    ];
    let methods = [
        "NodeGetCapabilities",
        "NodeStageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
    ];
    let call = (select(methods.to_vec()), fault, any::<bool>());
    prop_oneof![
        8 => call.prop_map(|(method, fault, once)| Failure::Call(method, fault, once)),
        1 => Just(Failure::Withdrawn),
        1 => Just(Failure::Dead),
        1 => Just(Failure::Deleted),
        1 => Just(Failure::Detached),
        1 => (0..PODS.len()).prop_map(Failure::Busy),
        1 => Just(Failure::BusyStaged),
        1 => Just(Failure::Missing),
    ]
}

fn volume_sequences_converge(stages: bool) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // One node is reused for all successful cases.
    let kept = RefCell::new(None);
    let cases_in_all = Config::default().cases / 8;
    let config = Config { cases: cases_in_all, max_shrink_iters: 128, ..Config::default() };
    let outcome = TestRunner::new(config).run(&cases(), |case| {
        let mut node = match kept.take() {
            Some(node) => node,
            None => runtime.block_on(Node::start(stages)),
        };
        runtime.block_on(node.run(&case));
        kept.replace(Some(node));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn csi_sequences_converge_with_staging_as_root() {
    volume_sequences_converge(true);
}

#[test]
fn csi_sequences_converge_without_staging_as_root() {
    volume_sequences_converge(false);
}
