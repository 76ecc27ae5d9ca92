//! The defaults that upstream writes into objects. The API facts carry none, so they are here.

pub(super) mod pod;
pub(super) mod service;
pub(super) mod storage;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{custom, strategy};
use crate::api_types::{Leaf, Resource, Shape, Type, types};
use crate::schema::value::{default, default_absent, is_zero, items_mut, map_mut, text};

/// Fills in upstream's defaults. The object conforms to the resource's type.
pub fn apply_defaults(resource: &Resource, object: &mut Value) {
    if let Some(definition) = resource.definition() {
        custom::default(resource, &definition, object);
    } else if let Some(map) = object.as_object_mut() {
        if let Some(ty) = types().of(resource.gvk()) {
            specified(ty, map);
        }
        (strategy(resource).default)(map);
    }
}

/// Gives an object the specs that are part of Go's objects even where nobody gives them: its own, and those of
/// what it is a template for. Without them they would have no defaults.
fn specified(ty: &Type, object: &mut Map<String, Value>) {
    for name in ["spec", "template", "jobTemplate"] {
        let Some(field) = ty.field(name).filter(|field| field.shape == Shape::One) else {
            continue;
        };
        let Leaf::Struct(of) = field.leaf else { continue };
        if ty.always.contains(&name) {
            object.entry(name).or_insert_with(|| json!({}));
        }
        if let Some(value) = map_mut(object, name) {
            specified(types().get(of), value);
        }
    }
}

/// `stringData` is a way to write `data` and is never stored.
pub(super) fn secret(secret: &mut Map<String, Value>) {
    default(secret, "type", "Opaque");
    let Some(Value::Object(texts)) = secret.remove("stringData") else { return };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        for (key, text) in texts {
            data.insert(key, STANDARD.encode(text.as_str().unwrap_or_default()).into());
        }
    }
}

pub(super) fn namespace(namespace: &mut Map<String, Value>) {
    let status = namespace.entry("status").or_insert_with(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        default(status, "phase", "Active");
    }
    let Some(metadata) = map_mut(namespace, "metadata") else { return };
    let Some(name) = metadata.get("name").filter(|n| !is_zero(n)).cloned() else { return };
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
}

pub(super) fn node(node: &mut Map<String, Value>) {
    if let Some(spec) = map_mut(node, "spec") {
        one_range(spec);
    }
    let Some(status) = map_mut(node, "status") else { return };
    if let Some(capacity) = status.get("capacity").cloned() {
        default_absent(status, "allocatable", capacity);
    }
}

/// `podCIDR`, which old clients know alone, is the first of `podCIDRs`; where it is another, it counts.
fn one_range(spec: &mut Map<String, Value>) {
    let own = spec.get("podCIDR").map(text).filter(|range| !range.is_empty());
    let first = spec.get("podCIDRs").and_then(|ranges| ranges.get(0)).map(text);
    match (own, first) {
        (Some(own), first) if first != Some(own) => {
            let ranges = json!([own]);
            spec.insert("podCIDRs".into(), ranges);
        }
        (None, Some(first)) => {
            let first = first.into();
            spec.insert("podCIDR".into(), first);
        }
        _ => {}
    }
}

pub(super) fn endpoints(endpoints: &mut Map<String, Value>) {
    for subset in items_mut(endpoints.get_mut("subsets")) {
        for port in items_mut(subset.get_mut("ports")) {
            default(port, "protocol", "TCP");
        }
    }
}

pub(super) fn endpoint_slice(slice: &mut Map<String, Value>) {
    for port in items_mut(slice.get_mut("ports")) {
        default_absent(port, "name", "");
        default_absent(port, "protocol", "TCP");
    }
}

/// Roles, users and groups are of the API group of roles; service accounts are of the core group.
pub(super) fn binding(binding: &mut Map<String, Value>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let role = binding.entry("roleRef").or_insert_with(|| json!({}));
    if let Some(role) = role.as_object_mut() {
        default(role, "apiGroup", GROUP);
    }
    for subject in items_mut(binding.get_mut("subjects")) {
        if subject.get("kind").is_some_and(|kind| kind == "User" || kind == "Group") {
            default(subject, "apiGroup", GROUP);
        }
    }
}

pub(super) fn replication_controller(controller: &mut Map<String, Value>) {
    let Some(spec) = map_mut(controller, "spec") else { return };
    default_absent(spec, "replicas", 1);
    let mut labels = None;
    if let Some(template) = map_mut(spec, "template") {
        labels = template.get("metadata").map(|m| m["labels"].clone()).filter(|l| !is_zero(l));
        if let Some(spec) = map_mut(template, "spec") {
            pod::spec(spec);
        }
    }
    let Some(labels) = labels else { return };
    default(spec, "selector", labels.clone());
    if let Some(metadata) = map_mut(controller, "metadata") {
        default(metadata, "labels", labels);
    }
}
