//! Conditions of pods.

use super::*;

fn message(status: &PodStatus, type_: &str) -> String {
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap();
    condition.message.clone().unwrap_or_default()
}

#[test]
fn they_come_in_one_order_and_say_which_generation_they_saw() {
    let mut pod = one_container("Always");
    let others = json!({"conditions": [{"type": "example.com/x", "status": "True"}]});
    pod.status = serde_json::from_value(others).unwrap();
    let told = tell(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    let conditions = told.conditions.unwrap();
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
fn who_is_not_ready_is_named() {
    let pod = pod(json!({
        "initContainers": [{"name": "i", "image": "b"}, {"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "b"}, {"name": "c", "image": "b"}],
    }));
    let told = tell(&pod, &seen(vec![run("i", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(message(&told, "Initialized"), "containers with incomplete status: [i s]");
    assert_eq!(message(&told, "ContainersReady"), "containers with unready status: [s a c]");
    assert_eq!(message(&told, "Ready"), "containers with unready status: [s a c]");
    let up = ["s", "a"].map(|name| run(name, 0, running()));
    let mut runs = vec![run("i", 0, exited(0))];
    runs.extend(up);
    let told = tell(&pod, &seen(runs), &told, &[]);
    assert_eq!(condition(&told, "Initialized"), ("True", ""));
    assert_eq!(message(&told, "Ready"), "containers with unready status: [c]");
}

#[test]
fn an_end_has_its_reasons() {
    for (code, reason, initialized) in
        [(0, "PodCompleted", ("True", "PodCompleted")), (1, "PodFailed", ("True", ""))]
    {
        let told = tell(
            &one_container("Never"),
            &seen(vec![run("c", 0, exited(code))]),
            &PodStatus::default(),
            &[],
        );
        assert_eq!(condition(&told, "Ready"), ("False", reason));
        assert_eq!(condition(&told, "ContainersReady"), ("False", reason));
        assert_eq!(condition(&told, "Initialized"), initialized);
    }
}

#[test]
fn a_sandbox_that_is_lost_is_told() {
    let pod = one_container("Always");
    let mut observed = seen(vec![run("c", 0, running())]);
    let up = tell(&pod, &observed, &PodStatus::default(), &[]);
    assert_eq!(condition(&up, "PodReadyToStartContainers"), ("True", ""));
    observed.sandboxes[0].ready = false;
    let down = tell(&pod, &observed, &up, &[]);
    assert_eq!(condition(&down, "PodReadyToStartContainers"), ("False", ""));
}

#[test]
fn what_is_initialized_stays_so() {
    let pod = pod(json!({
        "initContainers": [{"name": "s", "image": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "b"}],
    }));
    let both = vec![run("s", 0, running()), run("c", 0, running())];
    let up = tell(&pod, &seen(both), &PodStatus::default(), &[]);
    let down = vec![run("s", 0, exited(1)), run("c", 0, exited(1))];
    let again =
        tell(&pod, &seen(down), &up, &[("s", "CrashLoopBackOff"), ("c", "CrashLoopBackOff")]);
    assert_eq!(condition(&again, "Initialized"), ("True", ""));
}

#[test]
fn gates_that_are_shut_are_named() {
    let mut gated = one_container("Always");
    let gates = json!([{"conditionType": "a"}, {"conditionType": "b"}, {"conditionType": "c"}]);
    gated.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
    let told =
        json!({"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}]});
    gated.status = serde_json::from_value(told).unwrap();
    let told = tell(&gated, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(condition(&told, "Ready"), ("False", "ReadinessGatesNotReady"));
    assert_eq!(
        message(&told, "Ready"),
        "the status of pod readiness gate \"b\" is not \"True\", but False, corresponding condition of pod readiness gate \"c\" does not exist."
    );
}

#[test]
fn disruptions_that_others_told_are_kept() {
    let mut pod = one_container("Always");
    let told = json!({"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
    ]});
    pod.status = serde_json::from_value(told).unwrap();
    let told = tell(&pod, &seen(vec![run("c", 0, running())]), &PodStatus::default(), &[]);
    assert_eq!(condition(&told, "DisruptionTarget"), ("True", "EvictionByEvictionAPI"));
}

#[test]
fn a_pod_that_is_not_taken_in_has_failed() {
    let verdict = Verdict::failed("SysctlForbidden", "forbidden sysctl: \"x\" not allowlisted");
    let told = rejected(&one_container("Always"), &verdict, at(5));
    assert_eq!((phase(&told), told.reason.as_deref()), ("Failed", Some("SysctlForbidden")));
    let message = "Pod was rejected: forbidden sysctl: \"x\" not allowlisted";
    assert_eq!(told.message.as_deref(), Some(message));
    assert_eq!((told.start_time, told.observed_generation), (Some(Time(at(5))), Some(3)));
}
