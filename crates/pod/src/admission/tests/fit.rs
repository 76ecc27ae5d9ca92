use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::{decide_on, ledger, node, node_with, pod, refusal, with_priority, with_requests};

fn lack(resource: &str, requested: i64, used: i64, capacity: i64) -> Option<(String, String)> {
    let message = format!(
        "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
    );
    Some((format!("OutOf{resource}"), message))
}

#[test]
fn admission_rejects_insufficient_resources_by_name() {
    let node = node_with(json!({}), json!([]));
    let there = ledger(&[with_requests(json!({
        "cpu": "3", "memory": "6Gi", "ephemeral-storage": "60Gi", "hugepages-2Mi": "62Mi",
        "example.com/gpu": "1", "example.com/unknown": "5",
    }))]);
    const GI: i64 = 1 << 30;
    for (requests, expected) in [
        (json!({"cpu": "1", "memory": "2Gi", "example.com/gpu": "1"}), None),
        (json!({"cpu": "1001m"}), lack("cpu", 1001, 3000, 4000)),
        (json!({"memory": "3Gi"}), lack("memory", 3 * GI, 6 * GI, 8 * GI)),
        (json!({"cpu": "2", "memory": "3Gi"}), lack("cpu", 2000, 3000, 4000)),
        (
            json!({"ephemeral-storage": "50Gi"}),
            lack("ephemeral-storage", 50 * GI, 60 * GI, 100 * GI),
        ),
        (json!({"hugepages-2Mi": "4Mi"}), lack("hugepages-2Mi", 4 << 20, 62 << 20, 64 << 20)),
        (json!({"hugepages-1Gi": "1Gi"}), lack("hugepages-1Gi", GI, 0, 0)),
        (json!({"example.com/gpu": "2"}), lack("example.com/gpu", 2, 1, 2)),
        // Extended resources that the node does not list are not counted.
        (json!({"example.com/unknown": "100"}), None),
        (json!({"kubernetes.io/unknown": "1"}), lack("kubernetes.io/unknown", 1, 0, 0)),
        (json!({"cpu": "0"}), None),
    ] {
        assert_eq!(
            refusal(&with_requests(requests.clone()), &node, &there),
            expected,
            "{requests}"
        );
    }
}

#[test]
fn admission_rejects_by_number_of_pods_first() {
    let node = node_with(json!({}), json!([]));
    let nine = vec![pod(json!({})); 9];
    assert_eq!(refusal(&pod(json!({})), &node, &ledger(&nine)), None);
    let ten = vec![pod(json!({})); 10];
    let expected = lack("pods", 1, 10, 10);
    assert_eq!(refusal(&with_requests(json!({"cpu": "9"})), &node, &ledger(&ten)), expected);
}

#[test]
fn admission_release_frees_resources() {
    let node = node_with(json!({}), json!([]));
    let mut ledger = Ledger::default();
    let port = json!({"containers": [{
        "name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
        "resources": {"requests": {"cpu": "4"}},
    }]});
    let ticket = ledger.enter(Reservation::new(&pod(port.clone())));
    assert_eq!(refusal(&pod(port.clone()), &node, &ledger), lack("cpu", 4000, 4000, 4000));
    ledger.release(ticket);
    assert!(ledger.release(ticket).is_none(), "only once");
    assert_eq!(refusal(&pod(port), &node, &ledger), None);
    assert_eq!(ledger.total(), &Amounts::default());
}

#[test]
fn admission_uses_own_allocatable_and_extended_resources_of_the_node() {
    let reported = |allocatable: Value| {
        node(json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}))
    };
    let own = node_with(json!({}), json!([]));
    let decide = |pod: &Pod, reported: &k8s_openapi::api::core::v1::Node| {
        let view = NodeView::new(reported, &own);
        let (ledger, pressure) = (Ledger::default(), NodePressure::default());
        let capabilities = &super::capabilities();
        match decide(
            pod,
            &AdmissionContext { capabilities, node: &view, ledger: &ledger, pressure },
            |_| Ok(()),
        ) {
            Decision::Admit { .. } => None,
            Decision::Reject { verdict, .. } => Some(verdict.reason),
        }
    };
    // The object has no amounts yet.
    assert_eq!(decide(&with_requests(json!({"cpu": "4"})), &reported(json!({}))), None);
    // The amounts in the object are out of date, and an extended resource was added.
    for cpu in ["1", "64"] {
        let reported = reported(json!({"cpu": cpu, "pods": "1", "example.com/added": "1"}));
        assert_eq!(decide(&with_requests(json!({"cpu": "4"})), &reported), None);
        let more = with_requests(json!({"cpu": "4001m"}));
        assert_eq!(decide(&more, &reported).as_deref(), Some("OutOfcpu"));
        let added = with_requests(json!({"example.com/added": "2"}));
        assert_eq!(decide(&added, &reported).as_deref(), Some("OutOfexample.com/added"));
    }
    let empty = reported(json!({}));
    assert_eq!(refusal(&pod(json!({})), &empty, &Ledger::default()), lack("pods", 1, 0, 0));
}

