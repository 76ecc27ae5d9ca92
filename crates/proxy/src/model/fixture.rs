//! Clusters for tests: objects from JSON, applied to one tracker.

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{Changes, Family, Node, ServiceName, Tracker};

pub(crate) const NODE: &str = "node-a";

/// A tracker on the node `node-a` in zone `zone-a`.
pub(crate) fn tracker(family: Family) -> Tracker {
    let node = Node { name: NODE.to_owned(), zone: Some("zone-a".to_owned()) };
    Tracker::new(family, node, "2026-01-01T00:00:00Z".parse().unwrap())
}

pub(crate) fn name(text: &str) -> ServiceName {
    let (namespace, name) = text.split_once('/').unwrap();
    ServiceName::new(namespace, name)
}

fn metadata(name: &ServiceName) -> Value {
    json!({"namespace": &*name.namespace, "name": &*name.name})
}

/// The service `namespace/name`; ports default to one, `p80`, and the type to ClusterIP.
pub(crate) fn service(full_name: &str, spec: Value) -> Service {
    let mut spec = spec;
    let fields = spec.as_object_mut().unwrap();
    fields.entry("type").or_insert("ClusterIP".into());
    fields.entry("ports").or_insert(json!([{"name": "p80", "port": 80}]));
    let ingress = fields.remove("ingress").unwrap_or_default();
    let status = json!({"loadBalancer": {"ingress": ingress}});
    let object = json!({"metadata": metadata(&name(full_name)), "spec": spec, "status": status});
    serde_json::from_value(object).unwrap()
}

/// A slice of a service with the port `p80` at 80 unless `fields` has others. Endpoints are texts:
/// an address, then words: `local`, `unready`, `serving`, `terminating`, `zone=…`, `node=…`.
pub(crate) fn slice(
    full_name: &str,
    suffix: &str,
    endpoints: &[&str],
    fields: Value,
) -> EndpointSlice {
    let service = name(full_name);
    let address = endpoints.first().map_or("", |e| e.split(' ').next().unwrap());
    let mut object = json!({
        "metadata": {
            "namespace": &*service.namespace,
            "name": format!("{}-{suffix}", service.name),
            "labels": {"kubernetes.io/service-name": &*service.name},
        },
        "addressType": if address.contains(':') { "IPv6" } else { "IPv4" },
        "endpoints": endpoints.iter().map(|e| endpoint(e)).collect::<Vec<_>>(),
        "ports": [{"name": "p80", "port": 80, "protocol": "TCP"}],
    });
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn endpoint(text: &str) -> Value {
    let mut words = text.split(' ');
    let mut endpoint = json!({"addresses": [words.next().unwrap()], "conditions": {"ready": true}});
    for word in words {
        let conditions = &mut endpoint["conditions"];
        match word.split_once('=').unwrap_or((word, "")) {
            ("local", _) => endpoint["nodeName"] = NODE.into(),
            ("unready", _) => *conditions = json!({"ready": false, "serving": false}),
            ("serving", _) => *conditions = json!({"ready": false, "serving": true}),
            ("terminating", _) => {
                conditions["ready"] = false.into();
                conditions["terminating"] = true.into();
            }
            ("zone", zone) => endpoint["hints"]["forZones"] = json!([{"name": zone}]),
            ("node", node) => endpoint["hints"]["forNodes"] = json!([{"name": node}]),
            (other, _) => panic!("word {other}"),
        }
    }
    endpoint
}

/// Endpoints of a service.
pub(crate) fn endpoints(full_name: &str, subsets: Value) -> Endpoints {
    let object = json!({"metadata": metadata(&name(full_name)), "subsets": subsets});
    serde_json::from_value(object).unwrap()
}

/// A tracker with a service and one slice of it.
pub(crate) fn one(spec: Value, endpoints: &[&str]) -> (Tracker, Changes) {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns1/svc1", spec));
    tracker.apply_slice(&slice("ns1/svc1", "a", endpoints, json!({})));
    let changes = tracker.take_changes();
    (tracker, changes)
}
