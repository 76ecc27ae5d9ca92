//! The slices of a service from tables, and that any order of changes leads to the right ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use longshore_metrics::Gauge;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Counts, Plan, TRIGGER_TIME, Totals, plan, set_trigger_time};
use super::topology::Topology;

fn service(spec: Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "ns", "name": "web", "uid": "u1",
            "labels": {"team": "a", "kubernetes.io/service-name": "no"},
        },
        "spec": spec,
    }))
    .unwrap()
}

fn web() -> Service {
    service(json!({
        "clusterIP": "10.96.0.9",
        "ipFamilies": ["IPv4"],
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
    }))
}

fn pod_with(name: &str, ip: &str, ready: bool, more: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "ports": [
                {"name": "http", "containerPort": 8080, "protocol": "TCP"},
            ]}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    });
    more(&mut pod);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn pod(name: &str, ip: &str, ready: bool) -> Arc<Pod> {
    pod_with(name, ip, ready, |_| {})
}

fn node() -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}},
    }))
    .unwrap()
}

fn planned(service: &Service, pods: &[Arc<Pod>], existing: &[Arc<EndpointSlice>]) -> Plan {
    let node = node();
    let node = |name: &str| (name == "n1").then_some(&node);
    plan(service, pods, &node, existing, 3, &mut Topology::default())
}

/// What is written, without how much that is.
fn written(plan: Plan) -> Plan {
    Plan { counts: Counts::default(), ..plan }
}

#[test]
fn endpointslice_counts_what_changes() {
    let pods: Vec<_> =
        (1..=5).map(|n| pod(&format!("p{n}"), &format!("10.0.0.{n}"), true)).collect();
    let first = planned(&web(), &pods, &[]);
    let expected =
        Counts { added: 5, endpoints: 5, slices: 2, desired_slices: 2, ..Counts::default() };
    assert_eq!(first.counts, expected);
    let existing: Vec<_> = first
        .create
        .into_iter()
        .enumerate()
        .map(|(at, slice)| named(slice, &format!("s{at}")))
        .collect();
    let mut changed = pods[1..].to_vec();
    changed[0] = pod("p2", "10.0.0.2", false);
    changed.push(pod("p6", "10.0.0.6", true));
    let second = planned(&web(), &changed, &existing);
    let expected =
        Counts { added: 1, updated: 1, removed: 1, endpoints: 5, slices: 2, desired_slices: 2 };
    assert_eq!(second.counts, expected);
    let mut totals = Totals::default();
    totals.set("a", Some(expected));
    totals.set("b", Some(expected));
    totals.set("a", None);
    let gauges = [Gauge::default(), Gauge::default(), Gauge::default()];
    totals.show([&gauges[0], &gauges[1], &gauges[2]]);
    assert_eq!(gauges.map(|gauge| gauge.get()), [5.0, 2.0, 2.0]);
}

fn named(mut slice: EndpointSlice, name: &str) -> Arc<EndpointSlice> {
    slice.metadata.name = Some(name.into());
    Arc::new(slice)
}

#[test]
fn endpointslice_has_conditions_ports_labels_and_owner() {
    let terminating = pod_with("c", "10.0.0.3", true, |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    let over = pod_with("d", "10.0.0.4", true, |pod| pod["status"]["phase"] = "Failed".into());
    let pods = [pod("a", "10.0.0.1", true), pod("b", "10.0.0.2", false), terminating, over];
    let made = planned(&web(), &pods, &[]);
    assert_eq!(made.create.len(), 1);
    let slice = serde_json::to_value(&made.create[0]).unwrap();
    assert_eq!(slice["metadata"]["generateName"], "web-");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({
            "team": "a",
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        })
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u1",
            "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(
        slice["endpoints"][0],
        json!({
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1",
            "targetRef": {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "a"},
            "zone": "z1",
        })
    );
    let conditions = |at: usize| slice["endpoints"][at]["conditions"].clone();
    assert_eq!(conditions(1), json!({"ready": false, "serving": false, "terminating": false}));
    assert_eq!(conditions(2), json!({"ready": false, "serving": true, "terminating": true}));
    assert_eq!(slice["endpoints"].as_array().unwrap().len(), 3);
}

