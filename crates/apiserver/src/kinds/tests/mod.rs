//! Tests from a body to a stored object.

mod api_types;
mod decoding;
mod defaulting;
mod pod_certificates;
mod pod_rules;
mod preparing;
mod rules;
mod storage_rules;
mod wording;
mod workloads;

use serde_json::{Value, json};

use super::*;
use crate::api_types::Resource;
use crate::kinds::lookup;
use crate::schema::*;
use crate::status::StatusError;

fn resource(plural: &str) -> &'static Resource {
    let found = built_in().find(|r| r.plural == plural);
    found.unwrap_or_else(|| panic!("{plural} is not served"))
}

fn decoded(value: Value) -> Decoded {
    Decoded { value, duplicates: Vec::new() }
}

/// As the registry does with a body: conformed, defaulted, prepared.
fn made(plural: &str, object: Value) -> Value {
    let resource = resource(plural);
    let (mut object, warnings) = conform(resource.gvk(), decoded(object), FieldValidation::Strict)
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(warnings, [""; 0]);
    if resource.namespaced {
        object["metadata"]["namespace"] = "default".into();
    }
    apply_defaults(resource, &mut object);
    prepare_create(resource, &mut object);
    object
}

fn stored(plural: &str, object: Value) -> Value {
    let mut object = made(plural, object);
    object["metadata"]["resourceVersion"] = "1".into();
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

/// A change of a stored object, up to validation.
fn updated(
    plural: &str,
    old: &Value,
    change: impl FnOnce(&mut Value),
) -> (Value, Result<(), StatusError>) {
    let resource = resource(plural);
    let mut new = old.clone();
    change(&mut new);
    apply_defaults(resource, &mut new);
    prepare_update(resource, &mut new, old);
    let result = validate_update(resource, &new, old);
    (new, result)
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
}
