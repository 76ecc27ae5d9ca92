//! The observer on a runtime in memory, under tokio's paused clock.

use std::time::Duration;

use longshore_cri::Runtime;
use longshore_metrics::Registry;
use longshore_pod::observed::ObservedPod;
use longshore_testkit::scripted::{Fault, ScriptedRuntime};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Observer, PLEG_DEADLINE, overdue, run};

/// Deadline of calls to the runtime.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn observer(runtime: &ScriptedRuntime) -> Observer {
    let cri = Runtime::in_memory(runtime.clone(), runtime.clone(), CALL_TIMEOUT).unwrap();
    Observer::new(cri, &Registry::default())
}

/// A runtime that has this pod with one container, and its observer after the first relist.
async fn start(uid: &str) -> (ScriptedRuntime, Observer, String) {
    let runtime = ScriptedRuntime::default();
    let (_, ids) = runtime.add_pod(uid, &["c"]);
    let observer = observer(&runtime);
    tokio::spawn(run(observer.clone(), CancellationToken::new()));
    sleep(millis(500)).await;
    assert!(runs(&observer, uid));
    (runtime, observer, ids[0].clone())
}

/// Whether the pod is observed with a running container.
fn runs(observer: &Observer, uid: &str) -> bool {
    let runs = |pod: &ObservedPod| pod.containers.iter().any(|container| container.is_running());
    observer.pod(uid).is_some_and(|pod| runs(&pod))
}

#[tokio::test(start_paused = true)]
async fn observe_end_is_inspected_upon_the_runtimes_event() {
    let (runtime, observer, _) = start("p").await;
    let mut seen = observer.subscribe("p");
    seen.mark_unchanged();
    let at = Instant::now();
    runtime.exit("c", 3);
    seen.changed().await.unwrap();
    assert!(!runs(&observer, "p"));
    assert!(at.elapsed() < millis(100), "long before the next relist");
}

#[tokio::test(start_paused = true)]
async fn observe_end_without_an_event_is_found_by_the_next_relist() {
    let runtime = ScriptedRuntime::default();
    runtime.inject("GetContainerEvents", Fault::Hangs);
    runtime.add_pod("p", &["c"]);
    let observer = observer(&runtime);
    tokio::spawn(run(observer.clone(), CancellationToken::new()));
    sleep(millis(2500)).await;
    assert!(runs(&observer, "p"));
    runtime.exit("c", 3);
    sleep(millis(300)).await;
    assert!(runs(&observer, "p"));
    sleep(millis(400)).await;
    assert!(!runs(&observer, "p"));
}

#[tokio::test(start_paused = true)]
async fn observe_event_stream_is_opened_again() {
    let runtime = ScriptedRuntime::default();
    runtime.inject("GetContainerEvents", Fault::Fails);
    runtime.add_pod("p", &["c"]);
    let observer = observer(&runtime);
    tokio::spawn(run(observer.clone(), CancellationToken::new()));
    sleep(millis(10_500)).await;
    let mut seen = observer.subscribe("p");
    let at = Instant::now();
    runtime.exit("c", 3);
    seen.wait_for(|pod| !pod.containers[0].is_running()).await.unwrap();
    assert!(at.elapsed() < millis(100), "by its event");
}

#[tokio::test(start_paused = true)]
async fn observe_late_list_does_not_overwrite_newer_observations() {
    for (method, sandbox_is_late) in [("ListPodSandbox", true), ("ListContainers", false)] {
        let (runtime, observer, _) = start("p").await;
        // The relist at 1 s is answered at 5 s, with what there was at 1 s.
        runtime.inject(method, Fault::AnsweredLate(seconds(4)));
        sleep(seconds(1)).await;
        let (sandbox, ids) = runtime.add_pod("new", &["c"]);
        observer.inspect_sandbox("new", &sandbox).await.unwrap();
        observer.inspect_container("new", &ids[0], &sandbox).await.unwrap();
        let mut seen = observer.subscribe("new");
        assert!(runs(&observer, "new"));
        seen.mark_unchanged();
        sleep(seconds(10)).await;
        let still = seen.borrow_and_update().clone();
        assert!(runs(&observer, "new") && !still.is_gone(), "{method} {sandbox_is_late}");
        assert!(!seen.has_changed().unwrap());
        // What is gone meanwhile is not forgotten for it.
        runtime.remove_pod("new");
        sleep(seconds(2)).await;
        assert!(seen.borrow().is_gone());
    }
}

