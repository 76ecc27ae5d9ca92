//! What a write may not touch: a create starts without status, an update cannot change it, a status
//! update changes nothing else, and metadata that the server owns stays the server's.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::value::{default, is_zero, items, items_mut, map_mut, same, text};
use super::{certificates, qos};
use crate::api_types::Resource;
use crate::object::{child_mut, metadata_mut, now};

/// Metadata that no client can change once the object is there.
const SERVER_OWNED: [&str; 5] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

/// Before a create: drops the status and the metadata that only the server sets, and adds what a
/// new object starts with (generation, phase, QoS class, finalizer). The registry then sets uid,
/// creationTimestamp, namespace and a generated name.
pub fn prepare_create(resource: &Resource, object: &mut Value) {
    let Some(map) = object.as_object_mut() else { return };
    if let Some(metadata) = map_mut(map, "metadata") {
        for field in SERVER_OWNED.iter().chain(&["uid", "managedFields"]) {
            metadata.remove(*field);
        }
        if resource.counts_generation {
            metadata.insert("generation".into(), 1.into());
        }
    }
    match (resource.group, resource.kind) {
        ("", "Pod") => {
            let status = new_pod_status(map.get("spec").unwrap_or(&Value::Null));
            map.insert("status".into(), status);
        }
        ("", "Namespace") => {
            map.insert("status".into(), json!({"phase": "Active"}));
            keep_until_empty(map);
        }
        ("", "Service") => {
            map.insert("status".into(), json!({"loadBalancer": {}}));
        }
        ("", "ReplicationController") => {
            map.insert("status".into(), json!({"replicas": 0}));
        }
        ("", "PersistentVolume") => {
            let now = now().to_string();
            let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
            map.insert("status".into(), status);
        }
        ("", "PersistentVolumeClaim") => {
            map.insert("status".into(), json!({"phase": "Pending"}));
            same_data_source(map);
        }
        ("storage.k8s.io", "VolumeAttachment") => {
            map.insert("status".into(), json!({"attached": false}));
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            map.insert("status".into(), json!({}));
        }
        // a node comes with the status that its kubelet knows
        _ => {}
    }
}

fn new_pod_status(spec: &Value) -> Value {
    let mut status = json!({"phase": "Pending", "qosClass": qos::class(spec)});
    if !items(&spec["schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    status
}

/// The finalizer that holds a namespace until its objects are gone.
fn keep_until_empty(namespace: &mut Map<String, Value>) {
    let spec = namespace.entry("spec").or_insert_with(|| json!({}));
    let Some(spec) = spec.as_object_mut() else { return };
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == "kubernetes")
    {
        list.push("kubernetes".into());
    }
}

/// Before an update: takes status and server-owned metadata from the stored object, and counts
/// `metadata.generation` when the spec changed.
pub fn prepare_update(resource: &Resource, object: &mut Value, old: &Value) {
    let Some(map) = object.as_object_mut() else { return };
    keep_metadata(resource, map, old);
    if resource.has_status() {
        restore(map, old, "status");
    }
    match (resource.group, resource.kind) {
        ("", "Namespace") => {
            map.remove("spec");
            restore(map, old, "spec");
        }
        ("", "Service") => keep_allocated(map, &old["spec"]),
        ("", "PersistentVolumeClaim") => same_data_source(map),
        ("certificates.k8s.io", "CertificateSigningRequest") => restore(map, old, "spec"),
        _ => {}
    }
    if resource.counts_generation && content_changed(resource, map, old) {
        count_generation(map, old);
    }
}

fn count_generation(map: &mut Map<String, Value>, old: &Value) {
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0).saturating_add(1);
    if let Some(metadata) = map_mut(map, "metadata") {
        metadata.insert("generation".into(), generation.into());
    }
}

/// Before an update of a pod's `ephemeralcontainers`: only those come from the request.
pub fn prepare_ephemeral_containers(pod: &mut Value, old: &Value) {
    let containers = pod["spec"].get("ephemeralContainers").cloned();
    from_old(pod, old, |spec| match containers {
        Some(containers) => drop(spec.insert("ephemeralContainers".into(), containers)),
        None => drop(spec.remove("ephemeralContainers")),
    });
}

