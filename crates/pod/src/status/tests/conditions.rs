//! Conditions of pods.

use super::*;

fn message(status: &PodStatus, type_: &str) -> String {
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap();
    condition.message.clone().unwrap_or_default()
}

#[test]
fn conditions_have_a_fixed_order_and_the_observed_generation() {
    let mut pod = one_container("Always");
    let others = json!({"conditions": [{"type": "example.com/x", "status": "True"}]});
    pod.status = serde_json::from_value(others).unwrap();
    let reported = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let conditions = reported.conditions.unwrap();
    let types: Vec<_> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        types,
        [
            "example.com/x",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
    assert!(conditions[1..].iter().all(|c| c.observed_generation == Some(3)));
}

#[test]
fn conditions_name_unready_containers() {
    let pod = pod(json!({
        "initContainers": [{"name": "i", "image": "b"}, {"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "b"}, {"name": "c", "image": "b"}],
    }));
    let reported = status_of(&pod, &seen(vec![run("i", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(message(&reported, "Initialized"), "containers with incomplete status: [i s]");
    assert_eq!(message(&reported, "ContainersReady"), "containers with unready status: [s a c]");
    assert_eq!(message(&reported, "Ready"), "containers with unready status: [s a c]");
    let up = ["s", "a"].map(|name| run(name, 0, running()));
    let mut runs = vec![run("i", 0, exited(0))];
    runs.extend(up);
    let reported = status_of(&pod, &seen(runs), &reported, &[]);
    assert_eq!(condition(&reported, "Initialized"), ("True", ""));
    assert_eq!(message(&reported, "Ready"), "containers with unready status: [c]");
}

#[test]
fn conditions_of_finished_pods_have_reasons() {
    for (code, reason, initialized) in
        [(0, "PodCompleted", ("True", "PodCompleted")), (1, "PodFailed", ("True", ""))]
    {
        let reported = status_of(
            &one_container("Never"),
            &seen(vec![run("c", 0, exited(code))]),
            &PodStatus::default(),
            &[],
        );
        assert_eq!(condition(&reported, "Ready"), ("False", reason));
        assert_eq!(condition(&reported, "ContainersReady"), ("False", reason));
        assert_eq!(condition(&reported, "Initialized"), initialized);
    }
}

#[test]
fn condition_pod_ready_to_start_is_false_without_a_sandbox() {
    let pod = one_container("Always");
    let mut observed = seen(vec![run("c", 0, running())]);
    let up = status_of(&pod, &observed, &PodStatus::default(), &[]);
    assert_eq!(condition(&up, "PodReadyToStartContainers"), ("True", ""));
    observed.sandboxes[0].ready = false;
    let down = status_of(&pod, &observed, &up, &[]);
    assert_eq!(condition(&down, "PodReadyToStartContainers"), ("False", ""));
}

#[test]
fn condition_initialized_stays_true() {
    let pod = pod(json!({
        "initContainers": [{"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let both = vec![run("s", 0, running()), run("c", 0, running())];
    let up = status_of(&pod, &seen(both), &PodStatus::default(), &[]);
    let down = vec![run("s", 0, exited(1)), run("c", 0, exited(1))];
    let again =
        status_of(&pod, &seen(down), &up, &[("s", "CrashLoopBackOff"), ("c", "CrashLoopBackOff")]);
    assert_eq!(condition(&again, "Initialized"), ("True", ""));
}

#[test]
fn condition_ready_names_failed_readiness_gates() {
    let mut gated = one_container("Always");
    let gates = json!([{"conditionType": "a"}, {"conditionType": "b"}, {"conditionType": "c"}]);
    gated.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
    let reported =
        json!({"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}]});
    gated.status = serde_json::from_value(reported).unwrap();
    let reported =
        status_of(&gated, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(condition(&reported, "Ready"), ("False", "ReadinessGatesNotReady"));
    assert_eq!(
        message(&reported, "Ready"),
        "the status of pod readiness gate \"b\" is not \"True\", but False, corresponding condition of pod readiness gate \"c\" does not exist."
    );
}

#[test]
fn condition_disruption_target_of_others_is_kept() {
    let mut pod = one_container("Always");
    let reported = json!({"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
    ]});
    pod.status = serde_json::from_value(reported).unwrap();
    let reported = status_of(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(condition(&reported, "DisruptionTarget"), ("True", "EvictionByEvictionAPI"));
}

#[test]
fn status_of_a_rejected_pod_is_failed() {
    let verdict = Verdict::failed("SysctlForbidden", "forbidden sysctl: \"x\" not allowlisted");
    let reported = rejected(&one_container("Always"), &verdict, at(5));
    assert_eq!((phase(&reported), reported.reason.as_deref()), ("Failed", Some("SysctlForbidden")));
    let message = "Pod was rejected: forbidden sysctl: \"x\" not allowlisted";
    assert_eq!(reported.message.as_deref(), Some(message));
    assert_eq!((reported.start_time, reported.observed_generation), (Some(Time(at(5))), Some(3)));
}
