mod probes;
mod reset;
mod resize;
mod rules;

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::backoff::{RESTART_BASE, RESTART_MAX};
use crate::observed::{self, State};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// A pod by its restart policy and its containers: `name`, `init:name` or `sidecar:name`.
fn pod(policy: &str, containers: &[&str]) -> Pod {
    let (mut init, mut regular) = (Vec::new(), Vec::new());
    for container in containers {
        match container.split_once(':') {
            Some(("init", name)) => init.push(json!({"name": name, "image": "i"})),
            Some((_, name)) => {
                init.push(json!({"name": name, "image": "i", "restartPolicy": "Always"}));
            }
            None => regular.push(json!({"name": container, "image": "i"})),
        }
    }
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": regular},
    }))
    .unwrap()
}

fn sandbox(attempt: u32, ready: bool) -> Sandbox {
    Sandbox {
        id: format!("s{attempt}"),
        attempt,
        ready,
        created_at: at(i64::from(attempt)),
        ips: vec!["10.0.0.2".to_owned()],
        host_network: false,
        handler: String::new(),
    }
}

fn run(name: &str, sandbox: u32, restart_count: u32, state: State) -> observed::Container {
    let container =
        Container { name: name.to_owned(), image: Some("i".to_owned()), ..Container::default() };
    observed::Container {
        id: format!("{name}{restart_count}"),
        name: name.to_owned(),
        sandbox_id: format!("s{sandbox}"),
        restart_count,
        hash: Some(container_hash(&container)),
        created_at: at(i64::from(restart_count)),
        image: "i".to_owned(),
        image_ref: "sha256:i".to_owned(),
        log_path: String::new(),
        user: None,
        mounted_images: Default::default(),
        stop_signal: None,
        resources: None,
        state,
    }
}

fn running() -> State {
    State::Running { started_at: at(0) }
}

fn exited(exit_code: i32) -> State {
    let (started_at, finished_at) = (Some(at(0)), at(10));
    State::Exited {
        started_at,
        finished_at,
        exit_code,
        reason: String::new(),
        message: String::new(),
    }
}

fn observed(sandboxes: Vec<Sandbox>, containers: Vec<observed::Container>) -> ObservedPod {
    ObservedPod {
        uid: "u".into(),
        name: "p".into(),
        namespace: "ns".into(),
        sandboxes,
        containers,
        ..ObservedPod::default()
    }
}

fn inputs<'a>(
    probes: &'a ProbeResults,
    backoff: &'a Backoff<BackoffKey>,
    now: Timestamp,
) -> Inputs<'a> {
    static NONE: LazyLock<HashSet<String>> = LazyLock::new(HashSet::new);
    let (starting, actuated) = (&*NONE, <&PodResources>::default());
    Inputs { probes, starting, backoff, actuated, now, gates: Gates::default() }
}

fn planned(pod: &Pod, seen: &ObservedPod, backoff: &Backoff<BackoffKey>, now: Timestamp) -> Plan {
    plan(pod, seen, inputs(<&ProbeResults>::default(), backoff, now))
}

fn no_delays() -> Backoff<BackoffKey> {
    Backoff::new(RESTART_BASE, RESTART_MAX)
}

/// The plan in short form: `stop`, `sandbox N`, `kill c`, `start c N`, `resize c`, `wait c`.
fn steps(pod: &Pod, observed: &ObservedPod) -> Vec<String> {
    short(&planned(pod, observed, &no_delays(), at(20)))
}

fn short(plan: &Plan) -> Vec<String> {
    let sandbox = match plan.sandbox {
        SandboxStep::Keep => None,
        SandboxStep::Create { attempt } => Some(format!("sandbox {attempt}")),
        SandboxStep::Stop => Some("stop".to_owned()),
    };
    let kills = plan.kill.iter().map(|kill| format!("kill {}", kill.name));
    let starts = plan.start.iter().map(|start| {
        let count = start.restart_count.map_or("new".to_owned(), |count| count.to_string());
        format!("start {} {count}", start.name)
    });
    let resizes = plan.resize.iter().map(|resize| format!("resize {}", resize.name));
    let waits = plan.waiting.iter().map(|waiting| format!("wait {}", waiting.name));
    sandbox.into_iter().chain(kills).chain(starts).chain(resizes).chain(waits).collect()
}