/// Before an update of a pod's `resize`: only resources and what to do about them come from the
/// request. Other containers than those of the pod stay, for validation to refuse.
pub fn prepare_resize(pod: &mut Value, old: &Value) {
    let lists = ["containers", "initContainers"];
    let names = |pod: &Value, list: &str| -> Vec<String> {
        items(&pod["spec"][list]).iter().map(|c| text(&c["name"]).to_owned()).collect()
    };
    if lists.iter().any(|list| names(pod, list) != names(old, list)) {
        return;
    }
    let asked = pod["spec"].clone();
    from_old(pod, old, |spec| {
        restore(spec, &asked, "resources");
        for list in lists {
            for (container, asked) in items_mut(spec.get_mut(list)).zip(items(&asked[list])) {
                restore(container, asked, "resources");
                restore(container, asked, "resizePolicy");
            }
        }
    });
}

/// The stored pod with a change of its spec, made from the version that the request names.
fn from_old(pod: &mut Value, old: &Value, change: impl FnOnce(&mut Map<String, Value>)) {
    let revision = pod["metadata"].get("resourceVersion").cloned();
    *pod = old.clone();
    change(child_mut(pod, "spec"));
    if let Some(revision) = revision {
        metadata_mut(pod).insert("resourceVersion".into(), revision);
    }
    if !same(&pod["spec"], &old["spec"])
        && let Some(map) = pod.as_object_mut()
    {
        count_generation(map, old);
    }
}

/// Before an update of `status`: everything but status, labels, annotations and finalizers comes
/// from the stored object.
pub fn prepare_status_update(resource: &Resource, object: &mut Value, old: &Value) {
    let Some(map) = object.as_object_mut() else { return };
    keep_metadata(resource, map, old);
    map.retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
    for field in old
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .filter(|f| *f != "metadata" && *f != "status")
    {
        restore(map, old, field);
    }
    if resource.kind == "CertificateSigningRequest" {
        certificates::keep_decisions(object, old);
        return;
    }
    if resource.kind == "PersistentVolume" {
        note_transition(object, old);
        return;
    }
    if resource.kind != "Pod" {
        return;
    }
    // old kubelets wrote owner references wrongly, and dropped the QoS class of a pod they refused
    if let Some(metadata) = map_mut(map, "metadata") {
        restore(metadata, &old["metadata"], "ownerReferences");
    }
    if let Some(status) = map_mut(map, "status") {
        for field in ["qosClass", "observedGeneration"] {
            if let Some(value) = old["status"].get(field).filter(|v| !is_zero(v)) {
                default(status, field, value.clone());
            }
        }
    }
}

/// When a volume entered its phase.
pub(crate) fn note_transition(volume: &mut Value, old: &Value) {
    const TIME: &str = "lastPhaseTransitionTime";
    let was = &old["status"];
    let has_moved = volume["status"]["phase"] != was["phase"];
    let is_given = !volume["status"][TIME].is_null() && volume["status"][TIME] != was[TIME];
    let time = match (has_moved, is_given) {
        (_, true) => return,
        (true, false) => now().to_string().into(),
        (false, false) => was[TIME].clone(),
    };
    if !time.is_null() {
        child_mut(volume, "status").insert(TIME.into(), time);
    }
}

/// Where a claim's first data comes from has two fields, an old one and one that can say more:
/// what one says goes for both.
fn same_data_source(claim: &mut Map<String, Value>) {
    let Some(spec) = map_mut(claim, "spec") else { return };
    let get = |field: &str| spec.get(field).filter(|source| !source.is_null()).cloned();
    match (get("dataSource"), get("dataSourceRef")) {
        (Some(source), None) => spec.insert("dataSourceRef".into(), source),
        (None, Some(source)) if source["namespace"].is_null() => {
            spec.insert("dataSource".into(), source)
        }
        _ => None,
    };
}

