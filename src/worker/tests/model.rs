//! A model-based test: random sequences of what can happen to a pod, with the faults of its runtime and
//! apiserver and restarts of the daemon. What must hold always is checked by the scripted runtime and
//! apiserver, as it happens; what must hold in the end, after faults have ended, is checked here.

use std::time::Duration;

use longshore_testkit::scripted::{Behaviour, Fault, Run};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;
use tokio::time::sleep;

use crate::testing::{Node, pod};

/// One event.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The pod is created, if it does not exist.
    Create,
    /// Its labels are changed.
    Label,
    /// Its deletion is requested, with a grace period in seconds; 0: the object is gone at once.
    Delete(i64),
    /// The node terminates it, with that grace period or its own.
    Evict(Option<u64>),
    /// The next call of that method meets a fault.
    Inject(&'static str, Fault),
    /// Writes to the apiserver fail so often.
    FailWrites(usize),
    /// The next write to the apiserver takes so many milliseconds.
    DelayWrite(u64),
    /// Its container exits.
    Exit(i32),
    /// Its sandbox dies.
    LoseSandbox,
    /// Its probes succeed from now on, or fail.
    Probes(bool),
    /// The next iteration of its worker panics.
    Panic,
    /// The daemon is killed, and starts again after that many milliseconds.
    Restart(u64),
}

/// What a sequence begins with.
#[derive(Clone, Debug)]
struct Setting {
    restart_policy: &'static str,
    probed: bool,
    /// How long its container takes to stop, in milliseconds.
    stops_in: u64,
    /// After how many seconds it exits by itself, and how.
    exits: Option<(u64, i32)>,
}

/// How long after the end of all faults a pod runs, or is gone. Two deadlines of calls, and the longest
/// backoff of containers and workers.
const SETTLED: u64 = 500;

fn inject(methods: Vec<&'static str>) -> impl Strategy<Value = Event> {
    let millis = Duration::from_millis;
    let fault = prop_oneof![
        Just(Fault::Fails),
        Just(Fault::FailsAfter),
        (1..15_000u64).prop_map(move |delay| Fault::Late(millis(delay))),
        (1..15_000u64).prop_map(move |delay| Fault::AnsweredLate(millis(delay))),
        Just(Fault::Hangs),
        Just(Fault::HangsAfter),
    ];
    (prop::sample::select(methods), fault).prop_map(|(method, fault)| Event::Inject(method, fault))
}

fn deletion() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => prop::sample::select(vec![0i64, 1, 5, 30]).prop_map(Event::Delete),
        1 => prop::option::of(0..20u64).prop_map(Event::Evict),
    ]
}

/// A sandbox is made, or made again, while calls fail that make sandboxes.
fn sandbox_faults() -> impl Strategy<Value = Vec<Event>> {
    let methods = vec!["RunPodSandbox", "PodSandboxStatus", "ListPodSandbox", "StopPodSandbox"];
    let cause = prop_oneof![
        Just(vec![Event::Delete(0), Event::Create]),
        Just(vec![Event::Create]),
        Just(vec![Event::LoseSandbox]),
    ];
    (prop::collection::vec(inject(methods), 1..4), cause, 0..3_000u64)
        .prop_map(|(faults, cause, wait)| [faults, cause, vec![Event::Wait(wait)]].concat())
}

