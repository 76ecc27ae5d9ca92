mod conditions;
mod containers;
mod phase;
mod resize;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::observed::{Container, Sandbox, State};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": spec,
    }))
    .unwrap()
}

fn one_container(policy: &str) -> Pod {
    pod(json!({"restartPolicy": policy, "containers": [{"name": "c", "image": "busybox"}]}))
}

fn run(name: &str, restart_count: u32, state: State) -> Container {
    Container {
        id: format!("{name}{restart_count}"),
        name: name.to_owned(),
        sandbox_id: "s".to_owned(),
        restart_count,
        hash: None,
        created_at: at(i64::from(restart_count)),
        image: "busybox:latest".to_owned(),
        image_ref: "sha256:1".to_owned(),
        log_path: String::new(),
        user: None,
        mounted_images: Default::default(),
        stop_signal: None,
        resources: None,
        state,
    }
}

fn running() -> State {
    State::Running { started_at: at(1) }
}

fn exited(exit_code: i32) -> State {
    State::Exited {
        started_at: Some(at(1)),
        finished_at: at(2),
        exit_code,
        reason: if exit_code == 0 { "Completed".into() } else { "Error".into() },
        message: String::new(),
    }
}

fn seen(containers: Vec<Container>) -> ObservedPod {
    let sandbox =
        Sandbox { id: "s".into(), ready: true, ips: vec!["10.0.0.9".into()], ..Sandbox::default() };
    ObservedPod { uid: "u".into(), sandboxes: vec![sandbox], containers, ..ObservedPod::default() }
}

fn host() -> Vec<String> {
    vec!["192.0.2.1".to_owned()]
}

fn status_of(
    pod: &Pod,
    observed: &ObservedPod,
    previous: &PodStatus,
    waiting: &[(&str, &str)],
) -> PodStatus {
    let host_ips = host();
    let context = Context {
        waiting: waiting
            .iter()
            .map(|(n, r)| ((*n).to_owned(), ((*r).to_owned(), "why".to_owned())))
            .collect(),
        host_ips: &host_ips,
        runtime: "containerd",
        ..Context::default()
    };
    status(pod, observed, previous, &context, at(100))
}

fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap()
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap();
    (condition.status.as_str(), condition.reason.as_deref().unwrap_or_default())
}

