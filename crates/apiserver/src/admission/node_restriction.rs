//! What a node may write: only what is its own (the authorizer has let the kind of request pass).

use std::collections::BTreeSet;

use serde_json::Value;

use super::pods::{MIRROR, is_mirror};
use crate::auth::references;
use crate::facts::Resource;
use crate::object;
use crate::status::StatusError;

/// Labels in Kubernetes' own namespaces that a node may give itself.
const NODE_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const NODE_LABEL_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESTRICTED_NAMESPACE: &str = "node-restriction.kubernetes.io";
const LEASE: &str = "can only access node lease with the same name as the requesting node";

fn forbidden(resource: &Resource, name: &str, why: String) -> Result<(), StatusError> {
    Err(StatusError::forbidden(resource, name, &why))
}

/// `own` is the caller's Node, if there is one: a mirror pod is owned by it.
pub(crate) fn admit_create(
    node: &str,
    resource: &Resource,
    new: &Value,
    own: Option<&Value>,
) -> Result<(), StatusError> {
    let name = object::name(new);
    match resource.kind {
        "Pod" => match mirror_pod_fault(node, new, own) {
            Some(why) => forbidden(resource, name, why),
            None => Ok(()),
        },
        "Node" if name != node => forbidden(
            resource,
            name,
            format!("node {node:?} is not allowed to modify node {name:?}"),
        ),
        "Node" => match forbidden_labels(&changed_labels(new, &Value::Null)) {
            labels if labels.is_empty() => Ok(()),
            labels => {
                let why =
                    format!("node {node:?} is not allowed to set the following labels: {labels}");
                forbidden(resource, name, why)
            }
        },
        "Lease" if name != node => forbidden(resource, name, LEASE.into()),
        _ => Ok(()),
    }
}

fn mirror_pod_fault(node: &str, pod: &Value, own: Option<&Value>) -> Option<String> {
    if !is_mirror(pod) {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Some(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice) {
        Some([owner]) => owner,
        None | Some([]) => {
            return Some(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        Some(_) => {
            return Some(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Some(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return Some(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Some(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let (expected, got) = (own.map_or("", object::uid), owner["uid"].as_str().unwrap_or_default());
    if expected != got || got.is_empty() {
        return Some(format!("node {node} UID mismatch: expected {expected} got {got}"));
    }
    let mut fault = None;
    references(pod, |kind, _| {
        fault.get_or_insert_with(|| {
            format!("node {node:?} can not create pods that reference {}", kind.resource())
        });
    });
    fault
}

pub(crate) fn admit_update(
    node: &str,
    resource: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    let name = object::name(old);
    let why = match (resource.kind, subresource) {
        ("Pod", "status") if old["spec"]["nodeName"] != node => {
            format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            )
        }
        ("Pod", "status") if !changed_labels(new, old).is_empty() => {
            format!("node {node:?} cannot update labels through pod status")
        }
        ("Pod", "status") => return Ok(()),
        ("Pod", _) => {
            format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )
        }
        ("Node", _) if name != node => {
            format!("node {node:?} is not allowed to modify node {name:?}")
        }
        ("Node", _) if !same_list(&new["spec"]["taints"], &old["spec"]["taints"]) => {
            format!("node {node:?} is not allowed to modify taints")
        }
        ("Node", _)
            if !same_list(
                &new["metadata"]["ownerReferences"],
                &old["metadata"]["ownerReferences"],
            ) =>
        {
            format!("node {node:?} is not allowed to modify ownerReferences")
        }
        ("Node", _) => match forbidden_labels(&changed_labels(new, old)) {
            labels if labels.is_empty() => return Ok(()),
            labels => format!("is not allowed to modify labels: {labels}"),
        },
        ("Lease", _) if name != node => LEASE.into(),
        _ => return Ok(()),
    };
    forbidden(resource, name, why)
}

pub(crate) fn admit_delete(
    node: &str,
    resource: &Resource,
    old: &Value,
) -> Result<(), StatusError> {
    let name = object::name(old);
    match resource.kind {
        "Pod" if old["spec"]["nodeName"] != node => forbidden(
            resource,
            name,
            format!("node {node:?} can only delete pods with spec.nodeName set to itself"),
        ),
        _ => Ok(()),
    }
}

pub(crate) fn admit_eviction(
    node: &str,
    resource: &Resource,
    pod: &Value,
) -> Result<(), StatusError> {
    if pod["spec"]["nodeName"] == node {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    forbidden(resource, object::name(pod), why)
}

/// An absent list and an empty one are the same.
fn same_list(a: &Value, b: &Value) -> bool {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    items(a) == items(b)
}

fn changed_labels<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let labels = |object: &'a Value| object["metadata"]["labels"].as_object();
    let (new, old) = (labels(new), labels(old));
    [(new, old), (old, new)]
        .into_iter()
        .filter_map(|(a, b)| a.map(|a| (a, b)))
        .flat_map(|(a, b)| {
            a.iter().filter(move |(key, value)| b.and_then(|b| b.get(*key)) != Some(*value))
        })
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Those that a node may not touch, as a list for people.
fn forbidden_labels(changed: &BTreeSet<&str>) -> String {
    let is_forbidden = |label: &&&str| {
        let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
        let is_within = |domain: &str| {
            namespace == domain
                || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
        };
        let is_kubernetes = is_within("kubernetes.io") || is_within("k8s.io");
        let is_node_label =
            NODE_LABELS.contains(*label) || NODE_LABEL_NAMESPACES.into_iter().any(is_within);
        is_within(RESTRICTED_NAMESPACE) || (is_kubernetes && !is_node_label)
    };
    changed.iter().filter(is_forbidden).copied().collect::<Vec<_>>().join(", ")
}
