//! Names, labels and taints.

use serde_json::{Value, json};

use super::super::*;
use super::{decide_on, made_static, node_with, pod, refusal};

fn affinity(term: Value) -> Pod {
    affinity_of(json!([term]))
}

fn affinity_of(terms: Value) -> Pod {
    let key = "requiredDuringSchedulingIgnoredDuringExecution";
    pod(json!({"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": terms}}}}))
}

fn expression(key: &str, operator: &str, values: Value) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

fn field(operator: &str, values: Value) -> Value {
    json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]})
}

#[test]
fn node_affinity_matches_labels_and_name() {
    let node = node_with(json!({"disk": "ssd", "cores": "8"}), json!([]));
    for (pod, fits) in [
        (pod(json!({"nodeSelector": {"disk": "ssd"}})), true),
        (pod(json!({"nodeSelector": {"disk": "ssd", "cores": "9"}})), false),
        (pod(json!({"nodeSelector": {"none": ""}})), false),
        (affinity(expression("disk", "In", json!(["hdd", "ssd"]))), true),
        (affinity(expression("disk", "In", json!(["hdd"]))), false),
        (affinity(expression("none", "In", json!(["hdd"]))), false),
        (affinity(expression("disk", "In", json!([]))), false),
        (affinity(expression("disk", "NotIn", json!(["ssd"]))), false),
        (affinity(expression("none", "NotIn", json!(["ssd"]))), true),
        (affinity(expression("none", "NotIn", json!([]))), false),
        (affinity(expression("disk", "Exists", json!([]))), true),
        (affinity(expression("disk", "Exists", json!(["ssd"]))), false),
        (affinity(expression("disk", "DoesNotExist", json!([]))), false),
        (affinity(expression("none", "DoesNotExist", json!([]))), true),
        (affinity(expression("cores", "Gt", json!(["7"]))), true),
        (affinity(expression("cores", "Gt", json!(["8"]))), false),
        (affinity(expression("cores", "Lt", json!(["9"]))), true),
        (affinity(expression("cores", "Lt", json!(["8"]))), false),
        (affinity(expression("disk", "Gt", json!(["1"]))), false),
        (affinity(expression("none", "Lt", json!(["1"]))), false),
        (affinity(expression("cores", "Gt", json!(["many"]))), false),
        (affinity(expression("cores", "Gt", json!(["1", "2"]))), false),
        (affinity(expression("cores", "Near", json!(["8"]))), false),
        (affinity(field("In", json!(["n"]))), true),
        (affinity(field("In", json!(["m"]))), false),
        (affinity(field("In", json!(["n", "m"]))), false),
        (affinity(field("NotIn", json!(["m"]))), true),
        (affinity(field("NotIn", json!(["n"]))), false),
        (affinity(field("Exists", json!([]))), false),
        // Terms are alternatives, and an empty one matches nothing.
        (affinity(json!({})), false),
        (affinity_of(json!([])), false),
        (affinity_of(json!([{}, expression("disk", "Exists", json!([]))])), true),
        (
            affinity_of(json!([
                expression("cores", "Near", json!([])),
                expression("disk", "Exists", json!([])),
            ])),
            true,
        ),
        // Requirements of one term are all required.
        (
            affinity(json!({
                "matchExpressions": expression("disk", "Exists", json!([]))["matchExpressions"],
                "matchFields": field("In", json!(["m"]))["matchFields"],
            })),
            false,
        ),
    ] {
        let expected = (!fits).then(|| {
            let message =
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
            ("NodeAffinity".to_owned(), message.to_owned())
        });
        assert_eq!(refusal(&pod, &node, &Ledger::default()), expected, "{:?}", pod.spec);
    }
}

#[test]
fn node_name_of_another_node_is_rejected() {
    let node = node_with(json!({}), json!([]));
    assert_eq!(refusal(&pod(json!({"nodeName": "n"})), &node, &Ledger::default()), None);
    let message = "Predicate NodeName failed: node(s) didn't match the requested node name";
    assert_eq!(
        refusal(&pod(json!({"nodeName": "m"})), &node, &Ledger::default()),
        Some(("NodeName".to_owned(), message.to_owned()))
    );
}

#[test]
fn taints_with_no_execute_reject_pods() {
    let taint = |effect: &str| json!([{"key": "k", "value": "5", "effect": effect}]);
    let tolerating = |toleration: Value| pod(json!({"tolerations": [toleration]}));
    let message =
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let refused = Some(("TaintToleration".to_owned(), message.to_owned()));
    for (effect, pod, fits) in [
        ("NoSchedule", pod(json!({})), true),
        ("PreferNoSchedule", pod(json!({})), true),
        ("NoExecute", pod(json!({})), false),
        ("NoExecute", made_static(pod(json!({}))), true),
        ("NoExecute", tolerating(json!({"operator": "Exists"})), true),
        ("NoExecute", tolerating(json!({"key": "k", "operator": "Exists"})), true),
        ("NoExecute", tolerating(json!({"key": "l", "operator": "Exists"})), false),
        ("NoExecute", tolerating(json!({"key": "k", "value": "5"})), true),
        ("NoExecute", tolerating(json!({"key": "k", "operator": "Equal", "value": "6"})), false),
        (
            "NoExecute",
            tolerating(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"})),
            false,
        ),
        ("NoExecute", tolerating(json!({"key": "k", "operator": "Gt", "value": "4"})), false),
    ] {
        let expected = refused.clone().filter(|_| !fits);
        let node = node_with(json!({}), taint(effect));
        assert_eq!(refusal(&pod, &node, &Ledger::default()), expected, "{effect} {:?}", pod.spec);
    }
    // With the gate, numbers are compared.
    let node = node_with(json!({}), taint("NoExecute"));
    let view = NodeView::new(&node, &node);
    let able = NodeCapabilities { toleration_comparisons: true, ..super::capabilities() };
    for (operator, value, fits) in
        [("Gt", "4", true), ("Gt", "5", false), ("Lt", "6", true), ("Lt", "06", false)]
    {
        let pod = tolerating(json!({"key": "k", "operator": operator, "value": value}));
        let terms = AdmissionContext {
            capabilities: &able,
            node: &view,
            ledger: &Ledger::default(),
            pressure: NodePressure::default(),
        };
        let admitted = matches!(decide(&pod, &terms, |_| Ok(())), Decision::Admit { .. });
        assert_eq!(admitted, fits, "{operator} {value}");
    }
}

#[test]
fn admission_marks_rejections_by_labels_only() {
    let node = node_with(json!({}), json!([]));
    for (spec, expected) in [
        (json!({"nodeSelector": {"a": "b"}}), true),
        (json!({"nodeSelector": {"a": "b"}, "nodeName": "m"}), false),
        (json!({"os": {"name": "windows"}}), false),
    ] {
        let ledger = Ledger::default();
        match decide_on(&pod(spec.clone()), &node, &ledger, NodePressure::default()) {
            Decision::Reject { by_labels, .. } => assert_eq!(by_labels, expected, "{spec}"),
            Decision::Admit { .. } => panic!("{spec} is taken in"),
        }
    }
}
