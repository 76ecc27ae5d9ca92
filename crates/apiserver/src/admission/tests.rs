#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::services::ServiceAllocator;
use super::{core, node_restriction};
use crate::status::StatusError;

fn service(spec: Value) -> Value {
    json!({"kind": "Service", "metadata": {"name": "s"}, "spec": spec})
}

fn admit(allocator: &ServiceAllocator, spec: Value) -> Result<Value, StatusError> {
    let mut service = service(spec);
    allocator.admit(core("services").unwrap(), &mut service, None)?.keep();
    Ok(service)
}

#[test]
fn every_address_is_given_once_and_all_of_them() {
    let allocator = ServiceAllocator::new("10.0.0.0/29".parse().unwrap());
    let mut given = std::collections::BTreeSet::new();
    for _ in 0..6 {
        given.insert(
            admit(&allocator, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"]
                .to_string(),
        );
    }
    assert_eq!(given.len(), 6);
    let full = admit(&allocator, json!({"type": "ClusterIP"})).unwrap_err();
    assert!(full.message.contains("range is full"), "{full}");
    let one = service(json!({"clusterIP": "10.0.0.3"}));
    allocator.release(&one, None);
    assert_eq!(
        admit(&allocator, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"],
        "10.0.0.3"
    );
}

#[test]
fn what_is_not_kept_is_given_back() {
    let allocator = ServiceAllocator::new("10.0.0.0/24".parse().unwrap());
    let services = core("services").unwrap();
    for _ in 0..2 {
        let mut failed = service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.9", "ports": [{"port": 1, "nodePort": 30001}]}),
        );
        drop(allocator.admit(services, &mut failed, None).unwrap());
    }
    // A fault in the second port gives the first back too.
    let mut faulty =
        service(json!({"type": "NodePort", "ports": [{"nodePort": 30002}, {"nodePort": 1}]}));
    let error = allocator.admit(services, &mut faulty, None).err().unwrap();
    assert!(error.message.contains(
        "spec.ports[1].nodePort: Invalid value: 1: provided port is not in the valid range"
    ));
    admit(&allocator, json!({"type": "NodePort", "ports": [{"nodePort": 30002}]})).unwrap();
}

#[test]
fn one_number_serves_two_protocols_of_one_service_only() {
    let allocator = ServiceAllocator::new("10.0.0.0/24".parse().unwrap());
    let dns =
        json!([{"protocol": "UDP", "nodePort": 30053}, {"protocol": "TCP", "nodePort": 30053}]);
    admit(&allocator, json!({"type": "NodePort", "ports": dns})).unwrap();
    let taken =
        admit(&allocator, json!({"type": "NodePort", "ports": [{"nodePort": 30053}]})).unwrap_err();
    assert_eq!(taken.code, 422);
}

#[test]
fn kinds_of_services_get_what_they_need() {
    let allocator = ServiceAllocator::new("10.0.0.0/24".parse().unwrap());
    let external = admit(&allocator, json!({"type": "ExternalName", "externalName": "x"})).unwrap();
    assert!(external["spec"].get("clusterIP").is_none());
    let balanced = admit(
        &allocator,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{}]}),
    )
    .unwrap();
    assert!(
        balanced["spec"]["healthCheckNodePort"].is_u64()
            && balanced["spec"]["ports"][0]["nodePort"].is_u64()
    );
    let bare =
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{}]});
    assert!(admit(&allocator, bare).unwrap()["spec"]["ports"][0].get("nodePort").is_none());
}

#[test]
fn a_nodes_labels() {
    let nodes = core("nodes").unwrap();
    let node = |labels: Value| json!({"metadata": {"name": "n1", "labels": labels}});
    for (label, is_allowed) in [
        ("kubernetes.io/hostname", true),
        ("node.kubernetes.io/instance-type", true),
        ("x.node.kubernetes.io/y", true),
        ("kubelet.kubernetes.io/y", true),
        ("example.com/y", true),
        ("y", true),
        ("notkubernetes.io/y", true),
        ("kubernetes.io/y", false),
        ("foo.k8s.io/y", false),
        ("node-restriction.kubernetes.io/y", false),
        ("x.node-restriction.kubernetes.io/y", false),
        ("node-role.kubernetes.io/control-plane", false),
    ] {
        let labelled = node(json!({label: "v"}));
        let created = node_restriction::admit_create("n1", nodes, &labelled, None);
        assert_eq!(created.is_ok(), is_allowed, "{label}");
        let updated = node_restriction::admit_update("n1", nodes, "", &labelled, &node(json!({})));
        assert_eq!(updated.is_ok(), is_allowed, "{label}");
        // What is there already is no matter.
        assert!(
            node_restriction::admit_update("n1", nodes, "", &labelled, &labelled).is_ok(),
            "{label}"
        );
    }
}
