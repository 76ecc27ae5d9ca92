//! PURE: the slices that show what people wrote into an Endpoints object.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::endpoints::plan::repack;
use crate::endpointslice::plan::{
    Group, LABEL_MANAGED_BY, LABEL_SERVICE, Plan, PortsKey, TRIGGER_TIME, Template, arrange,
    ports_key, prefix,
};

/// The controller in the label `managed-by` of its slices.
pub(crate) const MANAGED_BY: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What is to be written, and what was left out.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Mirror {
    pub(crate) plan: Plan,
    /// Addresses that are no IP.
    pub(crate) invalid: usize,
    /// Addresses that were left out, with those that are no IP.
    pub(crate) skipped: usize,
}

/// Whether the object is to be mirrored: its service has no selector, and no controller made it.
pub(crate) fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let has_selector =
        |service: &Service| service.spec.as_ref().is_some_and(|spec| spec.selector.is_some());
    let metadata = &endpoints.metadata;
    let skips = metadata.labels.as_ref().and_then(|labels| labels.get(SKIP_MIRROR));
    let leads = metadata.annotations.as_ref().is_some_and(|own| own.contains_key(LEADER));
    skips.is_none_or(|skips| skips != "true")
        && !leads
        && service.is_some_and(|service| !has_selector(service))
}

fn annotations(endpoints: &Endpoints) -> BTreeMap<String, String> {
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(TRIGGER_TIME);
    annotations.remove(LAST_APPLIED);
    annotations
}

fn template(endpoints: &Endpoints, address_type: &str) -> EndpointSlice {
    let name = endpoints.metadata.name.clone().unwrap_or_default();
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(LABEL_SERVICE.into(), name.clone());
    labels.insert(LABEL_MANAGED_BY.into(), MANAGED_BY.into());
    EndpointSlice {
        address_type: address_type.into(),
        metadata: ObjectMeta {
            generate_name: Some(prefix(&name)),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations(endpoints)),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Endpoints".into(),
                name,
                uid: endpoints.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        ..EndpointSlice::default()
    }
}

fn endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

/// What is to be written for the object. `existing` are the slices of this controller for it; at most
/// `maximum` addresses of a subset are mirrored.
pub(crate) fn plan(
    endpoints: &Endpoints,
    existing: &[impl AsRef<EndpointSlice>],
    maximum: usize,
) -> Mirror {
    let mut mirror = Mirror::default();
    let mut by_type: BTreeMap<&str, HashMap<PortsKey, Group>> =
        BTreeMap::from([("IPv4", HashMap::new()), ("IPv6", HashMap::new())]);
    for subset in repack(endpoints.subsets.as_deref().unwrap_or_default()) {
        let ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        let key = ports_key(&ports);
        let mut added = 0;
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let not = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(not) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                mirror.invalid += 1;
                mirror.skipped += 1;
                continue;
            };
            if added >= maximum {
                mirror.skipped += 1;
                continue;
            }
            added += 1;
            let groups = by_type.entry(if ip.is_ipv4() { "IPv4" } else { "IPv6" }).or_default();
            let group = groups.entry(key.clone()).or_insert_with(|| Group::new(ports.clone()));
            group.insert(endpoint(address, ip, ready));
        }
    }
    for (address_type, groups) in by_type {
        let slice = template(endpoints, address_type);
        let is_outdated = |existing: &EndpointSlice| {
            existing.metadata.labels != slice.metadata.labels
                || existing.metadata.owner_references != slice.metadata.owner_references
                || existing.metadata.annotations.clone().unwrap_or_default()
                    != annotations(endpoints)
        };
        let own: Vec<&EndpointSlice> = existing
            .iter()
            .map(AsRef::as_ref)
            .filter(|existing| existing.address_type == address_type)
            .collect();
        let template = Template {
            slice: slice.clone(),
            is_outdated: &is_outdated,
            maximum,
            has_placeholder: false,
        };
        arrange(&template, &own, groups, &mut mirror.plan);
    }
    if endpoints.metadata.deletion_timestamp.is_some() {
        mirror.plan.create.clear();
    }
    mirror
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{Endpoints, Service};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::{Value, json};

    use super::{is_mirrored, plan};

    fn endpoints(metadata: Value, subsets: Value) -> Endpoints {
        let mut object = json!({
            "metadata": {"namespace": "ns", "name": "db", "uid": "u1"},
            "subsets": subsets,
        });
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": spec})).unwrap()
    }

    #[test]
    fn endpointslice_mirroring_is_for_services_without_a_selector() {
        let plain = endpoints(json!({}), json!([]));
        let without = service(json!({}));
        assert!(is_mirrored(&plain, Some(&without)));
        assert!(!is_mirrored(&plain, None));
        assert!(!is_mirrored(&plain, Some(&service(json!({"selector": {"a": "b"}})))));
        for metadata in [
            json!({"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}),
            json!({"annotations": {"control-plane.alpha.kubernetes.io/leader": "{}"}}),
        ] {
            assert!(!is_mirrored(&endpoints(metadata, json!([])), Some(&without)));
        }
    }

    #[test]
    fn endpointslice_mirroring_copies_addresses_labels_and_annotations() {
        let metadata = json!({
            "labels": {"team": "a"},
            "annotations": {"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        });
        let subsets = json!([{
            "addresses": [{"ip": "10.0.0.1", "hostname": "one"}, {"ip": "fd00::1"}, {"ip": "no"}],
            "notReadyAddresses": [{"ip": "10.0.0.2"}],
            "ports": [{"name": "p", "port": 5432}],
        }]);
        let made =
            plan(&endpoints(metadata.clone(), subsets.clone()), &[] as &[Arc<EndpointSlice>], 1000);
        assert_eq!((made.invalid, made.skipped, made.plan.create.len()), (1, 1, 2));
        let slice = serde_json::to_value(&made.plan.create[0]).unwrap();
        assert_eq!(
            slice["metadata"]["labels"],
            json!({
                "team": "a",
                "kubernetes.io/service-name": "db",
                "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
            })
        );
        assert_eq!(slice["metadata"]["annotations"], json!({"note": "x"}));
        assert_eq!(
            slice["endpoints"],
            json!([
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "hostname": "one"},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            ])
        );
        assert_eq!(slice["ports"], json!([{"name": "p", "port": 5432, "protocol": "TCP"}]));
        let existing: Vec<_> = made
            .plan
            .create
            .into_iter()
            .map(|mut slice| {
                slice.metadata.name = Some(slice.address_type.clone());
                Arc::new(slice)
            })
            .collect();
        let again = plan(&endpoints(metadata, subsets), &existing, 1000);
        assert_eq!(again.plan.changes(), 0);
        assert_eq!((again.plan.counts.added, again.plan.counts.endpoints), (0, 3));
        // a change of the annotations alone is mirrored, and an address that goes
        let gone = json!([{
            "addresses": [{"ip": "10.0.0.1", "hostname": "one"}],
            "notReadyAddresses": [{"ip": "10.0.0.2"}],
            "ports": [{"name": "p", "port": 5432}],
        }]);
        let changed = plan(&endpoints(json!({"labels": {"team": "a"}}), gone), &existing, 1000);
        assert_eq!(changed.plan.update.len(), 1);
        assert_eq!(changed.plan.delete, ["IPv6"]);
    }
}