#[test]
fn plan_creates_the_sandbox_and_then_the_containers() {
    let pod = pod("Always", &["a", "b"]);
    assert_eq!(steps(&pod, &observed(vec![], vec![])), ["sandbox 0"]);
    let seen = observed(vec![sandbox(0, true)], vec![]);
    assert_eq!(steps(&pod, &seen), ["start a new", "start b new"]);
    let seen = observed(
        vec![sandbox(0, true)],
        vec![run("a", 0, 0, running()), run("b", 0, 0, running())],
    );
    assert!(planned(&pod, &seen, &no_delays(), at(20)).is_idle());
}

#[test]
fn plan_follows_restart_policies() {
    for (policy, exit_code, expected) in [
        ("Always", 0, vec!["start a 1"]),
        ("Always", 1, vec!["start a 1"]),
        ("OnFailure", 0, vec!["stop"]),
        ("OnFailure", 1, vec!["start a 1"]),
        ("Never", 0, vec!["stop"]),
        ("Never", 1, vec!["stop"]),
    ] {
        let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, 0, exited(exit_code))]);
        assert_eq!(steps(&pod(policy, &["a"]), &seen), expected, "{policy} {exit_code}");
    }
}

#[test]
fn plan_kills_containers_of_unknown_state_before_a_restart() {
    let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, 0, State::Unknown)]);
    assert_eq!(steps(&pod("Never", &["a"]), &seen), ["kill a", "start a 1"]);
}

#[test]
fn plan_starts_containers_that_never_ran_after_a_lost_sandbox() {
    let seen = observed(vec![sandbox(0, false)], vec![run("a", 0, 0, State::Created)]);
    assert_eq!(steps(&pod("Never", &["a"]), &seen), ["sandbox 1"]);
}

#[test]
fn plan_does_not_count_created_containers_as_runs() {
    for count in [0, 3] {
        let made = run("a", 0, count, State::Created);
        let seen = observed(vec![sandbox(0, true)], vec![made]);
        assert_eq!(steps(&pod("Never", &["a"]), &seen), [format!("start a {count}")]);
    }
}

#[test]
fn plan_restart_count_cannot_overflow() {
    let seen = observed(vec![sandbox(u32::MAX, false)], vec![]);
    assert_eq!(steps(&pod("Always", &["a"]), &seen), ["sandbox 4294967295"]);
    let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, u32::MAX, exited(1))]);
    assert_eq!(steps(&pod("Always", &["a"]), &seen), ["start a 4294967295"]);
}

#[test]
fn plan_keeps_the_pod_while_a_container_runs() {
    let seen = observed(
        vec![sandbox(0, true)],
        vec![run("a", 0, 0, exited(0)), run("b", 0, 0, running())],
    );
    assert!(steps(&pod("Never", &["a", "b"]), &seen).is_empty());
}

#[test]
fn plan_backs_off_repeated_failures() {
    let pod = pod("Always", &["a"]);
    let key = backoff_key(&pod.spec.as_ref().unwrap().containers[0]);
    let mut delays = no_delays();
    delays.next(&key, at(0), at(0));
    let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, 1, exited(1))]);
    let early = planned(&pod, &seen, &delays, at(15));
    assert_eq!(short(&early), ["wait a"]);
    assert!(early.is_idle());
    assert_eq!(early.wake_at(), Some(at(20)), "10 s after it ended at 10");
    assert_eq!(short(&planned(&pod, &seen, &delays, at(20))), ["start a 2"]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = pod("Always", &["init:i", "init:j", "a"]);
    let with = |containers| observed(vec![sandbox(0, true)], containers);
    assert_eq!(steps(&pod, &with(vec![])), ["start i new"]);
    assert!(steps(&pod, &with(vec![run("i", 0, 0, running())])).is_empty());
    assert_eq!(steps(&pod, &with(vec![run("i", 0, 0, exited(0))])), ["start j new"]);
    assert_eq!(steps(&pod, &with(vec![run("i", 0, 0, exited(1))])), ["start i 1"]);
    let done = vec![run("i", 0, 0, exited(0)), run("j", 0, 0, exited(0))];
    assert_eq!(steps(&pod, &with(done)), ["start a new"]);
    let forgotten = vec![run("a", 0, 0, running())];
    assert!(steps(&pod, &with(forgotten)).is_empty(), "the runtime may forget init containers");
}