#[test]
fn endpointslice_publishes_not_ready_addresses_and_host_names() {
    let mut headless = web();
    let spec = headless.spec.as_mut().unwrap();
    spec.cluster_ip = Some("None".into());
    spec.publish_not_ready_addresses = Some(true);
    let pods = [pod_with("a", "10.0.0.1", false, |pod| {
        pod["spec"]["hostname"] = "first".into();
        pod["spec"]["subdomain"] = "web".into();
        pod["spec"]["nodeName"] = "unknown".into();
    })];
    let made = planned(&headless, &pods, &[]);
    assert!(made.without_node.is_empty());
    let slice = &made.create[0];
    assert_eq!(slice.metadata.labels.as_ref().unwrap()["service.kubernetes.io/headless"], "");
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.hostname.as_deref(), Some("first"));
    assert_eq!(endpoint.conditions.as_ref().unwrap().ready, Some(true));
    assert_eq!(endpoint.conditions.as_ref().unwrap().serving, Some(false));
    // without it, a pod of an unknown node is left out and tried again
    headless.spec.as_mut().unwrap().publish_not_ready_addresses = None;
    let made = planned(&headless, &pods, &[]);
    assert_eq!(made.without_node, [("a".to_owned(), "unknown".to_owned())]);
    assert_eq!(made.create[0].endpoints.as_deref(), Some(&[][..]));
}