/// The pod is terminated, and again, while calls fail that stop and remove.
fn stop_faults() -> impl Strategy<Value = Vec<Event>> {
    let methods = vec![
        "StopContainer",
        "StopContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
        "RemoveContainer",
        "ContainerStatus",
    ];
    let again = prop::collection::vec((deletion(), 0..8_000u64), 1..4);
    (prop::collection::vec(inject(methods), 0..4), again).prop_map(|(faults, again)| {
        let again = again.into_iter().flat_map(|(end, wait)| [end, Event::Wait(wait)]);
        faults.into_iter().chain(again).collect()
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let part = prop_oneof![
        4 => event().prop_map(|event| vec![event]),
        1 => sandbox_faults(),
        1 => stop_faults(),
    ];
    prop::collection::vec(part, 1..16).prop_map(|parts| parts.concat())
}

fn event() -> impl Strategy<Value = Event> {
    let methods = vec![
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "PodSandboxStatus",
        "ListPodSandbox",
        "PullImage",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "ContainerStatus",
        "ListContainers",
        "ExecSync",
    ];
    prop_oneof![
        5 => prop_oneof![0..300u64, 300..20_000u64].prop_map(Event::Wait),
        2 => Just(Event::Create),
        1 => Just(Event::Label),
        2 => deletion(),
        6 => inject(methods),
        1 => (1..4usize).prop_map(Event::FailWrites),
        1 => (1..8_000u64).prop_map(Event::DelayWrite),
        1 => prop::sample::select(vec![0, 1]).prop_map(Event::Exit),
        1 => Just(Event::LoseSandbox),
        1 => any::<bool>().prop_map(Event::Probes),
        1 => Just(Event::Panic),
        1 => (0..5_000u64).prop_map(Event::Restart),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let stops_in = prop::sample::select(vec![10u64, 3_000, 1_000_000]);
    let exits = prop::option::weighted(0.3, (1..20u64, 0..2i32));
    (policy, any::<bool>(), stops_in, exits).prop_map(
        |(restart_policy, probed, stops_in, exits)| Setting {
            restart_policy,
            probed,
            stops_in,
            exits,
        },
    )
}

/// Whether the node has ended the pod for good.
fn has_ended(node: &Node) -> bool {
    matches!(node.api.status("p")["phase"].as_str(), Some("Succeeded" | "Failed"))
}

async fn apply(node: &mut Node, setting: &Setting, event: Event) {
    match event {
        Event::Wait(millis) => sleep(Duration::from_millis(millis)).await,
        Event::Create => {
            let absent = !node.api.objects().pods.contains_key("p");
            if absent {
                let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 2});
                let container = match setting.probed {
                    true => json!({"livenessProbe": probe, "readinessProbe": probe}),
                    false => json!({}),
                };
                let spec = json!({"restartPolicy": setting.restart_policy});
                let mut made = pod("p", spec, container);
                // Another pod of that name: a node is free to run both for a while.
                made["metadata"]["uid"] = json!(node.api.objects().new_uid());
                node.api.put_pod(made);
            }
        }
        Event::Label => node.api.change_pod("p", |pod| {
            let count = pod["metadata"]["labels"]["count"].as_str().unwrap_or_default();
            pod["metadata"]["labels"] = json!({"count": format!("{count}x")});
        }),
        Event::Delete(grace) => node.api.delete_pod("p", grace),
        Event::Evict(grace) => {
            for uid in uids(node) {
                node.evict(&uid, grace);
            }
        }
        Event::Inject(method, fault) => node.runtime.inject(method, fault),
        Event::FailWrites(count) => node.api.objects().failures = count,
        Event::DelayWrite(millis) => {
            node.api.objects().delays.push_back(Duration::from_millis(millis));
        }
        Event::Exit(code) => node.runtime.exit("c", code),
        Event::LoseSandbox => node.runtime.lose_sandboxes(),
        Event::Probes(succeed) => node.runtime.world().unhealthy = !succeed,
        Event::Panic => uids(node).iter().for_each(|uid| node.panic_next(uid)),
        Event::Restart(millis) => {
            node.kill_daemon().await;
            sleep(Duration::from_millis(millis)).await;
            node.start_daemon().await;
        }
    }
}

fn uids(node: &Node) -> Vec<String> {
    node.daemon().terminator.workers().keys().cloned().collect()
}

/// Runs a sequence. The error is what does not hold.
async fn run(setting: Setting, events: Vec<Event>) -> Result<(), String> {
    Node::end_panics();
    let mut node = Node::start().await;
    let exits = setting.exits.map(|(after, code)| (Duration::from_secs(after), code));
    let stops_in = Duration::from_millis(setting.stops_in);
    node.runtime.set_behaviour("c", Behaviour { exits, stops_in });
    for event in events {
        apply(&mut node, &setting, event).await;
        check(&node)?;
    }

    // All faults end. A pod that should run does; the rest has ended.
    node.runtime.end_faults();
    node.api.objects().failures = 0;
    node.api.objects().delays.clear();
    node.runtime.world().unhealthy = false;
    Node::end_panics();
    let settled = |node: &Node| {
        let world = node.runtime.world();
        let started = world.runs.values().any(Run::is_running);
        drop(world);
        let pod = node.api.objects().pods.get("p").cloned();
        match pod {
            None => true,
            Some(pod) if !pod["metadata"]["deletionTimestamp"].is_null() => false,
            Some(_) => started || has_ended(node),
        }
    };
    until(&node, "the pod runs or has ended", settled).await?;
    node.api.delete_pod("p", 30);
    until(&node, "everything is given back", |node| {
        node.held().is_empty() && node.api.objects().pods.is_empty()
    })
    .await
}

fn check(node: &Node) -> Result<(), String> {
    match node.violations() {
        none if none.is_empty() => Ok(()),
        violations => Err(violations.join("; ")),
    }
}

async fn until(node: &Node, what: &str, holds: impl Fn(&Node) -> bool) -> Result<(), String> {
    for _ in 0..SETTLED * 2 {
        check(node)?;
        if holds(node) {
            return Ok(());
        }
        sleep(Duration::from_millis(500)).await;
    }
    let status = node.api.status("p");
    let (phase, containers) = (&status["phase"], &status["containerStatuses"]);
    let held = node.held();
    Err(format!("{what}: not within {SETTLED} s; held: {held:?}; phase {phase}: {containers}"))
}

/// Runs a sequence in a runtime of its own.
fn outcome(setting: Setting, events: Vec<Event>) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(run(setting, events))
}

