//! `RestartAllContainers`.

use super::*;

/// A pod whose containers all restart when one exits with 42.
fn pod_of(kinds: &[(&str, &str)]) -> Pod {
    let (mut init, mut regular) = (Vec::new(), Vec::new());
    for (kind, name) in kinds {
        let policy = if *kind == "sidecar" { "Always" } else { "Never" };
        let container = json!({
            "name": name, "image": "i", "restartPolicy": policy,
            "restartPolicyRules": [{
                "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]},
            }],
        });
        if *kind == "regular" { &mut regular } else { &mut init }.push(container);
    }
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"restartPolicy": "Never", "initContainers": init, "containers": regular},
    }))
    .unwrap()
}

fn resets(pod: &Pod, seen: &ObservedPod) -> Vec<String> {
    let plan = planned(pod, seen, &no_delays(), at(20));
    assert!(!plan.is_idle());
    assert_eq!((short(&plan), plan.waiting.len()), (vec![], 0), "nothing else with it");
    let text = |reset: &Reset| format!("{}{}", if reset.kill { "kill " } else { "" }, reset.id);
    plan.reset.iter().map(text).collect()
}

#[test]
fn reset_removes_the_exited_container_last() {
    let pod = pod_of(&[("init", "i"), ("sidecar", "s"), ("regular", "a"), ("regular", "b")]);
    let seen = |ends: &str| {
        let state = |name: &str| if name == ends { exited(42) } else { running() };
        let mut runs: Vec<_> = ["s", "a", "b"].map(|n| run(n, 0, 1, state(n))).into();
        runs.push(run("i", 0, 0, if ends == "i" { exited(42) } else { exited(0) }));
        runs.push(run("a", 0, 0, exited(1)));
        observed(vec![sandbox(0, true)], runs)
    };
    assert_eq!(resets(&pod, &seen("a")), ["a0", "kill b1", "i0", "kill s1", "a1"]);
    assert_eq!(resets(&pod, &seen("s")), ["kill a1", "a0", "kill b1", "i0", "s1"]);
    assert_eq!(resets(&pod, &seen("i")), ["kill a1", "a0", "kill b1", "kill s1", "i0"]);
}

#[test]
fn reset_starts_again_with_the_first_init_container() {
    let pod = pod_of(&[("init", "i"), ("regular", "a")]);
    assert_eq!(steps(&pod, &observed(vec![sandbox(0, true)], vec![])), ["start i new"]);
}

#[test]
fn reset_requires_a_matching_exit_code() {
    let pod = pod_of(&[("regular", "a"), ("regular", "b")]);
    let runs = vec![run("a", 0, 0, exited(41)), run("b", 0, 0, running())];
    assert!(steps(&pod, &observed(vec![sandbox(0, true)], runs)).is_empty());
    // An earlier exit that was followed by another run does not count.
    let runs =
        vec![run("a", 0, 1, running()), run("a", 0, 0, exited(42)), run("b", 0, 0, running())];
    assert!(steps(&pod, &observed(vec![sandbox(0, true)], runs)).is_empty());
}

#[test]
fn reset_comes_before_a_new_sandbox() {
    let pod = pod_of(&[("regular", "a"), ("regular", "b")]);
    let runs = vec![run("a", 0, 0, exited(42)), run("b", 0, 0, exited(0))];
    let lost = observed(vec![sandbox(0, false)], runs);
    assert_eq!(resets(&pod, &lost), ["b0", "a0"]);
    assert_eq!(steps(&pod, &observed(vec![sandbox(0, false)], vec![])), ["sandbox 1"]);
}
