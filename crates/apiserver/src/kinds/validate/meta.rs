//! Rules for the metadata of every object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::immutable;
use crate::api_types::Resource;
use crate::kinds::strategy;
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{entries, items, text};

const ANNOTATIONS_LIMIT: usize = 256 << 10;

/// Metadata of a new or changed object.
pub(in crate::kinds) fn object(resource: &Resource, object: &Value, causes: &mut Causes) {
    let path = Path::root("metadata");
    let metadata = &object["metadata"];
    let check = strategy(resource).name;
    let generate = text(&metadata["generateName"]);
    if !generate.is_empty() {
        causes.each(&path.child("generateName"), generate, check(&names::as_prefix(generate)));
    }
    match text(&metadata["name"]) {
        "" => causes.required(&path.child("name"), "name or generateName is required"),
        name => causes.each(&path.child("name"), name, check(name)),
    }
    let namespace = text(&metadata["namespace"]);
    let namespace_path = path.child("namespace");
    match (resource.namespaced, namespace) {
        (true, "") => causes.required(&namespace_path, ""),
        (true, _) => causes.each(&namespace_path, namespace, names::dns_label(namespace)),
        (false, "") => {}
        (false, _) => causes.forbidden(&namespace_path, "not allowed on this type"),
    }
    labels(&path.child("labels"), &metadata["labels"], causes);
    annotations(&path.child("annotations"), &metadata["annotations"], causes);
    owners(&path.child("ownerReferences"), &metadata["ownerReferences"], causes);
    finalizers(&path.child("finalizers"), &metadata["finalizers"], causes);
}

/// What no update may change.
pub(in crate::kinds) fn update(object: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("metadata");
    let (new, old) = (&object["metadata"], &old["metadata"]);
    if old["deletionTimestamp"].is_string() {
        let had: BTreeSet<&str> = items(&old["finalizers"]).iter().map(text).collect();
        let added: BTreeSet<&str> =
            items(&new["finalizers"]).iter().map(text).filter(|f| !had.contains(f)).collect();
        if !added.is_empty() {
            let quoted: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
            causes.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    quoted.join(", ")
                ),
            );
        }
    }
    if text(&new["resourceVersion"]).is_empty() {
        causes.invalid(&path.child("resourceVersion"), &0, "must be specified for an update");
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        immutable(&path.child(field), &new[field], &old[field], causes);
    }
}

pub(in crate::kinds) fn labels(path: &Path<'_>, labels: &Value, causes: &mut Causes) {
    for (key, value) in entries(labels) {
        causes.each(path, key, names::qualified(key));
        causes.each(path, text(value), names::label_value(text(value)));
    }
}

pub(in crate::kinds) fn annotations(path: &Path<'_>, annotations: &Value, causes: &mut Causes) {
    for (key, _) in entries(annotations) {
        causes.each(path, key, names::qualified(&key.to_lowercase()));
    }
    annotations_size(path, annotations, causes);
}

/// How long annotations may be together.
pub(super) fn annotations_size(path: &Path<'_>, annotations: &Value, causes: &mut Causes) {
    let sizes = entries(annotations).map(|(key, value)| key.len() + text(value).len());
    if sizes.sum::<usize>() > ANNOTATIONS_LIMIT {
        causes.too_long(path, ANNOTATIONS_LIMIT);
    }
}

fn owners(path: &Path<'_>, owners: &Value, causes: &mut Causes) {
    let mut controller: Option<String> = None;
    for owner in items(owners) {
        for (field, complaint) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(&owner[field]).is_empty() {
                causes.invalid(&path.child(field), "", complaint);
            }
        }
        if text(&owner["apiVersion"]) == "v1" && text(&owner["kind"]) == "Event" {
            causes.invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner["controller"] == true {
            let this = format!("{}/{}", text(&owner["kind"]), text(&owner["name"]));
            match &controller {
                Some(first) => causes.invalid(
                    path,
                    owners,
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    ),
                ),
                None => controller = Some(this),
            }
        }
    }
}

/// A finalizer without a domain is one of Kubernetes' own.
pub(super) fn known_finalizer(path: &Path<'_>, finalizer: &str, causes: &mut Causes) {
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        causes.invalid(path, finalizer, why);
    }
}

const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

fn finalizers(path: &Path<'_>, finalizers: &Value, causes: &mut Causes) {
    let all: Vec<&str> = items(finalizers).iter().map(text).collect();
    for (i, finalizer) in all.iter().enumerate() {
        causes.each(path, finalizer, names::qualified(finalizer));
        known_finalizer(&path.index(i), finalizer, causes);
    }
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        causes.invalid(
            path,
            finalizers,
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}
