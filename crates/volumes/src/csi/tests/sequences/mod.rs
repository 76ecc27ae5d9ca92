//! Whatever was wanted of a driver, whatever failed, and whenever the daemon was killed meanwhile:
//! once nothing is in the way, what is mounted is what is wanted, and nothing else is left, neither
//! on the node nor at the driver. On the way there the driver is asked for everything in order, and
//! no data is lost.

mod kinds;
mod node;
mod picture;

use std::cell::RefCell;

use longshore_csi::Code;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use node::Node;

const PODS: [&str; 3] = ["u0", "u1", "u2"];

/// A volume that a pod may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By a claim that pods share.
    Shared,
    /// By another claim, that leads to the same volume of the driver.
    Twin,
    /// By a claim, to be read only.
    ReadOnly,
    /// By a claim that is the pod's own.
    Generic,
    /// One that lives as long as the pod.
    Inline,
    /// A device that pods share, by a claim.
    Raw,
    /// A directory of the node, by a claim for a local volume.
    Local,
    /// A directory of the node, by a claim for its path.
    HostPath,
}

/// With how likely a pod asks for it.
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
    /// What each pod asks for.
    pods: Vec<Vec<Kind>>,
    /// Whether volumes are attached before they are used.
    attaches: bool,
    /// Whether volumes are published anew from time to time.
    republishes: bool,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A worker does that, and waits for it unless the driver hangs.
    Do(Work),
    /// It gives up waiting after so many milliseconds.
    Abandon(Work, u64),
    /// The daemon is killed so many milliseconds after that was begun, and another one started.
    Kill(Work, u64),
    /// The same while nobody waits for anything, and that pod is gone before the other one starts.
    Vanish(usize),
    Break(Trouble),
    /// Nothing is in the way any more.
    Mend,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The pod is wanted from here on.
    Start(usize),
    /// The pod has ended, but its directory is kept.
    Unmount(usize),
    Remove(usize),
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The next call of that method goes wrong, or each one.
    Call(&'static str, Wrong, bool),
    /// The driver takes its registration back.
    Withdrawn,
    /// The driver has died.
    Dead,
    /// Claims and volumes are deleted.
    Deleted,
    /// Volumes cannot be attached.
    Detached,
    /// Somebody works in the volumes of that pod.
    Busy(usize),
    /// Somebody works where volumes are staged.
    BusyStaged,
    /// The directory of the local volume is away.
    Missing,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// It fails before anything is done.
    Before(Code),
    /// It is done, and nobody is told.
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
        |(pods, attaches, republishes, actions)| Case { pods, attaches, republishes, actions },
    )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => work().prop_map(Action::Do),
        2 => (work(), 0u64..30).prop_map(|(work, after)| Action::Abandon(work, after)),
        2 => (work(), 0u64..60).prop_map(|(work, after)| Action::Kill(work, after)),
        1 => (0..PODS.len()).prop_map(Action::Vanish),
        4 => trouble().prop_map(Action::Break),
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

fn trouble() -> impl Strategy<Value = Trouble> {
    let uncertain = [Code::DeadlineExceeded, Code::Unavailable, Code::Aborted];
    let before = [Code::Unavailable, Code::Internal, Code::FailedPrecondition, Code::Aborted];
    let wrong = prop_oneof![
        4 => select(before.to_vec()).prop_map(Wrong::Before),
        2 => select(uncertain.to_vec()).prop_map(Wrong::After),
        1 => Just(Wrong::Hang),
        1 => Just(Wrong::HangReply),
    ];
    let methods = [
        "NodeGetCapabilities",
        "NodeStageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
    ];
    let call = (select(methods.to_vec()), wrong, any::<bool>());
    prop_oneof![
        8 => call.prop_map(|(method, wrong, once)| Trouble::Call(method, wrong, once)),
        1 => Just(Trouble::Withdrawn),
        1 => Just(Trouble::Dead),
        1 => Just(Trouble::Deleted),
        1 => Just(Trouble::Detached),
        1 => (0..PODS.len()).prop_map(Trouble::Busy),
        1 => Just(Trouble::BusyStaged),
        1 => Just(Trouble::Missing),
    ]
}

fn any_sequence_ends_as_it_is_wanted(stages: bool) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // One node does for all that goes well; after a failure the next case has another one.
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
fn any_sequence_with_a_driver_that_stages_ends_as_it_is_wanted() {
    any_sequence_ends_as_it_is_wanted(true);
}

#[test]
fn any_sequence_with_a_driver_that_only_publishes_ends_as_it_is_wanted() {
    any_sequence_ends_as_it_is_wanted(false);
}