#[test]
fn init_container_failure_ends_a_pod_with_restart_policy_never() {
    let seen = observed(vec![sandbox(0, true)], vec![run("i", 0, 0, exited(1))]);
    assert_eq!(steps(&pod("Never", &["init:i", "a"]), &seen), ["stop"]);
    let seen = observed(vec![sandbox(0, false)], vec![run("i", 0, 0, exited(1))]);
    assert_eq!(steps(&pod("Never", &["init:i", "a"]), &seen), ["stop"], "and stays ended");
}

#[test]
fn init_container_of_unknown_state_is_restarted_by_policy() {
    let seen = observed(vec![sandbox(0, true)], vec![run("i", 0, 0, State::Unknown)]);
    for (policy, expected) in [
        ("Always", vec!["kill i", "start i 1"]),
        ("OnFailure", vec!["kill i", "start i 1"]),
        ("Never", vec!["stop"]),
    ] {
        assert_eq!(steps(&pod(policy, &["init:i", "a"]), &seen), expected, "{policy}");
    }
}

#[test]
fn init_container_that_was_oom_killed_is_restarted() {
    let mut killed = run("i", 0, 0, exited(0));
    if let State::Exited { reason, .. } = &mut killed.state {
        "OOMKilled".clone_into(reason);
    }
    let seen = observed(vec![sandbox(0, true)], vec![killed]);
    assert_eq!(steps(&pod("Always", &["init:i", "a"]), &seen), ["start i 1"]);
}

#[test]
fn plan_restarts_sidecars_in_every_phase() {
    let pod = pod("Never", &["sidecar:s", "init:i", "sidecar:t", "a"]);
    let with =
        |runs: Vec<observed::Container>| steps(&pod, &observed(vec![sandbox(0, true)], runs));
    let up = |name| run(name, 0, 0, running());
    let done = |name| run(name, 0, 0, exited(0));
    // While a later init container runs.
    assert_eq!(with(vec![done("s"), up("i")]), ["start s 1"]);
    // The runtime may have removed it.
    assert_eq!(with(vec![up("i")]), ["start s new"]);
    assert_eq!(with(vec![done("i")]), ["start s new", "start t new"]);
    // The next one waits for the last one only.
    assert_eq!(with(vec![done("s"), done("i"), up("t")]), ["start s 1", "start a new"]);
    assert_eq!(with(vec![up("s"), done("i"), done("t")]), ["start t 1"]);
    assert_eq!(with(vec![done("t"), up("a")]), ["start s new", "start t 1"]);
    // It may be running, so it is killed first.
    let unknown = run("t", 0, 0, State::Unknown);
    assert_eq!(with(vec![up("s"), unknown, up("a")]), ["kill t", "start t 1"]);
    assert_eq!(with(vec![up("s"), up("t"), done("a")]), ["stop"]);
}

#[test]
fn plan_kills_containers_of_earlier_sandboxes_first() {
    let seen = observed(vec![sandbox(1, true), sandbox(0, false)], vec![run("a", 0, 0, running())]);
    assert_eq!(steps(&pod("Always", &["a"]), &seen), ["kill a", "start a 1"]);

    // Also the run of an init container that may start because the one before it is done.
    let seen = observed(
        vec![sandbox(1, true), sandbox(0, false)],
        vec![run("j", 0, 0, running()), run("i", 1, 0, exited(0))],
    );
    let pod = pod("Always", &["init:i", "init:j", "a"]);
    assert_eq!(steps(&pod, &seen), ["kill j", "start j 1"]);
}