/// Before an update of a certificate request's `approval`: only conditions come from the request.
pub fn prepare_approval(resource: &Resource, object: &mut Value, old: &Value) {
    let conditions = object["status"].get("conditions").cloned();
    prepare_status_update(resource, object, old);
    certificates::decide(object, old, conditions);
}

/// Before an update of a namespace's `finalize`: only `spec.finalizers` comes from the request.
pub fn prepare_namespace_finalize(object: &mut Value, old: &Value) {
    let finalizers = object["spec"].get("finalizers").cloned().unwrap_or_else(|| json!([]));
    let revision = object["metadata"].get("resourceVersion").cloned();
    *object = old.clone();
    child_mut(object, "spec").insert("finalizers".into(), finalizers);
    if let Some(revision) = revision {
        metadata_mut(object).insert("resourceVersion".into(), revision);
    }
}

fn keep_metadata(resource: &Resource, map: &mut Map<String, Value>, old: &Value) {
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let old = &old["metadata"];
    for field in SERVER_OWNED.iter().chain(&["managedFields"]) {
        restore(metadata, old, field);
    }
    for field in ["name", "namespace", "uid"] {
        if let Some(value) = old.get(field) {
            default(metadata, field, value.clone());
        }
    }
    // a lease is a lock: an update must name the version that it is based on
    if let Some(revision) = old.get("resourceVersion")
        && resource.kind != "Lease"
    {
        default(metadata, "resourceVersion", revision.clone());
    }
}

/// The field as it is in the other object, absent if it is absent there.
fn restore(map: &mut Map<String, Value>, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

fn content_changed(resource: &Resource, new: &Map<String, Value>, old: &Value) -> bool {
    if resource.has_status() {
        return !same(new.get("spec").unwrap_or(&Value::Null), &old["spec"]);
    }
    let content = |f: &&String| *f != "metadata";
    let fields = new
        .keys()
        .filter(content)
        .chain(old.as_object().into_iter().flat_map(Map::keys).filter(content));
    let labels = new.get("metadata").map_or(&Value::Null, |m| &m["labels"]);
    fields.into_iter().any(|f| !same(new.get(f).unwrap_or(&Value::Null), &old[f]))
        || !same(labels, &old["metadata"]["labels"])
}

/// Keeps allocated addresses and node ports that an update omits.
fn keep_allocated(service: &mut Map<String, Value>, old: &Value) {
    let Some(spec) = map_mut(service, "spec") else { return };
    let kind = spec.get("type").map_or("", text).to_owned();
    let had_ip = matches!(text(&old["type"]), "ClusterIP" | "NodePort" | "LoadBalancer");
    let wants_ip = matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer");
    if had_ip && wants_ip && spec.get("clusterIP").is_none_or(is_zero) {
        for field in ["clusterIP", "clusterIPs"] {
            restore(spec, old, field);
        }
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        && matches!(text(&old["type"]), "NodePort" | "LoadBalancer")
        && spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false))
    {
        let place = |port: &Map<String, Value>| {
            let protocol = port.get("protocol").map_or("", text).to_owned();
            (port.get("port").and_then(Value::as_i64), protocol)
        };
        let mut given = HashMap::new();
        for port in items(&old["ports"]).iter().filter_map(Value::as_object) {
            given
                .entry(place(port))
                .or_insert_with(|| port.get("nodePort").unwrap_or(&Value::Null));
        }
        for port in items_mut(spec.get_mut("ports")) {
            if let Some(given) = given.get(&place(port)).filter(|number| !is_zero(number)) {
                default(port, "nodePort", (*given).clone());
            }
        }
    }
    if text(&old["type"]) == "LoadBalancer"
        && kind == "LoadBalancer"
        && text(&old["externalTrafficPolicy"]) == "Local"
        && spec.get("externalTrafficPolicy") == Some(&json!("Local"))
    {
        let given = old["healthCheckNodePort"].clone();
        if !is_zero(&given) {
            default(spec, "healthCheckNodePort", given);
        }
    }
}
