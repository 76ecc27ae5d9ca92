mod amounts;
mod capabilities;
mod fit;
mod placement;
mod preemption;
mod pressure;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;

fn capabilities() -> NodeCapabilities {
    NodeCapabilities {
        sysctls: Sysctls::new(&[], (6, 1)).unwrap(),
        app_armor: false,
        supplemental_groups_policy: false,
        pod_level_resources: true,
        toleration_comparisons: false,
        declared_features: None,
    }
}

fn node(value: Value) -> Node {
    serde_json::from_value(value).unwrap()
}

/// A node of 4 CPUs, 8 GiB and 10 pods, with these fields in its object.
fn node_with(labels: Value, taints: Value) -> Node {
    node(json!({
        "metadata": {"name": "n", "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {
            "cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "10",
            "hugepages-2Mi": "64Mi", "example.com/gpu": "2",
        }},
    }))
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    let metadata = json!({"name": "p", "uid": "u"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// A pod whose only container requests that.
fn with_requests(requests: Value) -> Pod {
    pod(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

fn with_priority(pod: Pod, priority: i32) -> Pod {
    let mut pod = pod;
    pod.spec.as_mut().unwrap().priority = Some(priority);
    pod
}

fn made_static(pod: Pod) -> Pod {
    let mut pod = pod;
    let source = [("kubernetes.io/config.source".to_owned(), "file".to_owned())];
    pod.metadata.annotations = Some(source.into());
    pod
}

fn decide_on(pod: &Pod, node: &Node, ledger: &Ledger, pressure: NodePressure) -> Decision {
    let view = NodeView::new(node, node);
    decide(
        pod,
        &AdmissionContext { capabilities: &capabilities(), node: &view, ledger, pressure },
        |_| Ok(()),
    )
}

/// Reason and message of the refusal, if it is one.
fn refusal(pod: &Pod, node: &Node, ledger: &Ledger) -> Option<(String, String)> {
    match decide_on(pod, node, ledger, NodePressure::default()) {
        Decision::Admit { .. } => None,
        Decision::Reject { verdict, .. } => {
            assert_eq!((verdict.phase.as_str(), &verdict.disruption), ("Failed", &None));
            Some((verdict.reason, verdict.message))
        }
    }
}

fn ledger(pods: &[Pod]) -> Ledger {
    let mut ledger = Ledger::default();
    for pod in pods {
        ledger.enter(Reservation::new(pod));
    }
    ledger
}

#[test]
fn admission_order_is_by_earlier_admission_then_age() {
    let pod = |name: &str, created: &str, status: Value| -> Pod {
        let metadata = json!({"name": name, "creationTimestamp": created});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    };
    let started = json!({"startTime": "2026-01-01T00:00:00Z", "phase": "Pending"});
    let over = json!({"startTime": "2026-01-01T00:00:00Z", "phase": "Failed"});
    let mut pods = [
        pod("new-young", "2026-01-02T00:00:00Z", json!({"phase": "Pending"})),
        pod("new-old", "2026-01-01T00:00:00Z", json!({})),
        pod("over", "2026-01-01T12:00:00Z", over),
        pod("known", "2026-01-03T00:00:00Z", started),
    ];
    pods.sort_by_cached_key(admission_order);
    let names: Vec<_> = pods.iter().map(crate::spec::name).collect();
    assert_eq!(names, ["known", "new-old", "over", "new-young"]);
}

#[test]
fn admission_rejections_are_counted_by_few_reasons() {
    for (reason, expected) in [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
        ("Evicted", "Evicted"),
        ("NodeAffinity", "Other"),
        ("TaintToleration", "Other"),
    ] {
        assert_eq!(counted_reason(reason), expected);
    }
}