#[test]
fn plan_starts_ephemeral_containers_once() {
    let mut pod = pod("Never", &["init:i", "a"]);
    pod.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "e", "image": "i"}, {"name": "f", "image": "i"}]))
            .unwrap();
    let with = |runs: Vec<observed::Container>| observed(vec![sandbox(0, true)], runs);
    let up = |name| run(name, 0, 0, running());
    assert_eq!(steps(&pod, &with(vec![])), ["start e new", "start f new", "start i new"]);
    for state in [running(), exited(1), State::Unknown] {
        let seen = with(vec![run("e", 0, 0, state), up("f"), up("i")]);
        assert!(steps(&pod, &seen).is_empty(), "never again");
    }
    let made = run("e", 0, 0, State::Created);
    assert_eq!(steps(&pod, &with(vec![made, up("f"), up("i")])), ["start e 0"]);
    let over = with(vec![up("e"), up("f"), run("a", 0, 0, exited(0))]);
    assert_eq!(steps(&pod, &over), ["stop"], "they do not keep a pod alive");
    assert_eq!(steps(&pod, &observed(vec![], vec![])), ["sandbox 0"]);

    let status = json!({"ephemeralContainerStatuses": [{
        "name": "e", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "containerID": "containerd://gone",
    }]});
    pod.status = serde_json::from_value(status).unwrap();
    assert_eq!(steps(&pod, &with(vec![up("i")])), ["start f new"], "the runtime forgot e");
}

#[test]
fn plan_starts_sidecars_in_order() {
    let pod = pod("Never", &["sidecar:s", "init:i", "a"]);
    let with = |containers| observed(vec![sandbox(0, true)], containers);
    assert_eq!(steps(&pod, &with(vec![])), ["start s new"]);
    assert_eq!(steps(&pod, &with(vec![run("s", 0, 0, running())])), ["start i new"]);
    let both = vec![run("s", 0, 0, running()), run("i", 0, 0, exited(0))];
    assert_eq!(steps(&pod, &with(both)), ["start a new"]);
    let dead =
        vec![run("s", 0, 0, exited(1)), run("i", 0, 0, exited(0)), run("a", 0, 0, running())];
    assert_eq!(steps(&pod, &with(dead)), ["start s 1"], "restarted whatever the pod's policy");
    let over =
        vec![run("s", 0, 0, running()), run("i", 0, 0, exited(0)), run("a", 0, 0, exited(0))];
    assert_eq!(steps(&pod, &with(over)), ["stop"]);
}

#[test]
fn plan_replaces_only_the_container_whose_spec_changed() {
    let mut changed = run("a", 0, 3, running());
    changed.hash = Some(1);
    let seen = observed(vec![sandbox(0, true)], vec![changed, run("b", 0, 0, running())]);
    assert_eq!(steps(&pod("Always", &["a", "b"]), &seen), ["kill a", "start a 4"]);
    // Whatever the policy: a start planned after the kill was observed would find the pod finished.
    assert_eq!(steps(&pod("OnFailure", &["a", "b"]), &seen), ["kill a", "start a 4"]);
}

#[test]
fn plan_ignores_containers_that_are_not_in_the_spec() {
    let mut foreign = run("a", 0, 0, running());
    foreign.hash = None;
    let seen = observed(vec![sandbox(0, true)], vec![foreign]);
    assert!(steps(&pod("Always", &["a"]), &seen).is_empty());
}