#[tokio::test(start_paused = true)]
async fn observe_late_list_does_not_bring_back_what_was_removed() {
    for method in ["ListPodSandbox", "ListContainers"] {
        let (runtime, observer, id) = start("p").await;
        runtime.inject(method, Fault::AnsweredLate(seconds(4)));
        sleep(seconds(1)).await;
        let ids: Vec<String> = runtime.world().sandboxes.keys().cloned().chain([id]).collect();
        runtime.remove_pod("p");
        observer.all_removed("p", &ids.iter().map(String::as_str).collect());
        let mut seen = observer.subscribe("p");
        assert!(seen.borrow_and_update().is_gone());
        for _ in 0..100 {
            sleep(millis(100)).await;
            let pod = seen.borrow().clone();
            assert!(pod.is_gone() && !pod.partial, "{method}: {pod:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn observe_late_status_does_not_overwrite_a_newer_one() {
    let (runtime, observer, id) = start("p").await;
    let sandbox = observer.pod("p").unwrap().sandboxes[0].id.clone();
    runtime.inject("ContainerStatus", Fault::AnsweredLate(seconds(5)));
    let late = observer.inspect_container("p", &id, &sandbox);
    let newer = async {
        sleep(seconds(1)).await;
        runtime.exit("c", 3);
        sleep(millis(100)).await;
        assert!(!runs(&observer, "p"));
    };
    let (late, ()) = tokio::join!(late, newer);
    late.unwrap();
    assert!(!runs(&observer, "p"), "its answer is from before the exit");
    sleep(seconds(3)).await;
    assert!(!runs(&observer, "p"));
}

#[tokio::test(start_paused = true)]
async fn observe_late_status_does_not_bring_back_what_was_removed() {
    for what in ["ContainerStatus", "PodSandboxStatus"] {
        let (runtime, observer, id) = start("p").await;
        let sandbox = observer.pod("p").unwrap().sandboxes[0].id.clone();
        runtime.inject(what, Fault::AnsweredLate(seconds(2)));
        let late = observer.inspect_pod("p");
        let newer = async {
            sleep(millis(600)).await;
            runtime.remove_pod("p");
            observer.all_removed("p", &[sandbox.as_str(), id.as_str()].into());
        };
        let mut seen = observer.subscribe("p");
        let watch = async {
            sleep(millis(700)).await;
            for _ in 0..50 {
                let pod = seen.borrow_and_update().clone();
                assert!(pod.is_gone(), "{what}: {pod:?}");
                sleep(millis(100)).await;
            }
        };
        let (_, (), ()) = tokio::join!(late, newer, watch);
    }
}

#[tokio::test(start_paused = true)]
async fn observe_relists_are_fewer_while_the_runtime_tells_of_events() {
    let (runtime, observer, _) = start("p").await;
    let lists = |runtime: &ScriptedRuntime| {
        let requests = std::mem::take(&mut runtime.world().requests);
        requests.iter().filter(|method| **method == "ListPodSandbox").count()
    };
    lists(&runtime);
    sleep(seconds(20)).await;
    assert_eq!(lists(&runtime), 20, "no event yet");
    runtime.exit("c", 3);
    sleep(seconds(20)).await;
    assert!((4..=5).contains(&lists(&runtime)));
    let before = observer.relisted().borrow().unwrap();
    runtime.end_events();
    sleep(millis(1100)).await;
    assert!(observer.relisted().borrow().unwrap() > before, "at once when events end");
    lists(&runtime);
    sleep(seconds(20)).await;
    assert_eq!(lists(&runtime), 20);
}

#[tokio::test(start_paused = true)]
async fn observe_relist_that_hangs_delays_no_inspection() {
    let (runtime, observer, id) = start("p").await;
    runtime.inject("ListContainers", Fault::Hangs);
    sleep(seconds(1)).await;
    let before = observer.relisted().borrow().unwrap();
    let sandbox = observer.pod("p").unwrap().sandboxes[0].id.clone();
    // An event is followed, and workers inspect, though no relist ends.
    runtime.exit("c", 3);
    sleep(millis(100)).await;
    assert!(!runs(&observer, "p"));
    observer.inspect_container("p", &id, &sandbox).await.unwrap();
    sleep(seconds(5)).await;
    assert_eq!(observer.relisted().borrow().unwrap(), before);
    // The call has a deadline, after which relists go on.
    sleep(CALL_TIMEOUT).await;
    let age = observer.relisted().borrow().unwrap().elapsed();
    assert!(age <= seconds(1), "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn observe_relists_that_fail_are_overdue_after_three_minutes() {
    let started = Instant::now();
    let (runtime, observer, _) = start("p").await;
    let overdue = || overdue(*observer.relisted().borrow(), started);
    let last = *observer.relisted().borrow();
    for _ in 0..1000 {
        runtime.inject("ListPodSandbox", Fault::Fails);
    }
    while last.unwrap().elapsed() < PLEG_DEADLINE {
        assert_eq!(overdue(), None);
        sleep(millis(500)).await;
    }
    assert_eq!(overdue(), Some(last.unwrap().elapsed()));
    assert_eq!(observer.relisted().borrow().unwrap(), last.unwrap());
    assert!(runs(&observer, "p"), "what was observed last is kept");
    runtime.end_faults();
    sleep(millis(1500)).await;
    assert_eq!(overdue(), None);
}

#[tokio::test(start_paused = true)]
async fn observe_start_without_a_relist_is_overdue_after_three_minutes() {
    let started = Instant::now();
    for (age, expected) in [(0, None), (179, None), (1, Some(seconds(180)))] {
        sleep(seconds(age)).await;
        assert_eq!(overdue(None, started), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn observe_first_relist_waits_for_inspections_but_not_for_one_that_hangs() {
    let runtime = ScriptedRuntime::default();
    runtime.inject("ContainerStatus", Fault::Hangs);
    for uid in ["a", "b", "c"] {
        runtime.add_pod(uid, &["c"]);
    }
    let observer = observer(&runtime);
    tokio::spawn(run(observer.clone(), CancellationToken::new()));
    let begun = Instant::now();
    observer.relisted().wait_for(Option::is_some).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 2);
    let partial: Vec<bool> = observer.all().iter().map(|pod| pod.partial).collect();
    assert_eq!(partial.iter().filter(|partial| **partial).count(), 1, "{partial:?}");
    // Its call is made again after its deadline.
    sleep(CALL_TIMEOUT + seconds(1)).await;
    assert!(observer.all().iter().all(|pod| !pod.partial && runs(&observer, &pod.uid)));
}

#[tokio::test(start_paused = true)]
async fn observe_inspection_that_fails_is_retried_and_reported() {
    let (runtime, observer, _) = start("p").await;
    for _ in 0..3 {
        runtime.inject("ContainerStatus", Fault::Fails);
    }
    runtime.exit("c", 3);
    sleep(millis(100)).await;
    assert!(runs(&observer, "p"), "the last observation is kept");
    assert!(observer.last_error("p").unwrap().contains("scripted failure of ContainerStatus"));
    sleep(seconds(4)).await;
    assert!(!runs(&observer, "p"));
    assert_eq!(observer.last_error("p"), None);
}

#[tokio::test(start_paused = true)]
async fn observe_discover_finds_sandboxes_before_the_next_relist() {
    let (runtime, observer, _) = start("p").await;
    sleep(millis(600)).await;
    let (sandbox, _) = runtime.add_pod("new", &[]);
    observer.discover("new").await.unwrap();
    assert_eq!(observer.pod("new").unwrap().sandboxes[0].id, sandbox);
    runtime.inject("ListPodSandbox", Fault::Fails);
    let error = observer.discover("new").await.unwrap_err();
    assert!(error.to_string().contains("scripted failure"), "{error}");
}

/// What happens to a runtime and its observer.
#[derive(Clone, Debug)]
enum Event {
    Wait(u64),
    Add(u8),
    Exit,
    Remove(u8),
    Inject(&'static str, Fault),
    /// A worker inspects.
    Inspect(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let method = prop::sample::select(vec![
        "ListPodSandbox",
        "ListContainers",
        "PodSandboxStatus",
        "ContainerStatus",
        "GetContainerEvents",
    ]);
    let fault = prop_oneof![
        Just(Fault::Fails),
        Just(Fault::Hangs),
        (1..9_000u64).prop_map(|delay| Fault::AnsweredLate(millis(delay))),
        (1..9_000u64).prop_map(|delay| Fault::Late(millis(delay))),
    ];
    prop_oneof![
        4 => (0..4_000u64).prop_map(Event::Wait),
        2 => (0..3u8).prop_map(Event::Add),
        1 => Just(Event::Exit),
        2 => (0..3u8).prop_map(Event::Remove),
        4 => (method, fault).prop_map(|(method, fault)| Event::Inject(method, fault)),
        2 => (0..3u8).prop_map(Event::Inspect),
    ]
}

/// Ids of what the runtime has, and whether it runs.
fn actual(runtime: &ScriptedRuntime) -> Vec<(String, bool)> {
    let world = runtime.world();
    let sandboxes = world.sandboxes.iter().map(|(id, sandbox)| (id.clone(), sandbox.ready));
    let runs = world.runs.iter().map(|(id, run)| (id.clone(), run.is_running()));
    let mut all: Vec<_> = sandboxes.chain(runs).collect();
    all.sort();
    all
}

/// The same as it is observed.
fn observed(observer: &Observer) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for pod in observer.all() {
        all.extend(pod.sandboxes.iter().map(|sandbox| (sandbox.id.clone(), sandbox.ready)));
        let runs = pod.containers.iter();
        all.extend(runs.map(|container| (container.id.clone(), container.is_running())));
        all.extend(pod.partial.then(|| ("partial".to_owned(), true)));
    }
    all.sort();
    all
}

async fn sequence(events: Vec<Event>) -> Result<(), String> {
    let runtime = ScriptedRuntime::default();
    let observer = observer(&runtime);
    tokio::spawn(run(observer.clone(), CancellationToken::new()));
    // Exits are final: a container that was observed after its exit never runs again.
    let mut exited = std::collections::HashSet::new();
    for event in events {
        match event {
            Event::Wait(time) => sleep(millis(time)).await,
            Event::Add(pod) => {
                runtime.add_pod(&pod.to_string(), &["c", "d"]);
            }
            Event::Exit => runtime.exit("c", 1),
            Event::Remove(pod) => {
                let uid = pod.to_string();
                let world = runtime.world();
                let sandboxes = world.sandboxes.iter().filter(|(_, one)| one.uid == uid);
                let runs = world.runs.iter().filter(|(_, one)| one.uid == uid);
                let ids: Vec<String> =
                    sandboxes.map(|(id, _)| id).chain(runs.map(|(id, _)| id)).cloned().collect();
                drop(world);
                runtime.remove_pod(&uid);
                observer.all_removed(&uid, &ids.iter().map(String::as_str).collect());
            }
            Event::Inject(method, fault) => runtime.inject(method, fault),
            Event::Inspect(pod) => {
                let observer = observer.clone();
                tokio::spawn(async move {
                    let _ = observer.inspect_pod(&pod.to_string()).await;
                });
            }
        }
        for (id, runs) in observed(&observer) {
            if runs && exited.contains(&id) {
                return Err(format!("{id} runs again"));
            }
            if !runs {
                exited.insert(id);
            }
        }
    }
    runtime.end_faults();
    // Calls that hang end with their deadline at the latest.
    sleep(CALL_TIMEOUT + seconds(3)).await;
    match (observed(&observer), actual(&runtime)) {
        (observed, actual) if observed == actual => Ok(()),
        (observed, actual) => Err(format!("{observed:?} is observed, and there is {actual:?}")),
    }
}

/// `PROPTEST_CASES`, or as many as take a few seconds.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn observe_random_faults_leave_the_truth(events in prop::collection::vec(event(), 1..30)) {
        let paused =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        if let Err(error) = paused.unwrap().block_on(sequence(events)) {
            return Err(TestCaseError::fail(error));
        }
    }
}