#[test]
fn host_ports_conflict_by_address_and_protocol() {
    let wants = |ports: Value| pod(json!({"containers": [{"name": "c", "ports": ports}]}));
    let one = |ip: &str, protocol: &str, port: i32| {
        wants(json!([{"containerPort": 1, "hostIP": ip, "protocol": protocol, "hostPort": port}]))
    };
    let node = node_with(json!({}), json!([]));
    let conflict = Some((
        "NodePorts".to_owned(),
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
            .to_owned(),
    ));
    for (taken, wanted, conflicts) in [
        (one("", "", 80), one("", "TCP", 80), true),
        (one("", "TCP", 80), one("", "UDP", 80), false),
        (one("", "", 80), one("", "", 81), false),
        (one("10.0.0.1", "", 80), one("10.0.0.2", "", 80), false),
        (one("10.0.0.1", "", 80), one("10.0.0.1", "", 80), true),
        (one("10.0.0.1", "", 80), one("", "", 80), true),
        (one("0.0.0.0", "", 80), one("10.0.0.1", "", 80), true),
        (wants(json!([{"containerPort": 80}])), wants(json!([{"containerPort": 80}])), false),
    ] {
        let expected = conflict.clone().filter(|_| conflicts);
        assert_eq!(refusal(&wanted, &node, &ledger(std::slice::from_ref(&taken))), expected);
    }
    let init = |policy: Value| {
        pod(json!({"initContainers": [{
            "name": "i", "restartPolicy": policy, "ports": [{"containerPort": 1, "hostPort": 80}],
        }]}))
    };
    let there = ledger(&[one("", "", 80)]);
    assert_eq!(refusal(&init(json!(null)), &node, &there), None);
    assert_eq!(refusal(&init(json!("Always")), &node, &there), conflict);
}

#[test]
fn host_port_of_two_pods_is_in_use_until_both_are_gone() {
    let wants = pod(json!({"containers": [{
        "name": "c", "ports": [{"containerPort": 1, "hostPort": 80}],
    }]}));
    let node = node_with(json!({}), json!([]));
    let mut ledger = Ledger::default();
    let tickets = [(); 2].map(|()| ledger.enter(Reservation::new(&wants)));
    for ticket in tickets {
        assert!(refusal(&wants, &node, &ledger).is_some());
        ledger.release(ticket);
    }
    assert_eq!(refusal(&wants, &node, &ledger), None);
}

#[test]
fn resize_is_rejected_if_other_pods_hold_the_resources() {
    let node = node_with(json!({}), json!([]));
    let view = NodeView::new(&node, &node);
    let mut ledger = ledger(&[with_requests(json!({"cpu": "2"}))]);
    let ticket = ledger.enter(Reservation::new(&with_requests(json!({"cpu": "1"}))));
    let before = ledger.release(ticket).unwrap();
    let refused = |pod: &Pod, ledger: &Ledger| {
        let terms = AdmissionContext {
            capabilities: &super::capabilities(),
            node: &view,
            ledger,
            pressure: NodePressure::default(),
        };
        check_resize(pod, &terms).map(|verdict| verdict.reason)
    };
    assert_eq!(refused(&with_requests(json!({"cpu": "3"})), &ledger).as_deref(), Some("OutOfcpu"));
    assert_eq!(refused(&with_requests(json!({"cpu": "2"})), &ledger), None);
    ledger.put(ticket, before);
    assert_eq!(ledger.total().get("cpu"), 3000);
}

/// A pod of any size and priority.
fn any_pod() -> impl Strategy<Value = Pod> {
    let priority = prop_oneof![4 => Just(0), 1 => Just(2_000_000_000)];
    (0i64..3000, 0i64..4096, 0i32..4, priority, any::<bool>()).prop_map(
        |(cpu, memory, port, priority, guaranteed)| {
            let amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
            let limits = if guaranteed { amounts.clone() } else { json!({}) };
            let spec = json!({"containers": [{
                "name": "c", "ports": [{"containerPort": 1, "hostPort": port}],
                "resources": {"requests": amounts, "limits": limits},
            }]});
            with_priority(pod(spec), priority)
        },
    )
}

proptest! {
    /// Reservations never exceed the node's allocatable, and released ones are free again.
    #[test]
    fn admission_never_exceeds_allocatable(pods in prop::collection::vec((any_pod(), any::<bool>()), 1..40)) {
        let node = node_with(json!({}), json!([]));
        let mut ledger = Ledger::default();
        let mut there: Vec<Ticket> = Vec::new();
        for (pod, goes) in &pods {
            if let Decision::Admit { victims, waits, .. } = decide_on(pod, &node, &ledger, NodePressure::default()) {
                prop_assert!(victims.is_empty() || waits);
                victims.iter().for_each(|ticket| ledger.preempt(*ticket));
                there.push(ledger.enter(Reservation::new(pod)));
                let later = ledger.in_use_after_preemption();
                prop_assert!(later.amounts.get("cpu") <= 4000 && later.pods <= 10);
                prop_assert!(later.amounts.get("memory") <= 8 << 30);
                // A pod that requests nothing does not wait for the victims of another.
                if !waits && Reservation::new(pod).requests.get("cpu") > 0 {
                    prop_assert!(ledger.total().get("cpu") <= 4000);
                }
            }
            if *goes && !there.is_empty() {
                ledger.release(there.remove(0));
            }
        }
        there.into_iter().for_each(|ticket| { ledger.release(ticket); });
        prop_assert_eq!(ledger.total(), &Amounts::default());
        let later = ledger.in_use_after_preemption();
        prop_assert_eq!((later.amounts.as_ref(), later.pods), (&Amounts::default(), 0));
    }
}