#[test]
fn plan_recreates_a_lost_sandbox_if_containers_are_left_to_run() {
    let lost = |state| observed(vec![sandbox(2, false)], vec![run("a", 2, 0, state)]);
    assert_eq!(steps(&pod("Always", &["a"]), &lost(exited(0))), ["sandbox 3"]);
    assert_eq!(steps(&pod("OnFailure", &["a"]), &lost(exited(137))), ["sandbox 3"]);
    assert_eq!(steps(&pod("OnFailure", &["a"]), &lost(exited(0))), ["stop"]);
    assert_eq!(steps(&pod("Never", &["a"]), &lost(exited(137))), ["stop"]);
    assert_eq!(steps(&pod("Never", &["a"]), &lost(running())), ["stop"]);
    // A pod that never restarts does not start again because some containers have yet to run.
    assert_eq!(steps(&pod("Never", &["a", "b"]), &lost(exited(0))), ["stop"]);
    assert_eq!(steps(&pod("OnFailure", &["a", "b"]), &lost(exited(0))), ["sandbox 3"]);
    assert_eq!(steps(&pod("Never", &["a"]), &lost(State::Created)), ["sandbox 3"]);
    let initialized = observed(vec![sandbox(2, false)], vec![run("i", 2, 0, exited(0))]);
    assert_eq!(steps(&pod("Never", &["init:i", "a"]), &initialized), ["stop"]);
    assert_eq!(steps(&pod("OnFailure", &["init:i", "a"]), &initialized), ["sandbox 3"]);
    let two = observed(vec![sandbox(1, true), sandbox(0, true)], vec![]);
    assert_eq!(steps(&pod("Always", &["a"]), &two), ["sandbox 2"], "only one sandbox may be ready");
    let mut unreachable = sandbox(0, true);
    unreachable.ips.clear();
    assert_eq!(steps(&pod("Always", &["a"]), &observed(vec![unreachable], vec![])), ["sandbox 1"]);
}

#[test]
fn plan_keeps_the_restart_count_in_a_new_sandbox() {
    let seen = observed(vec![sandbox(1, true), sandbox(0, false)], vec![run("a", 0, 4, exited(0))]);
    assert_eq!(steps(&pod("Always", &["a"]), &seen), ["start a 5"]);
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Created),
        Just(running()),
        (0i32..3).prop_map(exited),
        Just(State::Unknown)
    ]
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let container = prop_oneof!["init:[ij]", "sidecar:[st]", "[abc]"];
    (prop_oneof!["Always", "OnFailure", "Never"], prop::collection::vec(container, 1..6)).prop_map(
        |(policy, mut names)| {
            names.push("main".to_owned());
            names.sort_by_key(|name| name.rsplit(':').next().map(str::to_owned));
            names.dedup_by_key(|name| name.rsplit(':').next().map(str::to_owned));
            pod(&policy, &names.iter().map(String::as_str).collect::<Vec<_>>())
        },
    )
}

fn any_observation() -> impl Strategy<Value = ObservedPod> {
    let names = prop_oneof!["[ijstabc]", Just("main".to_owned())];
    let container = (names, 0u32..2, 0u32..3, any_state());
    (prop::collection::vec(any::<bool>(), 0..3), prop::collection::vec(container, 0..6)).prop_map(
        |(sandboxes, containers)| {
            let mut sandboxes: Vec<_> =
                sandboxes.into_iter().zip(0u32..).map(|(ready, n)| sandbox(n, ready)).collect();
            sandboxes.reverse();
            let containers =
                containers.into_iter().map(|(name, s, count, state)| run(&name, s, count, state));
            observed(sandboxes, containers.collect())
        },
    )
}