#[test]
fn endpointslice_of_other_ports_are_apart() {
    let other = pod_with("b", "10.0.0.2", true, |pod| {
        pod["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090.into();
    });
    let made = planned(&web(), &[pod("a", "10.0.0.1", true), other], &[]);
    let ports: BTreeSet<i32> =
        made.create.iter().map(|slice| slice.ports.as_ref().unwrap()[0].port.unwrap()).collect();
    assert_eq!(ports, BTreeSet::from([8080, 9090]));
    // a sidecar's port counts, one of another protocol does not
    let sidecar = pod_with("c", "10.0.0.3", true, |pod| {
        pod["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP".into();
        pod["spec"]["initContainers"] = json!([{"name": "s", "restartPolicy": "Always",
            "ports": [{"name": "http", "containerPort": 7070}]}]);
    });
    let made = planned(&web(), &[sidecar], &[]);
    assert_eq!(made.create[0].ports.as_ref().unwrap()[0].port, Some(7070));
}

#[test]
fn endpointslice_is_made_for_each_family() {
    let mut dual = web();
    dual.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".into(), "IPv6".into()]);
    let both = pod_with("a", "10.0.0.1", true, |pod| {
        pod["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "bad"}]);
    });
    let made = planned(&dual, std::slice::from_ref(&both), &[]);
    let by_type: BTreeMap<&str, &str> = made
        .create
        .iter()
        .map(|slice| {
            (
                slice.address_type.as_str(),
                slice.endpoints.as_ref().unwrap()[0].addresses[0].as_str(),
            )
        })
        .collect();
    assert_eq!(by_type, BTreeMap::from([("IPv4", "10.0.0.1"), ("IPv6", "fd00::1")]));
    // a family that the service has no more loses its slices
    let existing: Vec<_> = made
        .create
        .into_iter()
        .map(|slice| {
            let name = slice.address_type.clone();
            named(slice, &name)
        })
        .collect();
    let made = planned(&web(), &[both], &existing);
    assert_eq!(
        (made.create.len(), made.update.len(), made.delete),
        (0, 0, vec!["IPv6".to_owned()])
    );
}

#[test]
fn endpointslice_placeholder_stays_and_becomes_the_first_slice() {
    let made = planned(&web(), &[], &[]);
    assert_eq!(made.create[0].ports.as_deref(), Some(&[][..]));
    let placeholder = named(made.create[0].clone(), "web-x");
    assert_eq!(written(planned(&web(), &[], std::slice::from_ref(&placeholder))), Plan::default());
    let made = planned(&web(), &[pod("a", "10.0.0.1", true)], &[placeholder]);
    assert_eq!((made.create.len(), made.delete.len()), (0, 0));
    assert_eq!(made.update[0].metadata.name.as_deref(), Some("web-x"));
}

#[test]
fn endpointslice_changes_as_few_slices_as_possible() {
    let pods: Vec<_> =
        (1..=5).map(|n| pod(&format!("p{n}"), &format!("10.0.0.{n}"), true)).collect();
    let made = planned(&web(), &pods, &[]);
    assert_eq!(made.create.len(), 2);
    let existing: Vec<_> = made
        .create
        .into_iter()
        .enumerate()
        .map(|(at, slice)| named(slice, &format!("s{at}")))
        .collect();
    assert_eq!(written(planned(&web(), &pods, &existing)), Plan::default());
    // a sixth fits into the slice of two
    let mut more = pods.clone();
    more.push(pod("p6", "10.0.0.6", true));
    let made = planned(&web(), &more, &existing);
    assert_eq!((made.create.len(), made.update.len(), made.delete.len()), (0, 1, 0));
    assert_eq!(made.update[0].endpoints.as_ref().unwrap().len(), 3);
    // one of the full slice goes: that slice alone is written
    let made = planned(&web(), &pods[1..], &existing);
    assert_eq!((made.create.len(), made.update.len(), made.delete.len()), (0, 1, 0));
    assert_eq!(made.update[0].metadata.name.as_deref(), Some("s0"));
    // a label of the service changes: all
    let mut relabelled = web();
    relabelled.metadata.labels = Some(BTreeMap::from([("team".into(), "b".into())]));
    assert_eq!(planned(&relabelled, &pods, &existing).update.len(), 2);
}

#[test]
fn endpointslice_hints_follow_traffic_distribution() {
    for (distribution, expected) in [
        ("PreferClose", json!({"forZones": [{"name": "z1"}]})),
        ("PreferSameZone", json!({"forZones": [{"name": "z1"}]})),
        ("PreferSameNode", json!({"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]})),
        ("Other", Value::Null),
    ] {
        let mut service = web();
        service.spec.as_mut().unwrap().traffic_distribution = Some(distribution.into());
        let made =
            planned(&service, &[pod("a", "10.0.0.1", true), pod("b", "10.0.0.2", false)], &[]);
        let slice = serde_json::to_value(&made.create[0]).unwrap();
        assert_eq!(slice["endpoints"][0]["hints"], expected, "{distribution}");
        assert_eq!(slice["endpoints"][1]["hints"], Value::Null, "not ready");
    }
}

#[test]
fn endpointslice_hints_by_proportion_replace_those_of_traffic_distribution() {
    let zones: Vec<Node> = ["a", "b"]
        .iter()
        .map(|zone| {
            serde_json::from_value(json!({
                "metadata": {"name": zone, "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {
                    "allocatable": {"cpu": "2"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }))
            .unwrap()
        })
        .collect();
    let node = |name: &str| zones.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    let mut topology = Topology::default();
    topology.set_nodes(zones.iter());
    let mut plan = |service: &Service, pods: &[Arc<Pod>], existing: &[Arc<EndpointSlice>]| {
        plan(service, pods, &node, existing, 3, &mut topology)
    };
    let mut service = web();
    service.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameNode".into());
    let annotations = service.metadata.annotations.get_or_insert_default();
    annotations.insert("service.kubernetes.io/topology-mode".into(), "Auto".into());
    let on = |node: &str, name: &str, ip: &str| {
        pod_with(name, ip, true, |pod| pod["spec"]["nodeName"] = node.into())
    };
    let mut pods = vec![on("a", "p1", "10.0.0.1"), on("a", "p2", "10.0.0.2")];
    let hints = |slices: &[EndpointSlice]| -> Vec<Value> {
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints.map(|endpoint| json!(endpoint.hints)).collect()
    };
    let zone = |name: &str| json!({"forZones": [{"name": name}]});
    let made = plan(&service, &pods, &[]);
    assert_eq!(hints(&made.create), [zone("b"), zone("a")]);
    assert_eq!(made.hints[0].reason(), "TopologyAwareHintsEnabled");
    let mut existing = Vec::new();
    apply(&mut existing, made, &mut 0);
    assert_eq!(written(plan(&service, &pods, &existing)), Plan::default(), "hints stay");
    // too few endpoints for the zones: the hints go
    pods.pop();
    let made = plan(&service, &pods, &existing);
    assert_eq!(hints(&made.update), [Value::Null]);
    assert!(made.hints[0].message.starts_with("Insufficient number of endpoints (1 endpoints"));
    // without the annotation it is the distribution that says the hints
    service.metadata.annotations = None;
    let made = plan(&service, &pods, &existing);
    let same_node = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "a"}]});
    assert_eq!((hints(&made.update), made.hints), (vec![same_node], vec![]));
}

#[test]
fn endpointslice_of_another_service_of_that_name_goes() {
    let made = planned(&web(), &[pod("a", "10.0.0.1", true)], &[]);
    let mut old = made.create[0].clone();
    old.metadata.owner_references.as_mut().unwrap()[0].uid = "before".into();
    let made = planned(&web(), &[pod("a", "10.0.0.1", true)], &[named(old, "old")]);
    assert_eq!((made.create.len(), made.update.len()), (1, 0));
    assert_eq!(made.delete, ["old"]);
    // a service that is being deleted gets no new slices
    let mut leaving = web();
    leaving.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(planned(&leaving, &[pod("a", "10.0.0.1", true)], &[]).create.is_empty());
}

#[test]
fn endpointslice_trigger_time_is_set_and_cleared() {
    let mut slice = EndpointSlice::default();
    set_trigger_time(&mut slice, Some("2026-01-01T00:00:01.5Z".parse().unwrap()));
    assert_eq!(
        slice.metadata.annotations.as_ref().unwrap()[TRIGGER_TIME],
        "2026-01-01T00:00:01.5Z"
    );
    set_trigger_time(&mut slice, None);
    assert!(slice.metadata.annotations.unwrap().is_empty());
}

/// What the apiserver holds after a plan.
fn apply(existing: &mut Vec<Arc<EndpointSlice>>, plan: Plan, serial: &mut usize) {
    for name in plan.delete {
        existing.retain(|slice| slice.metadata.name.as_deref() != Some(&name));
    }
    for slice in plan.update {
        let name = slice.metadata.name.clone();
        let at = existing.iter().position(|old| old.metadata.name == name).unwrap();
        existing[at] = Arc::new(slice);
    }
    for slice in plan.create {
        *serial += 1;
        existing.push(named(slice, &format!("web-{serial}")));
    }
}

proptest! {
    /// After any order of changes each pod is in one slice of its ports, no slice is too long, and
    /// nothing is left to be written.
    #[test]
    fn endpointslice_plans_converge(
        steps in prop::collection::vec(
            prop::collection::btree_map(1..20u8, (any::<bool>(), 0..2u16), 0..12),
            1..8,
        ),
    ) {
        let mut existing = Vec::new();
        let mut serial = 0;
        for pods in steps {
            let objects: Vec<_> = pods
                .iter()
                .map(|(n, (ready, port))| {
                    pod_with(&format!("p{n}"), &format!("10.0.0.{n}"), *ready, |pod| {
                        pod["spec"]["containers"][0]["ports"][0]["containerPort"] =
                            (8080 + port).into();
                    })
                })
                .collect();
            let made = planned(&web(), &objects, &existing);
            apply(&mut existing, made, &mut serial);
            prop_assert_eq!(written(planned(&web(), &objects, &existing)), Plan::default());
            let mut seen = BTreeMap::new();
            for slice in &existing {
                let endpoints = slice.endpoints.as_ref().unwrap();
                prop_assert!(endpoints.len() <= 3);
                for endpoint in endpoints {
                    let port = slice.ports.as_ref().unwrap()[0].port.unwrap();
                    let ready = endpoint.conditions.as_ref().unwrap().ready.unwrap();
                    let before = seen.insert(endpoint.addresses[0].clone(), (ready, port));
                    prop_assert!(before.is_none());
                }
            }
            let expected: BTreeMap<String, (bool, i32)> = pods
                .iter()
                .map(|(n, (ready, port))| {
                    (format!("10.0.0.{n}"), (*ready, 8080 + i32::from(*port)))
                })
                .collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
