//! What a write may not touch: a create starts without status, an update cannot change it, a status
//! update changes nothing else, and metadata that the server owns stays the server's.

use longshore_gates::{FeatureGates, NODE_DECLARED_FEATURES};
use serde_json::{Map, Value, json};

use super::{apply_defaults, conditions, strategy};
use crate::api_types::Resource;
use crate::object::{child_mut, metadata_mut};
use crate::schema::value::{default, items, items_mut, map_mut, same, text};

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
        for field in SERVER_OWNED.iter().chain(&["uid"]) {
            metadata.remove(*field);
        }
        if resource.counts_generation {
            metadata.insert("generation".into(), 1.into());
        }
    }
    if resource.custom.is_some() && resource.has_status() {
        map.remove("status");
    }
    (strategy(resource).prepare_create)(map);
}

/// Before a create: drops fields whose feature gates are off.
pub(crate) fn drop_disabled(resource: &Resource, gates: &FeatureGates, object: &mut Value) {
    if resource.kind == "Node" && !gates.enabled(NODE_DECLARED_FEATURES) {
        child_mut(object, "status").remove("declaredFeatures");
    }
}

/// Before an update of an object or of one of its subresources: the defaults of what it changes.
pub(crate) fn default_change(resource: &Resource, subresource: &str, object: &mut Value) {
    if matches!(subresource, "" | "ephemeralcontainers" | "resize") {
        apply_defaults(resource, object);
    }
}

/// Before an update of an object or of one of its subresources: what the request may not touch. Takes the
/// stored object.
pub(crate) fn prepare_change(
    resource: &Resource,
    subresource: &str,
    object: &mut Value,
    old: &Value,
) {
    match subresource {
        "" => prepare_update(resource, object, old),
        "finalize" => prepare_namespace_finalize(object, old),
        "ephemeralcontainers" => prepare_ephemeral_containers(object, old),
        "resize" => prepare_resize(object, old),
        "approval" => prepare_approval(resource, object, old),
        _ => prepare_status_update(resource, object, old),
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
    (strategy(resource).prepare_update)(map, old);
    let annotations = |metadata: Option<&Value>| {
        metadata.map_or(Value::Null, |metadata| metadata["annotations"].clone())
    };
    let has_new_annotations = strategy(resource).annotations_count
        && !same(&annotations(map.get("metadata")), &annotations(old.get("metadata")));
    if resource.counts_generation && (has_new_annotations || content_changed(resource, map, old)) {
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
fn prepare_ephemeral_containers(pod: &mut Value, old: &Value) {
    let containers = pod["spec"].get("ephemeralContainers").cloned();
    from_old(pod, old, |spec| match containers {
        Some(containers) => drop(spec.insert("ephemeralContainers".into(), containers)),
        None => drop(spec.remove("ephemeralContainers")),
    });
}

/// Before an update of a pod's `resize`: only resources and what to do about them come from the
/// request. Other containers than those of the pod stay, for validation to refuse.
fn prepare_resize(pod: &mut Value, old: &Value) {
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
    if resource.custom.is_some() {
        keep_all_metadata(object, old);
    }
    (strategy(resource).prepare_status)(object, old);
}

/// Before a status update of a kind whose metadata is not changed with it.
pub(super) fn keep_all_metadata(object: &mut Value, old: &Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        restore(metadata_mut(object), &old["metadata"], field);
    }
}

/// Before an update of a certificate request's `approval`: only conditions come from the request.
fn prepare_approval(resource: &Resource, object: &mut Value, old: &Value) {
    let conditions = object["status"].get("conditions").cloned();
    prepare_status_update(resource, object, old);
    conditions::decide(object, old, conditions);
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
    for field in SERVER_OWNED {
        restore(metadata, old, field);
    }
    for field in ["name", "namespace", "uid"] {
        if let Some(value) = old.get(field) {
            default(metadata, field, value.clone());
        }
    }
    // a lease is a lock: an update must name the version that it is based on
    if let Some(revision) = old.get("resourceVersion")
        && !strategy(resource).versioned_updates
    {
        default(metadata, "resourceVersion", revision.clone());
    }
}

/// The field as it is in the other object, absent if it is absent there.
pub(super) fn restore(map: &mut Map<String, Value>, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

fn content_changed(resource: &Resource, new: &Map<String, Value>, old: &Value) -> bool {
    if resource.custom.is_some() {
        let fields = new.keys().chain(old.as_object().into_iter().flat_map(Map::keys));
        let mut fields = fields.filter(|field| *field != "metadata");
        return fields.any(|field| new.get(field) != old.get(field));
    }
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
