//! Rules for persistent volume claims, and for the templates of claims that pods carry.

use serde_json::{Value, json};

use super::{immutable, meta, selector, supported};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, is_zero, items, same, text};

pub(in crate::kinds) const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(in crate::kinds) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
const RESIZE_STATUSES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// A new claim, or a changed one.
pub(in crate::kinds) fn claim(claim: &Value, old: Option<&Value>, causes: &mut Causes) {
    spec(&Path::root("spec"), &claim["spec"], causes);
    if let Some(old) = old {
        update(claim, old, causes);
    }
}

/// The template of a generic ephemeral volume: its metadata is labels and annotations alone.
pub(in crate::kinds) fn template(path: &Path<'_>, template: &Value, causes: &mut Causes) {
    if template.is_null() {
        return causes.required(path, "");
    }
    let metadata = path.child("metadata");
    meta::labels(&metadata.child("labels"), &template["metadata"]["labels"], causes);
    let annotations = &template["metadata"]["annotations"];
    meta::annotations(&metadata.child("annotations"), annotations, causes);
    for (field, value) in entries(&template["metadata"]) {
        if !matches!(field.as_str(), "labels" | "annotations") && !is_zero(value) {
            causes.forbidden(&metadata.child(field), "cannot be set");
        }
    }
    spec(&path.child("spec"), &template["spec"], causes);
}

