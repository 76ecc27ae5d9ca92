//! Which endpoints a node uses.

use serde_json::{Value, json};

use crate::model::Policy;
use crate::model::fixture::one;

/// The last numbers of the addresses that traffic of each policy goes to.
fn chosen(spec: Value, endpoints: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let mut spec = spec;
    spec["clusterIP"] = "10.96.0.1".into();
    let (tracker, _) = one(spec, endpoints);
    let service = tracker.state().services().next().unwrap();
    let port = service.ports().next().unwrap();
    let of = |policy| {
        let hosts = port.endpoints_for(policy).map(|endpoint| match endpoint.address.ip {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(_) => unreachable!(),
        });
        hosts.collect()
    };
    (of(Policy::Cluster), of(Policy::Local))
}

fn cluster(endpoints: &[&str]) -> Vec<u8> {
    let (cluster, local) = chosen(json!({}), endpoints);
    assert!(local.is_empty(), "the policy is never used");
    cluster
}

#[test]
fn ready_ones_and_terminating_ones_where_there_are_no_others() {
    assert_eq!(cluster(&["10.0.0.1", "10.0.0.2 unready", "10.0.0.3 terminating"]), [1]);
    assert_eq!(cluster(&["10.0.0.2 unready", "10.0.0.3 terminating"]), [3]);
    assert_eq!(cluster(&["10.0.0.2 serving", "10.0.0.3 unready"]), [0u8; 0]);
    assert_eq!(cluster(&["10.0.0.3 unready terminating"]), [0u8; 0]);
    assert_eq!(cluster(&[]), [0u8; 0]);
}

#[test]
fn topology_hints_apply_when_all_have_them_and_one_matches() {
    let table: [(&[&str], &[u8]); 9] = [
        (&["10.0.0.1 zone=zone-a", "10.0.0.2 zone=zone-b"], &[1]),
        (&["10.0.0.1 zone=zone-a", "10.0.0.2"], &[1, 2]),
        (&["10.0.0.1 zone=zone-b", "10.0.0.2 zone=zone-b"], &[1, 2]),
        // those that are not ready have no say
        (&["10.0.0.1 zone=zone-a", "10.0.0.2 unready"], &[1]),
        (&["10.0.0.1 unready zone=zone-a", "10.0.0.2 zone=zone-b"], &[2]),
        // the node is nearer than the zone
        (&["10.0.0.1 zone=zone-a node=node-a", "10.0.0.2 zone=zone-a node=node-b"], &[1]),
        (&["10.0.0.1 zone=zone-a node=node-c", "10.0.0.2 zone=zone-b node=node-b"], &[1]),
        (&["10.0.0.1 node=node-a", "10.0.0.2 zone=zone-a"], &[1, 2]),
        // no one is ready: hints do not count
        (&["10.0.0.1 terminating zone=zone-b", "10.0.0.2 terminating zone=zone-a"], &[1, 2]),
    ];
    for (endpoints, expected) in table {
        assert_eq!(cluster(endpoints), expected, "{endpoints:?}");
    }
}

#[test]
fn the_policy_local() {
    let both = ["10.0.0.1 local", "10.0.0.2", "10.0.0.3 local terminating"];
    let internal = json!({"internalTrafficPolicy": "Local"});
    assert_eq!(chosen(internal.clone(), &both), (vec![], vec![1]));
    assert_eq!(chosen(internal.clone(), &both[1..]), (vec![], vec![3]));
    assert_eq!(chosen(internal, &["10.0.0.2", "10.0.0.4 local unready"]), (vec![], vec![]));
    // external traffic needs all for what comes from the node
    let external = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
        "ports": [{"name": "p80", "port": 80, "nodePort": 30000}]});
    assert_eq!(chosen(external.clone(), &both), (vec![1, 2], vec![1]));
    assert_eq!(chosen(external.clone(), &both[1..]), (vec![2], vec![3]));
    // hints do not keep local traffic away
    let hinted = ["10.0.0.1 local zone=zone-b", "10.0.0.2 zone=zone-a"];
    assert_eq!(chosen(external, &hinted), (vec![2], vec![1]));
    // a policy for traffic that cannot come is none
    let unused = json!({"externalTrafficPolicy": "Local"});
    assert_eq!(chosen(unused, &both), (vec![1, 2], vec![]));
}

#[test]
fn topology_hints_need_a_zone_of_the_node() {
    let endpoints = ["10.0.0.1 zone=zone-a", "10.0.0.2 zone=zone-b"];
    let (mut tracker, _) = one(json!({"clusterIP": "10.96.0.1"}), &endpoints);
    assert!(!tracker.set_zone(Some("zone-a")));
    assert!(tracker.take_changes().services.is_empty());
    assert!(tracker.set_zone(None));
    let changes = tracker.take_changes();
    let count = |service: &Option<std::sync::Arc<crate::model::Service>>| {
        service.as_ref().unwrap().ports().next().unwrap().endpoints_for(Policy::Cluster).count()
    };
    assert_eq!((count(&changes.services[0].before), count(&changes.services[0].after)), (1, 2));
}
