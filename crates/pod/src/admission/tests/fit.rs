use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::{asks, decide_on, ledger, node, node_with, pod, refusal, with_priority};

fn lack(resource: &str, requested: i64, used: i64, capacity: i64) -> Option<(String, String)> {
    let message = format!(
        "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
    );
    Some((format!("OutOf{resource}"), message))
}

#[test]
fn amounts_that_are_not_left_are_refused_by_name() {
    let node = node_with(json!({}), json!([]));
    let there = ledger(&[asks(json!({
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
        // What the node has never heard of is somebody else's to count.
        (json!({"example.com/unknown": "100"}), None),
        (json!({"kubernetes.io/unknown": "1"}), lack("kubernetes.io/unknown", 1, 0, 0)),
        (json!({"cpu": "0"}), None),
    ] {
        assert_eq!(refusal(&asks(requests.clone()), &node, &there), expected, "{requests}");
    }
}

#[test]
fn a_node_is_full_by_number_first() {
    let node = node_with(json!({}), json!([]));
    let nine = vec![pod(json!({})); 9];
    assert_eq!(refusal(&pod(json!({})), &node, &ledger(&nine)), None);
    let ten = vec![pod(json!({})); 10];
    let expected = lack("pods", 1, 10, 10);
    assert_eq!(refusal(&asks(json!({"cpu": "9"})), &node, &ledger(&ten)), expected);
}

#[test]
fn what_is_released_can_be_had_again() {
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
fn amounts_are_the_nodes_own_and_what_others_add() {
    let told = |allocatable: Value| {
        node(json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}))
    };
    let own = node_with(json!({}), json!([]));
    let decide = |pod: &Pod, told: &k8s_openapi::api::core::v1::Node| {
        let view = NodeView::new(told, &own);
        let (ledger, pressure) = (Ledger::default(), NodePressure::default());
        let abilities = &super::abilities();
        match decide(
            pod,
            &AdmissionContext { abilities, node: &view, ledger: &ledger, pressure },
            |_| Ok(()),
        ) {
            Decision::Admit { .. } => None,
            Decision::Refuse { verdict, .. } => Some(verdict.reason),
        }
    };
    // Nothing is told yet.
    assert_eq!(decide(&asks(json!({"cpu": "4"})), &told(json!({}))), None);
    // It was larger once, or smaller; and somebody has added something.
    for cpu in ["1", "64"] {
        let told = told(json!({"cpu": cpu, "pods": "1", "example.com/added": "1"}));
        assert_eq!(decide(&asks(json!({"cpu": "4"})), &told), None);
        let more = asks(json!({"cpu": "4001m"}));
        assert_eq!(decide(&more, &told).as_deref(), Some("OutOfcpu"));
        let added = asks(json!({"example.com/added": "2"}));
        assert_eq!(decide(&added, &told).as_deref(), Some("OutOfexample.com/added"));
    }
    let empty = told(json!({}));
    assert_eq!(refusal(&pod(json!({})), &empty, &Ledger::default()), lack("pods", 1, 0, 0));
}

#[test]
fn ports_of_the_node_are_taken_by_address_and_protocol() {
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
fn a_port_that_two_share_is_taken_until_both_are_gone() {
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
fn a_resize_is_refused_by_what_others_hold() {
    let node = node_with(json!({}), json!([]));
    let view = NodeView::new(&node, &node);
    let mut ledger = ledger(&[asks(json!({"cpu": "2"}))]);
    let ticket = ledger.enter(Reservation::new(&asks(json!({"cpu": "1"}))));
    let before = ledger.release(ticket).unwrap();
    let refused = |pod: &Pod, ledger: &Ledger| {
        let terms = AdmissionContext {
            abilities: &super::abilities(),
            node: &view,
            ledger,
            pressure: NodePressure::default(),
        };
        refuses_resize(pod, &terms).map(|verdict| verdict.reason)
    };
    assert_eq!(refused(&asks(json!({"cpu": "3"})), &ledger).as_deref(), Some("OutOfcpu"));
    assert_eq!(refused(&asks(json!({"cpu": "2"})), &ledger), None);
    ledger.put(ticket, before);
    assert_eq!(ledger.total().get("cpu"), 3000);
}

/// A pod of some size, of any importance.
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
    /// Whatever comes and goes, what is promised is never more than there is, and what is free
    /// again is all.
    #[test]
    fn no_more_is_given_than_there_is(pods in prop::collection::vec((any_pod(), any::<bool>()), 1..40)) {
        let node = node_with(json!({}), json!([]));
        let mut ledger = Ledger::default();
        let mut there: Vec<Ticket> = Vec::new();
        for (pod, goes) in &pods {
            if let Decision::Admit { victims, waits, .. } = decide_on(pod, &node, &ledger, NodePressure::default()) {
                prop_assert!(victims.is_empty() || waits);
                victims.iter().for_each(|ticket| ledger.leave(*ticket));
                there.push(ledger.enter(Reservation::new(pod)));
                let later = ledger.in_use_later();
                prop_assert!(later.amounts.get("cpu") <= 4000 && later.pods <= 10);
                prop_assert!(later.amounts.get("memory") <= 8 << 30);
                if !waits {
                    prop_assert!(ledger.total().get("cpu") <= 4000);
                }
            }
            if *goes && !there.is_empty() {
                ledger.release(there.remove(0));
            }
        }
        there.into_iter().for_each(|ticket| { ledger.release(ticket); });
        prop_assert_eq!(ledger.total(), &Amounts::default());
        let later = ledger.in_use_later();
        prop_assert_eq!((later.amounts.as_ref(), later.pods), (&Amounts::default(), 0));
    }
}