/// `PROPTEST_CASES`, or as many as take half a minute.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

/// `make test` tries the same sequences each time; with `PROPTEST_CASES` they are new ones.
fn seed() -> RngSeed {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => RngSeed::Random,
        None => RngSeed::Fixed(1),
    }
}

/// Sequences that random ones have found.
#[test]
fn pod_life_with_known_faults() {
    let running =
        || Setting { restart_policy: "Always", probed: false, stops_in: 3_000, exits: None };
    // A pod is created again before anything was written of the one before: it is another pod, which
    // the write that is still under way for the first does not concern.
    let replaced = vec![
        Event::Create,
        Event::Delete(0),
        Event::Wait(0),
        Event::DelayWrite(2_853),
        Event::Inject("RunPodSandbox", Fault::Hangs),
        Event::Delete(0),
        Event::Create,
        Event::Wait(1),
        Event::Inject("RunPodSandbox", Fault::Fails),
        Event::Delete(0),
        Event::Create,
        Event::Wait(0),
    ];
    // A sandbox is made by a call that fails, and is found only after its pod is gone.
    let found_late = vec![
        Event::Create,
        Event::Wait(1),
        Event::Inject("RunPodSandbox", Fault::FailsAfter),
        Event::Delete(5),
        Event::Inject("ListPodSandbox", Fault::Hangs),
        Event::Inject("RunPodSandbox", Fault::Hangs),
        Event::Inject("ListPodSandbox", Fault::Hangs),
        Event::Delete(0),
        Event::Create,
        Event::Wait(768),
        Event::Evict(None),
        Event::Wait(6_017),
        Event::Evict(None),
        Event::Wait(2_518),
    ];
    // The call that shortens a grace period reaches the runtime late.
    let shortened_late = vec![
        Event::Create,
        Event::Wait(500),
        Event::Evict(None),
        Event::Wait(1),
        Event::Delete(0),
        Event::Wait(8_800),
        Event::Inject("StopContainer", Fault::Late(Duration::from_millis(11_557))),
        Event::Wait(4_644),
        Event::Evict(Some(8)),
        Event::Wait(1),
    ];
    let never_stops = || Setting { stops_in: 1_000_000, ..running() };
    let table =
        [(running(), replaced), (never_stops(), found_late), (never_stops(), shortened_late)];
    for (setting, events) in table {
        for probed in [false, true] {
            let setting = Setting { probed, ..setting.clone() };
            assert_eq!(outcome(setting, events.clone()), Ok(()), "{events:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        rng_seed: seed(),
        max_shrink_iters: 300,
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn pod_life_with_random_faults(
        setting in setting(),
        events in events(),
    ) {
        let events = [vec![Event::Create], events].concat();
        if let Err(error) = outcome(setting, events) {
            return Err(TestCaseError::fail(error));
        }
    }
}