#[test]
fn status_from_pending_to_running() {
    let pod = one_container("Always");
    let nothing = status_of(&pod, &ObservedPod::default(), &PodStatus::default(), &[]);
    assert_eq!(phase(&nothing), "Pending");
    assert_eq!(condition(&nothing, "PodReadyToStartContainers"), ("False", ""));
    assert_eq!(condition(&nothing, "Initialized"), ("True", ""));
    assert_eq!(condition(&nothing, "Ready"), ("False", "ContainersNotReady"));
    assert_eq!(condition(&nothing, "PodScheduled"), ("True", ""));
    let container = &nothing.container_statuses.as_ref().unwrap()[0];
    let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
    assert_eq!(nothing.start_time, Some(Time(at(100))));
    assert_eq!(nothing.pod_ip, None);

    let ran = status_of(&pod, &seen(vec![run("c", 0, running())]), &nothing, &[]);
    assert_eq!(phase(&ran), "Running");
    assert_eq!(condition(&ran, "Ready"), ("True", ""));
    assert_eq!(ran.pod_ip.as_deref(), Some("10.0.0.9"));
    assert_eq!(ran.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(ran.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(ran.observed_generation, Some(3));
    let container = &ran.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.container_id.as_deref(), Some("containerd://c0"));
    assert!(container.ready && container.started == Some(true));
    assert_eq!(ran.start_time, nothing.start_time, "a start is reported once");
}

#[test]
fn status_phase_of_exited_containers_by_restart_policy() {
    for (policy, exit_code, expected) in [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
    ] {
        let status = status_of(
            &one_container(policy),
            &seen(vec![run("c", 0, exited(exit_code))]),
            &PodStatus::default(),
            &[],
        );
        assert_eq!(phase(&status), expected, "{policy} {exit_code}");
    }
}

#[test]
fn status_final_phase_is_never_taken_back() {
    let pod = one_container("Never");
    let failed = status_of(&pod, &seen(vec![run("c", 0, exited(1))]), &PodStatus::default(), &[]);
    let later = status_of(&pod, &seen(vec![run("c", 1, running())]), &failed, &[]);
    assert_eq!(phase(&later), "Failed");
    let forgotten = status_of(&pod, &ObservedPod::default(), &failed, &[]);
    assert_eq!(phase(&forgotten), "Failed");
    let container = &forgotten.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
}

#[test]
fn status_final_phase_set_by_others_is_kept() {
    let mut pod = one_container("Never");
    let reported = json!({"phase": "Failed", "reason": "NodeLost", "message": "gone"});
    pod.status = serde_json::from_value(reported).unwrap();
    let ran = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
    for state in [running(), exited(0)] {
        let status = status_of(&pod, &seen(vec![run("c", 0, state)]), &ran, &[]);
        assert_eq!((phase(&status), status.reason.as_deref()), ("Failed", Some("NodeLost")));
    }
}

#[test]
fn status_final_phase_is_reported_once_nothing_runs() {
    let pod = pod(json!({
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "s", "image": "b", "restartPolicy": "Always"},
            {"name": "i", "image": "b"},
        ],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let before = PodStatus { phase: Some("Pending".into()), ..PodStatus::default() };
    let still =
        status_of(&pod, &seen(vec![run("s", 0, running()), run("i", 0, exited(1))]), &before, &[]);
    assert_eq!(phase(&still), "Pending", "the sidecar is still there");
    let over =
        status_of(&pod, &seen(vec![run("s", 0, exited(0)), run("i", 0, exited(1))]), &still, &[]);
    assert_eq!(phase(&over), "Failed");
    let context = Context { holds_devices: true, ..Context::default() };
    let ended = seen(vec![run("s", 0, exited(0)), run("i", 0, exited(1))]);
    let holding = status(&pod, &ended, &still, &context, at(1));
    assert_eq!(phase(&holding), "Pending", "its devices are not given back");
}

#[test]
fn status_of_a_pod_deleted_before_it_ran_is_failed() {
    let context = Context { terminal: true, ..Context::default() };
    let end =
        |pod: &Pod| status(pod, &ObservedPod::default(), &PodStatus::default(), &context, at(1));
    let ended = end(&one_container("Always"));
    assert_eq!(phase(&ended), "Failed");
    let state = ended.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap();
    let lost = state.terminated.as_ref().expect("nothing waits any more");
    assert_eq!((lost.exit_code, lost.reason.as_deref()), (137, Some("ContainerStatusUnknown")));

    let ended = end(&pod(json!({
        "initContainers": [{"name": "i", "image": "b"}, {"name": "j", "image": "b"}],
        "containers": [{"name": "c", "image": "b"}],
    })));
    assert_eq!(phase(&ended), "Failed");
    let init = ended.init_container_statuses.as_ref().unwrap();
    assert!(init[0].state.as_ref().unwrap().terminated.is_some());
    assert!(init[1].state.as_ref().unwrap().waiting.is_some(), "it was never tried");
}

#[test]
fn status_reports_crash_loop_with_last_termination() {
    let pod = one_container("Always");
    let runs = vec![run("c", 1, exited(1)), run("c", 0, exited(2))];
    let status = status_of(&pod, &seen(runs), &PodStatus::default(), &[("c", "CrashLoopBackOff")]);
    assert_eq!(phase(&status), "Running");
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.restart_count, 1);
    let state = container.state.as_ref().unwrap();
    assert_eq!(state.waiting.as_ref().unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(last.exit_code, 1, "of the newest run, which is over");
}

#[test]
fn status_keeps_the_last_termination_of_a_restarted_container() {
    let pod = one_container("Always");
    let runs = vec![run("c", 1, running()), run("c", 0, exited(3))];
    let status = status_of(&pod, &seen(runs), &PodStatus::default(), &[]);
    let last = |status: &PodStatus| {
        let container = &status.container_statuses.as_ref().unwrap()[0];
        container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code
    };
    assert_eq!(last(&status), 3);
    let forgotten = status_of(&pod, &seen(vec![run("c", 1, running())]), &status, &[]);
    assert_eq!(last(&forgotten), 3, "the runtime may forget the run, the status does not");
}

#[test]
fn status_reports_a_lost_running_container_as_terminated() {
    let pod = one_container("Always");
    let ran = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let lost = status_of(&pod, &seen(vec![]), &ran, &[]);
    assert_eq!(phase(&lost), "Running", "not back to Pending");
    let container = &lost.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.restart_count, 1);
    let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
}

#[test]
fn status_phase_is_pending_during_init() {
    let pod = pod(json!({
        "initContainers": [{"name": "i", "image": "b"}],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let status = status_of(&pod, &seen(vec![run("i", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(phase(&status), "Pending");
    assert_eq!(condition(&status, "Initialized"), ("False", "ContainersNotInitialized"));
    let waiting = &status.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap().waiting;
    assert_eq!(waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
    let done = status_of(&pod, &seen(vec![run("i", 0, exited(0))]), &status, &[]);
    assert_eq!(condition(&done, "Initialized"), ("True", ""));
    assert!(done.init_container_statuses.as_ref().unwrap()[0].ready);
}

#[test]
fn conditions_change_transition_times_with_the_status_only() {
    let pod = one_container("Always");
    let observed = seen(vec![run("c", 0, running())]);
    let first = status_of(&pod, &observed, &PodStatus::default(), &[]);
    let context = Context { host_ips: &host(), runtime: "containerd", ..Context::default() };
    let second = status(&pod, &observed, &first, &context, at(500));
    assert_eq!(first, second, "nothing changed, so nothing is to be written");
}

#[test]
fn readiness_gate_keeps_the_pod_unready() {
    let mut gated = one_container("Always");
    let gate = json!([{"conditionType": "example.com/gate"}]);
    gated.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gate).unwrap();
    let observed = seen(vec![run("c", 0, running())]);
    let shut = status_of(&gated, &observed, &PodStatus::default(), &[]);
    assert_eq!(condition(&shut, "Ready"), ("False", "ReadinessGatesNotReady"));
    assert_eq!(condition(&shut, "ContainersReady"), ("True", ""));
    let open = json!({"conditions": [{"type": "example.com/gate", "status": "True"}]});
    gated.status = serde_json::from_value(open).unwrap();
    let open = status_of(&gated, &observed, &shut, &[]);
    assert_eq!(condition(&open, "Ready"), ("True", ""));
    assert_eq!(condition(&open, "example.com/gate"), ("True", ""), "others' conditions stay");
}

#[test]
fn status_reports_an_eviction_once_nothing_runs() {
    let pod = one_container("Always");
    let ran = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let verdict =
        Verdict { disruption: Some("low on memory".into()), ..Verdict::failed("Evicted", "full") };
    let context = Context { verdict: Some(verdict), ..Context::default() };
    let ending = status(&pod, &seen(vec![run("c", 0, running())]), &ran, &context, at(1));
    assert_eq!((phase(&ending), ending.reason.as_deref()), ("Running", None), "it holds resources");
    assert_eq!(condition(&ending, "Ready"), ("False", "PodFailed"));
    assert!(!ending.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));

    let over = status(&pod, &seen(vec![run("c", 0, exited(0))]), &ending, &context, at(2));
    assert_eq!((phase(&over), over.reason.as_deref()), ("Failed", Some("Evicted")));
    assert_eq!(condition(&over, "DisruptionTarget"), ("True", "TerminationByKubelet"));
    let later = status(&pod, &seen(vec![]), &over, &Context::default(), at(3));
    assert_eq!((phase(&later), later.reason.as_deref()), ("Failed", Some("Evicted")));
    assert_eq!(condition(&later, "DisruptionTarget"), ("True", "TerminationByKubelet"), "it stays");
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Created),
        Just(running()),
        (0i32..3).prop_map(exited),
        Just(State::Unknown)
    ]
}

/// A pod with two init containers (one a sidecar), two regular and one ephemeral container.
fn crowded(policy: &str) -> Pod {
    pod(json!({
        "restartPolicy": policy,
        "initContainers": [
            {"name": "i", "image": "b"}, {"name": "s", "image": "b", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "d", "image": "b"}, {"name": "c", "image": "b"}],
        "ephemeralContainers": [{"name": "e", "image": "b"}],
    }))
}

fn any_runs() -> impl Strategy<Value = Vec<Container>> {
    let runs = prop::collection::vec(("[iscdex]", 0u32..3, any_state()), 0..6);
    runs.prop_map(|runs| {
        runs.into_iter().map(|(name, count, state)| run(&name, count, state)).collect()
    })
}

proptest! {
    #[test]
    fn status_final_phase_is_kept_and_each_container_has_one_status(
        policy in "(Always|OnFailure|Never)",
        steps in prop::collection::vec((any_runs(), any::<bool>(), any::<bool>()), 1..5),
    ) {
        let pod = crowded(&policy);
        let verdict = Verdict::failed("Evicted", "why");
        let mut previous = PodStatus::default();
        for (runs, terminal, decided) in steps {
            let verdict = decided.then(|| verdict.clone());
            let context = Context { terminal, verdict, ..Context::default() };
            let reported = status(&pod, &seen(runs.clone()), &previous, &context, at(9));
            if is_final(previous.phase.as_deref().unwrap_or_default()) {
                prop_assert_eq!(&reported.phase, &previous.phase);
                prop_assert_eq!(&reported.reason, &previous.reason);
            } else if is_final(phase(&reported)) {
                prop_assert!(terminal || !runs.iter().any(Container::may_run));
            }
            prop_assert!(!terminal || is_final(phase(&reported)));
            let names = |list: &Option<Vec<_>>| -> Vec<String> {
                let list: &[k8s_openapi::api::core::v1::ContainerStatus] = list.as_deref().unwrap();
                list.iter().map(|status| status.name.clone()).collect()
            };
            prop_assert_eq!(names(&reported.init_container_statuses), ["i", "s"]);
            prop_assert_eq!(names(&reported.container_statuses), ["c", "d"]);
            prop_assert_eq!(names(&reported.ephemeral_container_statuses), ["e"]);
            let ready = condition(&reported, "Ready").0 == "True";
            // An init container that has not exited beside running regular ones cannot be: the
            // phase follows the one then, and readiness the others.
            let initializing = runs.iter().any(|run| run.name == "i" && run.exit_code().is_none());
            prop_assert!(!ready || phase(&reported) == "Running" || initializing);
            previous = reported;
        }
    }

    #[test]
    fn status_is_idempotent(
        policy in "(Always|OnFailure|Never)",
        runs in prop::collection::vec(("[ic]", 0u32..3, any_state()), 0..4),
        sandboxes in 0usize..2,
    ) {
        let pod = pod(json!({
            "restartPolicy": policy,
            "initContainers": [{"name": "i", "image": "b"}],
            "containers": [{"name": "c", "image": "b"}],
        }));
        let mut observed = seen(runs.into_iter().map(|(name, count, state)| run(&name, count, state)).collect());
        observed.sandboxes.truncate(sandboxes);
        let first = status_of(&pod, &observed, &PodStatus::default(), &[]);
        let second = status_of(&pod, &observed, &first, &[]);
        prop_assert_eq!(first, second);
    }
}
