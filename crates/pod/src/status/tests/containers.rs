//! Statuses of containers, field by field.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};

use super::*;
use crate::observed::User;
use crate::probes::{ProbeKind, ProbeResult};

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

fn probed(results: &[(ProbeKind, ProbeResult)]) -> ProbeResults {
    let mut probes = ProbeResults::default();
    for (kind, result) in results {
        probes.set("c0", *kind, *result);
    }
    probes
}

#[test]
fn status_started_and_ready_follow_probes_and_hooks() {
    use ProbeKind::{Readiness, Startup};
    use ProbeResult::{Failure, Success, Unknown};
    let probe = json!({"tcpSocket": {"port": 1}});
    let container = json!({
        "name": "c", "image": "b", "startupProbe": probe, "readinessProbe": probe,
    });
    let pod = pod(json!({"containers": [container]}));
    let reported = |results: &[(ProbeKind, ProbeResult)], hook: bool, previous: &PodStatus| {
        let context = Context {
            probes: &probed(results),
            starting: if hook { HashSet::from(["c".to_owned()]) } else { HashSet::new() },
            runtime: "containerd",
            ..Context::default()
        };
        status(&pod, &seen(vec![run("c", 0, running())]), previous, &context, at(1))
    };
    let none = PodStatus::default();
    for (results, hook, expected) in [
        (&[][..], false, (false, false)),
        (&[(Startup, Unknown), (Readiness, Success)][..], false, (false, false)),
        (&[(Startup, Failure)][..], false, (false, false)),
        (&[(Startup, Success)][..], false, (true, false)),
        (&[(Startup, Success), (Readiness, Failure)][..], false, (true, false)),
        (&[(Startup, Success), (Readiness, Success)][..], false, (true, true)),
        (&[(Startup, Success), (Readiness, Success)][..], true, (false, false)),
    ] {
        let status = reported(results, hook, &none);
        let container = regular(&status);
        assert_eq!((container.started == Some(true), container.ready), expected, "{results:?}");
        let ready = if expected.1 { "True" } else { "False" };
        assert_eq!(condition(&status, "Ready").0, ready);
    }
    // A restarted daemon takes the last status of the same run until there are probe results.
    let up = reported(&[(Startup, Success), (Readiness, Success)], false, &none);
    assert!(regular(&reported(&[], false, &up)).ready);
    assert!(!regular(&reported(&[(Readiness, Failure)], false, &up)).ready);
    let mut other = up.clone();
    other.container_statuses.as_mut().unwrap()[0].container_id = Some("containerd://c9".into());
    let another = reported(&[], false, &other);
    assert_eq!((regular(&another).started, regular(&another).ready), (Some(false), false));
}

#[test]
fn status_of_stopped_containers_is_neither_started_nor_ready() {
    let pod = one_container("Always");
    let up = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert!(regular(&up).ready);
    for observed in [seen(vec![run("c", 0, exited(0))]), seen(vec![]), ObservedPod::default()] {
        let down = status_of(&pod, &observed, &up, &[]);
        assert_eq!((regular(&down).started, regular(&down).ready), (Some(false), false));
    }
}

#[test]
fn status_keeps_readiness_during_termination() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let mut pod =
        pod(json!({"containers": [{"name": "c", "image": "b", "readinessProbe": probe}]}));
    pod.metadata.deletion_timestamp = Some(Time(at(0)));
    for (result, expected) in [(ProbeResult::Success, true), (ProbeResult::Failure, false)] {
        let probes = probed(&[(ProbeKind::Readiness, result)]);
        let context = Context { probes: &probes, ..Context::default() };
        let observed = seen(vec![run("c", 0, running())]);
        let reported = status(&pod, &observed, &PodStatus::default(), &context, at(1));
        assert_eq!(regular(&reported).ready, expected);
    }
}