pub(in crate::kinds) fn spec(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let modes = path.child("accessModes");
    if items(&spec["accessModes"]).is_empty() {
        causes.required(&modes, "at least 1 access mode is required");
    }
    selector(&path.child("selector"), &spec["selector"], causes);
    access_modes(&modes, &spec["accessModes"], causes);
    let size = path.child("resources");
    positive(&size.key("storage"), &spec["resources"]["requests"]["storage"], causes);
    class(&path.child("storageClassName"), &spec["storageClassName"], causes);
    if !spec["volumeMode"].is_null() {
        supported(&path.child("volumeMode"), &spec["volumeMode"], &VOLUME_MODES, causes);
    }
    for field in ["dataSource", "dataSourceRef"] {
        source(&path.child(field), &spec[field], causes);
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if !source.is_null() && !is_zero(&reference["namespace"]) {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        causes.invalid(path, "spec.dataSource", why);
    } else if !source.is_null() && !reference.is_null() && !same(source, reference) {
        causes.invalid(path, "spec.dataSource", "must match dataSourceRef");
    }
    class(&path.child("volumeAttributesClassName"), &spec["volumeAttributesClassName"], causes);
}

pub(in crate::kinds) fn access_modes(path: &Path<'_>, modes: &Value, causes: &mut Causes) {
    let modes = items(modes);
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(&text(mode))) {
        causes.not_supported(path, mode, &ACCESS_MODES);
    }
    let is_single = |mode: &&Value| *mode == "ReadWriteOncePod";
    let is_other = |mode: &&Value| !is_single(mode) && ACCESS_MODES.contains(&text(mode));
    if modes.iter().any(|mode| is_single(&mode)) && modes.iter().any(|mode| is_other(&mode)) {
        causes.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// A size: there, and more than nothing.
pub(in crate::kinds) fn positive(path: &Path<'_>, size: &Value, causes: &mut Causes) {
    match Quantity::parse(text(size)) {
        None => causes.required(path, ""),
        Some(size) if size.amount() <= 0 => {
            causes.invalid(path, &size.to_string(), "must be greater than zero");
        }
        Some(_) => {}
    }
}

/// The name of a class of storage; empty is none.
pub(in crate::kinds) fn class(path: &Path<'_>, name: &Value, causes: &mut Causes) {
    if !is_zero(name) {
        causes.each(path, text(name), names::dns_subdomain(text(name)));
    }
}

fn source(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    if source.is_null() {
        return;
    }
    for field in ["name", "kind"] {
        if text(&source[field]).is_empty() {
            causes.required(&path.child(field), "");
        }
    }
    let (group, kind) = (text(&source["apiGroup"]), text(&source["kind"]));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        causes.invalid(path, kind, why);
    }
    if !group.is_empty() {
        causes.each(&path.child("apiGroup"), group, names::dns_subdomain(group));
    }
    let namespace = text(&source["namespace"]);
    if !namespace.is_empty() {
        causes.each(&path.child("namespace"), namespace, names::dns_label(namespace));
    }
}

/// A claim keeps what it asked for; once it is bound, it may ask for a larger volume, and for
/// other attributes. What it is bound to is written once.
fn update(claim: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let (spec, was) = (&claim["spec"], &old["spec"]);
    let is_bound = claim["status"]["phase"] == "Bound";
    let mut comparable = spec.clone();
    let mut keep = |field: &str| {
        if let Some(spec) = comparable.as_object_mut() {
            spec.insert(field.to_owned(), was[field].clone());
        }
    };
    if is_zero(&was["volumeName"]) {
        keep("volumeName");
    }
    let annotation =
        |claim: &Value| claim["metadata"]["annotations"].get(CLASS_ANNOTATION).cloned();
    let (new_annotation, old_annotation) = (annotation(claim), annotation(old));
    let named = spec["storageClassName"].as_str();
    let gets_class = was["storageClassName"].is_null()
        && named.is_some()
        && old_annotation.as_ref().is_none_or(|old| old.as_str() == named);
    if gets_class {
        keep("storageClassName");
    }
    if new_annotation != old_annotation
        && !(gets_class && old_annotation.is_some() && new_annotation.is_none())
    {
        let metadata = Path::root("metadata");
        let annotations = metadata.child("annotations");
        let new = new_annotation.unwrap_or_default();
        causes.invalid(&annotations.key(CLASS_ANNOTATION), &new, "field is immutable");
    }
    let size =
        |claim: &Value| Quantity::parse(text(&claim["spec"]["resources"]["requests"]["storage"]));
    if is_bound {
        keep("volumeAttributesClassName");
        let requests = comparable.pointer_mut("/resources/requests");
        if let Some(requests) = requests.and_then(Value::as_object_mut) {
            let size = was["resources"]["requests"]["storage"].clone();
            requests.insert("storage".to_owned(), size);
        }
    }
    if !same(&comparable, was) {
        causes.forbidden(
            &path,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    let has = Quantity::parse(text(&old["status"]["capacity"]["storage"]));
    if let (Some(new), Some(old)) = (size(claim), size(old))
        && new.amount() < old.amount()
        && new.amount() <= has.map_or(0, Quantity::amount)
    {
        let resources = path.child("resources");
        let requests = resources.child("requests");
        let why = "field can not be less than status.capacity";
        causes.forbidden(&requests.child("storage"), why);
    }
    immutable(&Path::root("volumeMode"), &spec["volumeMode"], &was["volumeMode"], causes);
    if !old["status"]["currentVolumeAttributesClassName"].is_null()
        && is_zero(&spec["volumeAttributesClassName"])
        && !is_zero(&was["volumeAttributesClassName"])
    {
        let to = if spec["volumeAttributesClassName"].is_null() { "nil" } else { "empty string" };
        causes.forbidden(
            &path.child("volumeAttributesClassName"),
            format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"),
        );
    }
}

pub(in crate::kinds) fn status(claim: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let status = &claim["status"];
    for field in ["capacity", "allocatedResources"] {
        let path = path.child(field);
        for (name, amount) in entries(&status[field]) {
            if Quantity::parse(text(amount)).is_some_and(Quantity::is_negative) {
                let why = "must be greater than or equal to 0";
                causes.invalid(&path.key(name), amount, why);
            }
        }
    }
    for (field, limit) in [("allocatedResourceStatuses", true), ("allocatedResources", false)] {
        let path = path.child(field);
        for (name, value) in entries(&status[field]) {
            causes.each(&path, name, names::qualified(name));
            let is_native = !name.contains('/') || name.contains("kubernetes.io/");
            if is_native && name != "storage" {
                causes.not_supported(&path, &json!(name), &["storage"]);
            }
            if limit && !RESIZE_STATUSES.contains(&text(value)) {
                causes.not_supported(&path, &json!(name), &RESIZE_STATUSES);
            }
        }
    }
}