/// What the runtime shows after the execution of a plan in which every start succeeds.
fn carried_out(plan: &Plan, mut seen: ObservedPod) -> ObservedPod {
    match plan.sandbox {
        SandboxStep::Keep => {}
        SandboxStep::Create { .. } | SandboxStep::Stop => {
            seen.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
            for run in seen.containers.iter_mut().filter(|run| run.exit_code().is_none()) {
                run.state = exited(137);
            }
        }
    }
    if let SandboxStep::Create { attempt } = plan.sandbox {
        seen.sandboxes.insert(0, sandbox(attempt, true));
    }
    for kill in &plan.kill {
        let killed = seen.containers.iter_mut().filter(|run| run.id == kill.id);
        killed.for_each(|run| run.state = exited(137));
    }
    for start in &plan.start {
        let attempt = seen.sandboxes[0].attempt;
        let started = run(&start.name, attempt, start.restart_count.unwrap_or(0), running());
        seen.containers.retain(|run| run.name != start.name || run.state != State::Created);
        seen.containers.insert(0, started);
    }
    seen
}

proptest! {
    #[test]
    fn plan_converges_when_executed(pod in any_pod(), seen in any_observation()) {
        let mut seen = seen;
        // Running init containers succeed here, so that the pod makes progress.
        for _ in 0..30 {
            let next = planned(&pod, &seen, &no_delays(), at(20));
            if next.sandbox == SandboxStep::Stop && !seen.is_active() {
                return Ok(()); // it is over
            }
            if next.is_idle() {
                let init = spec::containers(pod.spec.as_ref().unwrap())
                    .filter(|(kind, _)| *kind == ContainerKind::Init)
                    .map(|(_, container)| container.name.clone())
                    .collect::<Vec<_>>();
                let pending = seen.containers.iter_mut()
                    .find(|run| init.contains(&run.name) && run.is_running());
                match pending {
                    Some(run) => run.state = exited(0),
                    None => return Ok(()),
                }
                continue;
            }
            seen = carried_out(&next, seen);
        }
        prop_assert!(false, "still busy: {:?}", short(&planned(&pod, &seen, &no_delays(), at(20))));
    }

    #[test]
    fn plan_never_kills_healthy_containers(pod in any_pod(), seen in any_observation()) {
        let next = planned(&pod, &seen, &no_delays(), at(20));
        let here = seen.sandboxes.first().map(|sandbox| sandbox.id.clone());
        for kill in &next.kill {
            // Every hash matches, and no probe fails.
            let run = seen.containers.iter().find(|run| run.id == kill.id).unwrap();
            prop_assert!(run.state == State::Unknown || Some(&run.sandbox_id) != here.as_ref());
        }
    }

    #[test]
    fn plan_kills_and_starts_containers_of_the_pod_only(
        pod in any_pod(),
        seen in any_observation(),
        failing in "[ijstabc][0-2]",
    ) {
        let mut probes = ProbeResults::default();
        probes.set(&failing, crate::probes::ProbeKind::Liveness, crate::probes::ProbeResult::Failure);
        let mut pod = pod;
        let probe = || Some(k8s_openapi::api::core::v1::Probe::default());
        let spec = pod.spec.as_mut().unwrap();
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        all.for_each(|container| container.liveness_probe = probe());
        let next = plan(&pod, &seen, inputs(&probes, &no_delays(), at(20)));
        for kill in &next.kill {
            prop_assert!(spec::container(&pod, &kill.name).is_some());
            let newest = seen.newest(&kill.name).map(|run| &run.id);
            prop_assert_eq!(newest, Some(&kill.id), "what has ended is history");
        }
        let planned = next.start.iter().map(|start| &start.name);
        for name in planned.chain(next.waiting.iter().map(|waiting| &waiting.name)) {
            prop_assert!(spec::container(&pod, name).is_some());
        }
        prop_assert!(next.sandbox == SandboxStep::Keep || next.kill.is_empty() && next.start.is_empty());
    }

    #[test]
    fn plan_never_runs_a_container_twice_at_once(pod in any_pod(), seen in any_observation()) {
        let next = planned(&pod, &seen, &no_delays(), at(20));
        let mut started = std::collections::HashSet::new();
        for start in &next.start {
            prop_assert!(started.insert(&start.name), "started once a plan");
            if let Some(newest) = seen.newest(&start.name).filter(|run| run.may_run()) {
                prop_assert!(next.kill.iter().any(|kill| kill.id == newest.id));
            }
        }
    }
}
