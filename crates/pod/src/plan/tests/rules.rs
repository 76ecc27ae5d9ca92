//! Restart policies and rules of containers.

use serde_json::Value;

use super::*;

fn with_rules(pods: &str, kind: &str, policy: Value, rules: Value) -> Pod {
    let container =
        json!({"name": "x", "image": "i", "restartPolicy": policy, "restartPolicyRules": rules});
    let other = json!({"name": "b", "image": "i"});
    let (init, regular) = match kind {
        "init" => (json!([container]), json!([other])),
        _ => (json!([]), json!([container, other])),
    };
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"restartPolicy": pods, "initContainers": init, "containers": regular},
    }))
    .unwrap()
}

fn rule(operator: &str, codes: &[i32], action: &str) -> Value {
    json!([{"action": action, "exitCodes": {"operator": operator, "values": codes}}])
}

fn planned_at(pod: &Pod, exit_code: i32, gates: Gates) -> Vec<String> {
    let regular = spec::init_containers(pod.spec.as_ref().unwrap()).is_empty();
    let mut runs = vec![run("x", 0, 0, exited(exit_code))];
    if regular {
        runs.push(run("b", 0, 0, running()));
    }
    let backoff = no_delays();
    let seen = observed(vec![sandbox(0, true)], runs);
    short(&plan(
        pod,
        &seen,
        Inputs { gates, ..inputs(<&ProbeResults>::default(), &backoff, at(20)) },
    ))
}

#[test]
fn restart_rules_take_precedence_over_policies() {
    let on = Gates::default();
    for (pods, own, rules, exit_code, starts) in [
        ("Always", "Never", json!(null), 1, false),
        ("Never", "Always", json!(null), 0, true),
        ("Never", "OnFailure", json!(null), 0, false),
        ("Never", "OnFailure", json!(null), 1, true),
        ("Never", "Never", rule("In", &[42], "Restart"), 42, true),
        ("Never", "Never", rule("In", &[42], "Restart"), 1, false),
        ("Never", "Never", rule("NotIn", &[42], "Restart"), 1, true),
        ("Never", "Never", rule("NotIn", &[42], "Restart"), 42, false),
        ("Never", "Never", rule("NotIn", &[42], "Unheard"), 1, false),
        ("Never", "Never", rule("Between", &[1, 42], "Restart"), 1, false),
    ] {
        let pod = with_rules(pods, "regular", json!(own), rules.clone());
        let expected = if starts { vec!["start x 1"] } else { vec![] };
        assert_eq!(planned_at(&pod, exit_code, on), expected, "{pods} {own} {rules} {exit_code}");
    }
}

#[test]
fn restart_rules_apply_to_init_containers() {
    let on = Gates::default();
    for (pods, own, rules, exit_code, expected) in [
        ("Never", json!("OnFailure"), json!(null), 1, "start x 1"),
        ("Always", json!("Never"), json!(null), 1, "stop"),
        ("OnFailure", json!(null), json!(null), 1, "start x 1"),
        ("Never", json!(null), json!(null), 1, "stop"),
        ("Never", json!("Never"), rule("In", &[42], "Restart"), 42, "start x 1"),
        ("Never", json!("Never"), rule("In", &[42], "Restart"), 41, "stop"),
        // An init container that succeeded is not restarted.
        ("Never", json!("Never"), rule("In", &[0], "Restart"), 0, "start b new"),
        ("Always", json!(null), json!(null), 0, "start b new"),
    ] {
        let pod = with_rules(pods, "init", own.clone(), rules.clone());
        assert_eq!(planned_at(&pod, exit_code, on), [expected], "{pods} {own} {rules} {exit_code}");
    }
}

#[test]
fn restart_rules_need_their_feature_gate() {
    let off = Gates { container_restart_rules: false, ..Gates::default() };
    let pod = with_rules("Never", "regular", json!("Always"), rule("In", &[1], "Restart"));
    assert!(planned_at(&pod, 1, off).is_empty());
    let off = Gates { restart_all_containers: false, ..Gates::default() };
    let all = rule("In", &[1], "RestartAllContainers");
    assert!(
        planned_at(&with_rules("Always", "regular", json!("Never"), all.clone()), 1, off)
            .is_empty()
    );
    assert_eq!(
        planned_at(&with_rules("Never", "regular", json!("OnFailure"), all), 1, off),
        ["start x 1"],
        "the policy is what is left"
    );
}