#[test]
fn status_of_init_containers_and_sidecars() {
    let pod = pod(json!({
        "restartPolicy": "Always",
        "initContainers": [{"name": "i", "image": "b"}, {"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let none = PodStatus::default();
    let reported = status_of(&pod, &seen(vec![run("i", 0, running())]), &none, &[]);
    assert_eq!((init(&reported, 0).started, init(&reported, 0).ready), (Some(true), false));
    assert_eq!(wait(init(&reported, 1)), Some("PodInitializing"));
    assert_eq!(wait(regular(&reported)), Some("PodInitializing"));
    let reported =
        status_of(&pod, &seen(vec![run("s", 0, running()), run("i", 0, exited(0))]), &none, &[]);
    assert_eq!((init(&reported, 0).started, init(&reported, 0).ready), (Some(false), true));
    assert_eq!((init(&reported, 1).started, init(&reported, 1).ready), (Some(true), true));
    // Without records: the sidecar starts again, and the init container has completed.
    let reported = status_of(&pod, &seen(vec![run("c", 0, running())]), &none, &[]);
    assert_eq!(end(&init(&reported, 0).state), Some((0, "Completed")));
    assert!(init(&reported, 0).ready);
    assert_eq!(wait(init(&reported, 1)), Some("PodInitializing"));
}

#[test]
fn status_keeps_the_last_failure_visible() {
    let pod = one_container("Always");
    let none = PodStatus::default();
    for reason in ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"] {
        let reported = status_of(&pod, &seen(vec![]), &none, &[("c", reason)]);
        assert_eq!(wait(regular(&reported)), Some(reason));
        assert_eq!(regular(&reported).container_id, None);
        assert_eq!(phase(&reported), "Pending");
    }
    // With an earlier run, its termination state and id stay.
    let reported =
        status_of(&pod, &seen(vec![run("c", 2, exited(3))]), &none, &[("c", "CrashLoopBackOff")]);
    let container = regular(&reported);
    assert_eq!(container.container_id.as_deref(), Some("containerd://c2"));
    assert_eq!((wait(container), container.restart_count), (Some("CrashLoopBackOff"), 2));
    assert_eq!(end(&container.last_state), Some((3, "Error")));
    assert_eq!(container.image_id, "sha256:1");
    // A running container does not wait, and neither does one that is done.
    let up = status_of(
        &pod,
        &seen(vec![run("c", 3, running())]),
        &reported,
        &[("c", "CrashLoopBackOff")],
    );
    assert_eq!(wait(regular(&up)), None);
    let never = one_container("Never");
    let over = status_of(&never, &seen(vec![run("c", 0, exited(1))]), &none, &[("c", "RunError")]);
    assert_eq!(end(&regular(&over).state), Some((1, "Error")));
}

#[test]
fn status_counts_a_run_of_unknown_state_as_terminated_once() {
    let pod = one_container("Always");
    let up = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let unknown = seen(vec![run("c", 0, State::Unknown)]);
    let lost = status_of(&pod, &unknown, &up, &[]);
    assert_eq!(end(&regular(&lost).state), Some((137, "ContainerStatusUnknown")));
    assert_eq!(regular(&lost).restart_count, 1);
    assert_eq!(status_of(&pod, &unknown, &lost, &[]), lost);
    let next = vec![run("c", 1, running()), run("c", 0, State::Unknown)];
    let next = status_of(&pod, &seen(next), &lost, &[]);
    assert_eq!(end(&regular(&next).last_state), Some((137, "ContainerStatusUnknown")));
    assert_eq!(regular(&next).restart_count, 2);
}

#[test]
fn status_fields_of_a_container() {
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
    let reported = |recursive_read_only, container_stop_signals, observed: &ObservedPod| {
        let gates = Gates { container_stop_signals, ..Gates::default() };
        let context = Context { recursive_read_only, gates, ..Context::default() };
        let reported = status(&pod, observed, &PodStatus::default(), &context, at(1));
        serde_json::to_value(regular(&reported)).unwrap()
    };
    let observed = seen(vec![container]);
    let shown = reported(false, false, &observed);
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

    let able = reported(true, true, &observed);
    assert_eq!(able["stopSignal"], "SIGINT");
    let mut expected = writable.to_vec();
    expected.extend([mount("/r", "Disabled"), mount("/d", "Enabled"), mount("/e", "Enabled")]);
    assert_eq!(able["volumeMounts"], json!(expected));

    let waiting = reported(false, false, &seen(vec![]));
    assert_eq!((&waiting["resources"], &waiting["user"]), (&Value::Null, &Value::Null));
    assert_eq!(waiting["volumeMounts"], shown["volumeMounts"]);
}

#[test]
fn status_resources_of_the_pod() {
    let pod = pod(json!({"containers": [
        {"name": "c", "image": "b", "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}}},
    ]}));
    let reported = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let requests = json!({"cpu": "100m", "memory": "1Mi"});
    assert_eq!(serde_json::to_value(&reported.allocated_resources).unwrap(), requests);
    assert_eq!(serde_json::to_value(&reported.resources).unwrap(), json!({"requests": requests}));
}

#[test]
fn status_of_ephemeral_containers_does_not_affect_the_pod() {
    let mut pod = one_container("Always");
    let ephemeral = json!([{"name": "f", "image": "b"}, {"name": "e", "image": "b"}]);
    pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(ephemeral).unwrap();
    let runs = vec![run("e", 0, exited(1)), run("c", 0, running())];
    let reported =
        status_of(&pod, &seen(runs), &PodStatus::default(), &[("f", "ErrImagePull"), ("e", "X")]);
    assert_eq!((phase(&reported), condition(&reported, "Ready").0), ("Running", "True"));
    let ephemeral = reported.ephemeral_container_statuses.as_ref().unwrap();
    let names: Vec<_> = ephemeral.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["e", "f"]);
    assert_eq!(end(&ephemeral[0].state), Some((1, "Error")), "it never runs again");
    assert_eq!(wait(&ephemeral[1]), Some("ErrImagePull"));
    assert!(ephemeral.iter().all(|container| !container.ready && container.started.is_none()));
    let forgotten = status_of(&pod, &seen(vec![run("c", 0, running())]), &reported, &[]);
    let ephemeral = forgotten.ephemeral_container_statuses.as_ref().unwrap();
    assert_eq!(end(&ephemeral[0].state), Some((1, "Error")));
}

#[test]
fn status_reports_restart_of_all_containers() {
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
    let up = status_of(&pod, &seen(both(running(), running())), &PodStatus::default(), &[]);
    assert_eq!(condition(&up, "AllContainersRestarting"), ("False", ""));
    let exited_run = status_of(&pod, &seen(both(exited(42), running())), &up, &[]);
    let begun = ("True", "RestartAllContainersStarted");
    assert_eq!(
        (phase(&exited_run), condition(&exited_run, "AllContainersRestarting")),
        ("Running", begun)
    );

    // The containers are removed one after the other, the one that requires it last.
    let half = status_of(&pod, &seen(vec![run("c", 0, exited(42))]), &exited_run, &[]);
    assert_eq!(status_of(&pod, &seen(vec![run("c", 0, exited(42))]), &half, &[]), half);
    assert_eq!((wait(init(&half, 0)), init(&half, 0).restart_count), begun_anew);
    assert_eq!((phase(&half), condition(&half, "AllContainersRestarting")), ("Running", begun));
    let removed = &half.container_statuses.as_ref().unwrap()[1];
    assert_eq!(wait(removed), Some("RestartingAllContainers"));
    assert_eq!(end(&removed.last_state), Some((137, "RestartingAllContainers")));
    assert_eq!(removed.restart_count, 1);
    let all = status_of(&pod, &seen(vec![]), &half, &[]);
    assert_eq!(
        (phase(&all), condition(&all, "AllContainersRestarting")),
        ("Running", ("False", ""))
    );
    for container in all.container_statuses.as_ref().unwrap() {
        assert_eq!(end(&container.last_state), Some((137, "RestartingAllContainers")));
        assert_eq!(container.restart_count, 1);
    }
    let runs = status_of(&pod, &seen(vec![run("i", 1, running())]), &all, &[]);
    assert_eq!(init(&runs, 0).restart_count, 1, "counted once");
    let again = status_of(&pod, &seen(both(running(), running())), &all, &[]);
    for container in again.container_statuses.as_ref().unwrap() {
        assert_eq!(end(&container.last_state), Some((137, "RestartingAllContainers")));
        assert_eq!(container.restart_count, 1, "whatever the runtime counts");
    }
}

#[test]
fn pod_ips_are_in_the_order_of_node_ip_families() {
    let reported = |pod: &Pod, host_ips: &[&str], ips: &[&str]| {
        let strings = |ips: &[&str]| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
        let mut observed = seen(vec![]);
        observed.sandboxes[0].ips = strings(ips);
        let host_ips = strings(host_ips);
        let context = Context { host_ips: &host_ips, ..Context::default() };
        let reported = status(pod, &observed, &PodStatus::default(), &context, at(1));
        let ips =
            reported.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect::<Vec<_>>();
        assert_eq!(reported.pod_ip.as_ref(), ips.first());
        assert_eq!(reported.host_ip.as_deref(), host_ips.first().map(String::as_str));
        ips
    };
    let pods = one_container("Always");
    let six = ["fd00::2", "10.0.0.2", "10.0.0.3"];
    assert_eq!(reported(&pods, &["192.0.2.1"], &six), ["10.0.0.2", "fd00::2"]);
    assert_eq!(reported(&pods, &["2001:db8::1", "192.0.2.1"], &six), ["fd00::2", "10.0.0.2"]);
    assert_eq!(reported(&pods, &[], &["fd00:0:0::2"]), ["fd00::2"]);
    let hosts = pod(json!({"hostNetwork": true, "containers": [{"name": "c", "image": "b"}]}));
    assert_eq!(reported(&hosts, &["192.0.2.1", "2001:db8::1"], &[]), ["192.0.2.1", "2001:db8::1"]);
}

/// The addresses of a pod in the host's network followed the node's.
#[test]
fn pod_ips_in_the_hosts_network_stay_as_they_are() {
    let strings = |ips: &[&str]| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
    let pod = pod(json!({"hostNetwork": true, "containers": [{"name": "c", "image": "b"}]}));
    let mut previous = PodStatus::default();
    for (host, pod_ips, host_ips) in [
        (&[][..], &[][..], &[][..]),
        (&["192.0.2.1"], &["192.0.2.1"], &["192.0.2.1"]),
        (
            &["192.0.2.2", "2001:db8::2"],
            &["192.0.2.1", "2001:db8::2"],
            &["192.0.2.2", "2001:db8::2"],
        ),
        (&["2001:db8::3"], &["192.0.2.1", "2001:db8::2"], &["2001:db8::3"]),
        // Unknown for a moment, as after a restart of the daemon.
        (&[], &["192.0.2.1", "2001:db8::2"], &["2001:db8::3"]),
    ] {
        let host = strings(host);
        let context = Context { host_ips: &host, ..Context::default() };
        previous = status(&pod, &seen(vec![]), &previous, &context, at(1));
        let of_pod = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone());
        assert_eq!(of_pod.collect::<Vec<_>>(), strings(pod_ips), "{host:?}");
        let of_host = previous.host_ips.iter().flatten().map(|ip| ip.ip.clone());
        assert_eq!(of_host.collect::<Vec<_>>(), strings(host_ips), "{host:?}");
        assert_eq!(previous.host_ip.as_deref(), host_ips.first().copied());
    }
}

#[test]
fn termination_messages_share_the_limit_of_the_pod() {
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
    let messages = ["x".repeat(4096), "\u{e4}".repeat(1500), "short".to_owned()];
    let runs = messages.iter().zip(0..).map(|(message, n)| run(&format!("c{n}"), 0, said(message)));
    let reported = status_of(&pod, &seen(runs.collect()), &PodStatus::default(), &[]);
    let statuses = reported.container_statuses.unwrap();
    let message =
        |index: usize| statuses[index].state.as_ref()?.terminated.as_ref()?.message.as_deref();
    assert_eq!(message(0), Some(&*"x".repeat(2048)));
    assert_eq!(message(1), Some(&*"\u{e4}".repeat(1024)));
    assert_eq!(message(2), Some("short"));
}

#[test]
fn status_start_time_of_a_container_that_never_started_is_the_epoch() {
    let failed = State::Exited {
        started_at: None,
        finished_at: at(2),
        exit_code: 128,
        reason: "StartError".into(),
        message: "no such file".into(),
    };
    let pod = one_container("Never");
    let reported = status_of(&pod, &seen(vec![run("c", 0, failed)]), &PodStatus::default(), &[]);
    let end = regular(&reported).state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.started_at.as_ref().unwrap().0, Timestamp::UNIX_EPOCH);
}

#[test]
fn status_shows_the_digests_of_images_that_are_volumes_with_their_gate() {
    let pod = pod(json!({
        "containers": [{"name": "c", "image": "b", "volumeMounts": [
            {"name": "i", "mountPath": "/i"}, {"name": "j", "mountPath": "/j"}, {"name": "v", "mountPath": "/v"},
        ]}],
        "volumes": [
            {"name": "i", "image": {"reference": "r"}}, {"name": "j", "image": {"reference": "r"}},
            {"name": "v", "emptyDir": {}},
        ],
    }));
    let mut container = run("c", 0, running());
    container.mounted_images = [("/i", "sha256:i".to_owned()), ("/j", "x".repeat(257))]
        .map(|(p, i)| (p.to_owned(), i))
        .into();
    let observed = seen(vec![container]);
    let shown = |image_volume_digests| {
        let gates = Gates { image_volume_digests, ..Gates::default() };
        let context = Context { gates, ..Context::default() };
        let reported = status(&pod, &observed, &PodStatus::default(), &context, at(1));
        let shown = serde_json::to_value(regular(&reported)).unwrap();
        [0, 1, 2].map(|index| shown["volumeMounts"][index]["volumeStatus"].clone())
    };
    let digest = json!({"image": {"imageRef": "sha256:i"}});
    assert_eq!(shown(true), [digest, Value::Null, Value::Null], "too long for the API");
    assert_eq!(shown(false), [Value::Null, Value::Null, Value::Null]);
}
