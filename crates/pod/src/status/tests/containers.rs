//! Statuses of containers, field by field.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};

use super::*;
use crate::observed::User;
use crate::probes::{Finding, ProbeKind};

fn regular(status: &PodStatus) -> &ContainerStatus {
    &status.container_statuses.as_ref().unwrap()[0]
}

fn init(status: &PodStatus, index: usize) -> &ContainerStatus {
    &status.init_container_statuses.as_ref().unwrap()[index]
}

fn wait(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

fn end(state: &Option<ContainerState>) -> Option<(i32, &str)> {
    let end = state.as_ref()?.terminated.as_ref()?;
    Some((end.exit_code, end.reason.as_deref().unwrap_or_default()))
}

fn probed(findings: &[(ProbeKind, Finding)]) -> ProbeResults {
    let mut probes = ProbeResults::default();
    for (kind, finding) in findings {
        probes.set("c0", *kind, *finding);
    }
    probes
}

#[test]
fn probes_and_hooks_decide_who_is_started_and_ready() {
    use Finding::{Failure, Success, Unknown};
    use ProbeKind::{Readiness, Startup};
    let probe = json!({"tcpSocket": {"port": 1}});
    let container = json!({
        "name": "c", "image": "b", "startupProbe": probe, "readinessProbe": probe,
    });
    let pod = pod(json!({"containers": [container]}));
    let told = |findings: &[(ProbeKind, Finding)], hook: bool, previous: &PodStatus| {
        let context = Context {
            probes: &probed(findings),
            starting: if hook { HashSet::from(["c".to_owned()]) } else { HashSet::new() },
            runtime: "containerd",
            ..Context::default()
        };
        status(&pod, &seen(vec![run("c", 0, running())]), previous, &context, at(1))
    };
    let none = PodStatus::default();
    for (findings, hook, expected) in [
        (&[][..], false, (false, false)),
        (&[(Startup, Unknown), (Readiness, Success)][..], false, (false, false)),
        (&[(Startup, Failure)][..], false, (false, false)),
        (&[(Startup, Success)][..], false, (true, false)),
        (&[(Startup, Success), (Readiness, Failure)][..], false, (true, false)),
        (&[(Startup, Success), (Readiness, Success)][..], false, (true, true)),
        (&[(Startup, Success), (Readiness, Success)][..], true, (false, false)),
    ] {
        let status = told(findings, hook, &none);
        let container = regular(&status);
        assert_eq!((container.started == Some(true), container.ready), expected, "{findings:?}");
        let ready = if expected.1 { "True" } else { "False" };
        assert_eq!(condition(&status, "Ready").0, ready);
    }
    // A daemon that begins knows what was told of the same run, until its probes say otherwise.
    let up = told(&[(Startup, Success), (Readiness, Success)], false, &none);
    assert!(regular(&told(&[], false, &up)).ready);
    assert!(!regular(&told(&[(Readiness, Failure)], false, &up)).ready);
    let mut other = up.clone();
    other.container_statuses.as_mut().unwrap()[0].container_id = Some("containerd://c9".into());
    let another = told(&[], false, &other);
    assert_eq!((regular(&another).started, regular(&another).ready), (Some(false), false));
}

#[test]
fn what_does_not_run_is_neither_started_nor_ready() {
    let pod = one_container("Always");
    let up = tell(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert!(regular(&up).ready);
    for observed in [seen(vec![run("c", 0, exited(0))]), seen(vec![]), ObservedPod::default()] {
        let down = tell(&pod, &observed, &up, &[]);
        assert_eq!((regular(&down).started, regular(&down).ready), (Some(false), false));
    }
}

#[test]
fn a_pod_that_ends_goes_on_telling_who_is_ready() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let mut pod =
        pod(json!({"containers": [{"name": "c", "image": "b", "readinessProbe": probe}]}));
    pod.metadata.deletion_timestamp = Some(Time(at(0)));
    for (finding, expected) in [(Finding::Success, true), (Finding::Failure, false)] {
        let probes = probed(&[(ProbeKind::Readiness, finding)]);
        let context = Context { probes: &probes, ..Context::default() };
        let observed = seen(vec![run("c", 0, running())]);
        let told = status(&pod, &observed, &PodStatus::default(), &context, at(1));
        assert_eq!(regular(&told).ready, expected);
    }
}

#[test]
fn init_containers_and_sidecars() {
    let pod = pod(json!({
        "restartPolicy": "Always",
        "initContainers": [{"name": "i", "image": "b"}, {"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let none = PodStatus::default();
    let told = tell(&pod, &seen(vec![run("i", 0, running())]), &none, &[]);
    assert_eq!((init(&told, 0).started, init(&told, 0).ready), (Some(true), false));
    assert_eq!(wait(init(&told, 1)), Some("PodInitializing"));
    assert_eq!(wait(regular(&told)), Some("PodInitializing"));
    let told = tell(&pod, &seen(vec![run("s", 0, running()), run("i", 0, exited(0))]), &none, &[]);
    assert_eq!((init(&told, 0).started, init(&told, 0).ready), (Some(false), true));
    assert_eq!((init(&told, 1).started, init(&told, 1).ready), (Some(true), true));
    // Forgotten by the runtime: the sidecar starts again, and the init container is history.
    let told = tell(&pod, &seen(vec![run("c", 0, running())]), &none, &[]);
    assert_eq!(end(&init(&told, 0).state), Some((0, "Completed")));
    assert!(init(&told, 0).ready);
    assert_eq!(wait(init(&told, 1)), Some("PodInitializing"));
}

#[test]
fn the_last_failure_stays_visible() {
    let pod = one_container("Always");
    let none = PodStatus::default();
    for reason in ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"] {
        let told = tell(&pod, &seen(vec![]), &none, &[("c", reason)]);
        assert_eq!(wait(regular(&told)), Some(reason));
        assert_eq!(regular(&told).container_id, None);
        assert_eq!(phase(&told), "Pending");
    }
    // With a history, its end and its id stay.
    let told = tell(&pod, &seen(vec![run("c", 2, exited(3))]), &none, &[("c", "CrashLoopBackOff")]);
    let container = regular(&told);
    assert_eq!(container.container_id.as_deref(), Some("containerd://c2"));
    assert_eq!((wait(container), container.restart_count), (Some("CrashLoopBackOff"), 2));
    assert_eq!(end(&container.last_state), Some((3, "Error")));
    assert_eq!(container.image_id, "sha256:1");
    // One that runs does not wait, and one that is over neither.
    let up = tell(&pod, &seen(vec![run("c", 3, running())]), &told, &[("c", "CrashLoopBackOff")]);
    assert_eq!(wait(regular(&up)), None);
    let never = one_container("Never");
    let over = tell(&never, &seen(vec![run("c", 0, exited(1))]), &none, &[("c", "RunError")]);
    assert_eq!(end(&regular(&over).state), Some((1, "Error")));
}

#[test]
fn a_run_whose_state_is_not_known_counts_as_ended_once() {
    let pod = one_container("Always");
    let up = tell(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let unknown = seen(vec![run("c", 0, State::Unknown)]);
    let lost = tell(&pod, &unknown, &up, &[]);
    assert_eq!(end(&regular(&lost).state), Some((137, "ContainerStatusUnknown")));
    assert_eq!(regular(&lost).restart_count, 1);
    assert_eq!(tell(&pod, &unknown, &lost, &[]), lost);
    let next = vec![run("c", 1, running()), run("c", 0, State::Unknown)];
    let next = tell(&pod, &seen(next), &lost, &[]);
    assert_eq!(end(&regular(&next).last_state), Some((137, "ContainerStatusUnknown")));
    assert_eq!(regular(&next).restart_count, 2);
}

#[test]
fn fields_of_a_container() {
    let pod = pod(json!({"containers": [{
        "name": "c", "image": "b",
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
        "volumeMounts": [
            {"name": "v", "mountPath": "/v"},
            {"name": "w", "mountPath": "/w", "readOnly": false},
            {"name": "r", "mountPath": "/r", "readOnly": true},
            {"name": "d", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "IfPossible"},
            {"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": "Enabled"},
        ],
    }]}));
    let mut container = run("c", 0, running());
    container.user = Some(User { uid: 1, gid: 2, groups: vec![2, 3] });
    container.stop_signal = Some("SIGINT".to_owned());
    let told = |recursive_read_only, container_stop_signals, observed: &ObservedPod| {
        let gates = Gates { container_stop_signals, ..Gates::default() };
        let context = Context { recursive_read_only, gates, ..Context::default() };
        let told = status(&pod, observed, &PodStatus::default(), &context, at(1));
        serde_json::to_value(regular(&told)).unwrap()
    };
    let observed = seen(vec![container]);
    let shown = told(false, false, &observed);
    assert_eq!(shown["resources"], json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}));
    assert_eq!(shown["allocatedResources"], json!({"cpu": "100m"}));
    assert_eq!(shown["user"], json!({"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2, 3]}}));
    assert_eq!(shown["stopSignal"], Value::Null, "its gate is off");
    let mount = |path: &str, mode: &str| json!({"name": &path[1..], "mountPath": path, "readOnly": true, "recursiveReadOnly": mode});
    let writable =
        [json!({"name": "v", "mountPath": "/v"}), json!({"name": "w", "mountPath": "/w"})];
    let mut expected = writable.to_vec();
    expected.extend([mount("/r", "Disabled"), mount("/d", "Disabled"), mount("/e", "Disabled")]);
    assert_eq!(shown["volumeMounts"], json!(expected));

    let able = told(true, true, &observed);
    assert_eq!(able["stopSignal"], "SIGINT");
    let mut expected = writable.to_vec();
    expected.extend([mount("/r", "Disabled"), mount("/d", "Enabled"), mount("/e", "Enabled")]);
    assert_eq!(able["volumeMounts"], json!(expected));

    let waiting = told(false, false, &seen(vec![]));
    assert_eq!((&waiting["resources"], &waiting["user"]), (&Value::Null, &Value::Null));
    assert_eq!(waiting["volumeMounts"], shown["volumeMounts"]);
}

#[test]
fn resources_of_the_pod() {
    let pod = pod(json!({"containers": [
        {"name": "c", "image": "b", "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}}},
    ]}));
    let told = tell(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let requests = json!({"cpu": "100m", "memory": "1Mi"});
    assert_eq!(serde_json::to_value(&told.allocated_resources).unwrap(), requests);
    assert_eq!(serde_json::to_value(&told.resources).unwrap(), json!({"requests": requests}));
}

#[test]
fn guests_have_statuses_and_no_say() {
    let mut pod = one_container("Always");
    let guests = json!([{"name": "f", "image": "b"}, {"name": "e", "image": "b"}]);
    pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(guests).unwrap();
    let runs = vec![run("e", 0, exited(1)), run("c", 0, running())];
    let told = tell(&pod, &seen(runs), &PodStatus::default(), &[("f", "ErrImagePull"), ("e", "X")]);
    assert_eq!((phase(&told), condition(&told, "Ready").0), ("Running", "True"));
    let guests = told.ephemeral_container_statuses.as_ref().unwrap();
    let names: Vec<_> = guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["e", "f"]);
    assert_eq!(end(&guests[0].state), Some((1, "Error")), "it never runs again");
    assert_eq!(wait(&guests[1]), Some("ErrImagePull"));
    assert!(guests.iter().all(|guest| !guest.ready && guest.started.is_none()));
    let forgotten = tell(&pod, &seen(vec![run("c", 0, running())]), &told, &[]);
    let guests = forgotten.ephemeral_container_statuses.as_ref().unwrap();
    assert_eq!(end(&guests[0].state), Some((1, "Error")));
}

#[test]
fn a_pod_that_starts_afresh_says_so() {
    let rules = json!([{
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]},
    }]);
    let pod = pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i", "image": "b"}],
        "containers": [
            {"name": "c", "image": "b", "restartPolicy": "Never", "restartPolicyRules": rules},
            {"name": "d", "image": "b"},
        ],
    }));
    let both = |c, d| vec![run("i", 0, exited(0)), run("c", 0, c), run("d", 0, d)];
    let begun_anew = (Some("RestartingAllContainers"), 1);
    let up = tell(&pod, &seen(both(running(), running())), &PodStatus::default(), &[]);
    assert_eq!(condition(&up, "AllContainersRestarting"), ("False", ""));
    let asked = tell(&pod, &seen(both(exited(42), running())), &up, &[]);
    let begun = ("True", "RestartAllContainersStarted");
    assert_eq!((phase(&asked), condition(&asked, "AllContainersRestarting")), ("Running", begun));

    // One after the other is removed, and who asked for it last.
    let half = tell(&pod, &seen(vec![run("c", 0, exited(42))]), &asked, &[]);
    assert_eq!(tell(&pod, &seen(vec![run("c", 0, exited(42))]), &half, &[]), half);
    assert_eq!((wait(init(&half, 0)), init(&half, 0).restart_count), begun_anew);
    assert_eq!((phase(&half), condition(&half, "AllContainersRestarting")), ("Running", begun));
    let removed = &half.container_statuses.as_ref().unwrap()[1];
    assert_eq!(wait(removed), Some("RestartingAllContainers"));
    assert_eq!(end(&removed.last_state), Some((137, "RestartingAllContainers")));
    assert_eq!(removed.restart_count, 1);
    let all = tell(&pod, &seen(vec![]), &half, &[]);
    assert_eq!(
        (phase(&all), condition(&all, "AllContainersRestarting")),
        ("Running", ("False", ""))
    );
    for container in all.container_statuses.as_ref().unwrap() {
        assert_eq!(end(&container.last_state), Some((137, "RestartingAllContainers")));
        assert_eq!(container.restart_count, 1);
    }
    let runs = tell(&pod, &seen(vec![run("i", 1, running())]), &all, &[]);
    assert_eq!(init(&runs, 0).restart_count, 1, "counted once");
    let again = tell(&pod, &seen(both(running(), running())), &all, &[]);
    for container in again.container_statuses.as_ref().unwrap() {
        assert_eq!(end(&container.last_state), Some((137, "RestartingAllContainers")));
        assert_eq!(container.restart_count, 1, "whatever the runtime counts");
    }
}

#[test]
fn addresses_come_in_the_order_of_the_nodes_families() {
    let told = |pod: &Pod, host_ips: &[&str], ips: &[&str]| {
        let strings = |ips: &[&str]| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
        let mut observed = seen(vec![]);
        observed.sandboxes[0].ips = strings(ips);
        let host_ips = strings(host_ips);
        let context = Context { host_ips: &host_ips, ..Context::default() };
        let told = status(pod, &observed, &PodStatus::default(), &context, at(1));
        let ips = told.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect::<Vec<_>>();
        assert_eq!(told.pod_ip.as_ref(), ips.first());
        assert_eq!(told.host_ip.as_deref(), host_ips.first().map(String::as_str));
        ips
    };
    let pods = one_container("Always");
    let six = ["fd00::2", "10.0.0.2", "10.0.0.3"];
    assert_eq!(told(&pods, &["192.0.2.1"], &six), ["10.0.0.2", "fd00::2"]);
    assert_eq!(told(&pods, &["2001:db8::1", "192.0.2.1"], &six), ["fd00::2", "10.0.0.2"]);
    assert_eq!(told(&pods, &[], &["fd00:0:0::2"]), ["fd00::2"]);
    let hosts = pod(json!({"hostNetwork": true, "containers": [{"name": "c", "image": "b"}]}));
    assert_eq!(told(&hosts, &["192.0.2.1", "2001:db8::1"], &[]), ["192.0.2.1", "2001:db8::1"]);
}

#[test]
fn last_words_share_what_a_pod_may_tell() {
    let containers: Vec<_> =
        (0..6).map(|n| json!({"name": format!("c{n}"), "image": "b"})).collect();
    let pod = pod(json!({"restartPolicy": "Never", "containers": containers}));
    let said = |message: &str| {
        let State::Exited { started_at, finished_at, exit_code, reason, .. } = exited(1) else {
            unreachable!()
        };
        let message = message.to_owned();
        State::Exited { started_at, finished_at, exit_code, reason, message }
    };
    let words = ["x".repeat(4096), "\u{e4}".repeat(1500), "short".to_owned()];
    let runs = words.iter().zip(0..).map(|(words, n)| run(&format!("c{n}"), 0, said(words)));
    let told = tell(&pod, &seen(runs.collect()), &PodStatus::default(), &[]);
    let statuses = told.container_statuses.unwrap();
    let message =
        |index: usize| statuses[index].state.as_ref()?.terminated.as_ref()?.message.as_deref();
    assert_eq!(message(0), Some(&*"x".repeat(2048)));
    assert_eq!(message(1), Some(&*"\u{e4}".repeat(1024)));
    assert_eq!(message(2), Some("short"));
}

#[test]
fn what_never_started_did_so_at_the_beginning_of_time() {
    let failed = State::Exited {
        started_at: None,
        finished_at: at(2),
        exit_code: 128,
        reason: "StartError".into(),
        message: "no such file".into(),
    };
    let pod = one_container("Never");
    let told = tell(&pod, &seen(vec![run("c", 0, failed)]), &PodStatus::default(), &[]);
    let end = regular(&told).state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.started_at.as_ref().unwrap().0, Timestamp::UNIX_EPOCH);
}
