//! The rules that objects must keep, with upstream's field paths and messages: 422 with one cause
//! per broken rule. Objects come here conformed, defaulted and prepared.

pub(super) mod certificates;
pub(super) mod claim;
pub(super) mod container;
mod handlers;
mod meta;
pub(super) mod network;
pub(super) mod persistent_volume;
pub(super) mod plain;
pub(super) mod pod;
pub(super) mod pod_certificates;
mod pod_parts;
pub(super) mod pod_update;
pub(super) mod rbac;
mod scheduling;
pub(super) mod storage;
mod volume;
pub(in crate::kinds) mod webhook;

use std::collections::BTreeSet;

use serde_json::Value;

use self::certificates::Part;
use super::{core, custom, strategy};
use crate::api_types::Resource;
use crate::schema::value::{items, same, text};
use crate::schema::{Causes, Path, names};
use crate::status::StatusError;

const UNKNOWN_OPERATOR: &str = "not a valid selector operator";

/// Checks a new object: 422 with one cause per broken rule.
pub fn validate_create(resource: &Resource, object: &Value) -> Result<(), StatusError> {
    let mut causes = Causes::default();
    check(resource, object, None, &mut causes);
    finish(resource, object, causes)
}

/// Checks an update of an object or of one of its subresources.
pub(crate) fn validate_change(
    resource: &Resource,
    subresource: &str,
    object: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    match subresource {
        "" => validate_update(resource, object, old),
        "status" => validate_status_update(resource, object, old),
        "approval" => validate_approval(resource, object, old),
        "ephemeralcontainers" => {
            part_of_pod(resource, object, old, pod_parts::ephemeral_containers)
        }
        "resize" => part_of_pod(resource, object, old, pod_parts::resize),
        "finalize" => validate_finalize(resource, object),
        _ => Ok(()),
    }
}

/// Checks a changed object, and that nothing immutable changed: 422, or 409 when the object given
/// is another one of the same name.
pub fn validate_update(
    resource: &Resource,
    object: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    changed(resource, object, old, |causes| check(resource, object, Some(old), causes))
}

/// Checks an object whose status changed.
pub fn validate_status_update(
    resource: &Resource,
    object: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    changed(resource, object, old, |causes| match resource.definition() {
        Some(definition) => {
            custom::validate_status(resource, &definition, object, old, causes);
        }
        None => (strategy(resource).validate_status)(object, old, causes),
    })
}

/// Checks the approval of a certificate signing request.
fn validate_approval(resource: &Resource, request: &Value, old: &Value) -> Result<(), StatusError> {
    changed(resource, request, old, |causes| {
        certificates::update(request, old, Part::Approval, causes);
    })
}

/// Checks a pod of which a part changed.
fn part_of_pod(
    resource: &Resource,
    pod: &Value,
    old: &Value,
    check: fn(&Value, &Value, &mut Causes),
) -> Result<(), StatusError> {
    changed(resource, pod, old, |causes| {
        pod::metadata_and_spec(pod, causes);
        check(pod, old, causes);
    })
}

/// Checks that a changed object is the same one, the rules of its metadata, and then its own.
fn changed(
    resource: &Resource,
    object: &Value,
    old: &Value,
    check: impl FnOnce(&mut Causes),
) -> Result<(), StatusError> {
    same_uid(resource, object, old)?;
    let mut causes = Causes::default();
    meta::update(object, old, &mut causes);
    check(&mut causes);
    finish(resource, object, causes)
}

/// Checks the finalizers that a namespace's `finalize` leaves.
fn validate_finalize(resource: &Resource, namespace: &Value) -> Result<(), StatusError> {
    let mut causes = Causes::default();
    let (spec, path) = (Path::root("spec"), "finalizers");
    for (index, finalizer) in items(&namespace["spec"][path]).iter().enumerate() {
        meta::known_finalizer(&spec.child(path).index(index), text(finalizer), &mut causes);
    }
    finish(resource, namespace, causes)
}

/// Checks the body of a pod's `binding` subresource.
pub fn validate_binding(binding: &Value) -> Result<(), StatusError> {
    let mut causes = Causes::default();
    let target = Path::root("target");
    let kind = text(&binding["target"]["kind"]);
    if !matches!(kind, "" | "Node") {
        causes.not_supported(&target.child("kind"), kind, &["Node", "<empty>"]);
    }
    if text(&binding["target"]["name"]).is_empty() {
        causes.required(&target.child("name"), "");
    }
    finish(core("pods")?, binding, causes)
}

fn finish(resource: &Resource, object: &Value, causes: Causes) -> Result<(), StatusError> {
    if causes.0.is_empty() {
        return Ok(());
    }
    Err(StatusError::invalid(resource, text(&object["metadata"]["name"]), causes.0))
}

fn same_uid(resource: &Resource, object: &Value, old: &Value) -> Result<(), StatusError> {
    let (given, stored) = (text(&object["metadata"]["uid"]), text(&old["metadata"]["uid"]));
    if given == stored {
        return Ok(());
    }
    let why =
        format!("Precondition failed: UID in precondition: {given}, UID in object meta: {stored}");
    Err(StatusError::conflict(resource, text(&object["metadata"]["name"]), &why))
}

fn check(resource: &Resource, object: &Value, old: Option<&Value>, causes: &mut Causes) {
    meta::object(resource, object, causes);
    match resource.definition() {
        Some(definition) => custom::validate(resource, &definition, object, old, causes),
        None => (strategy(resource).validate)(object, old, causes),
    }
}

/// What is wrong with `labels` or `annotations`, in one line, as upstream writes it of an object that a
/// webhook has converted.
pub(crate) fn check_texts(field: &str, map: &Value) -> Result<(), String> {
    let metadata = Path::root("metadata");
    let mut causes = Causes::default();
    match field {
        "labels" => meta::labels(&metadata.child("labels"), map, &mut causes),
        _ => meta::annotations(&metadata.child("annotation"), map, &mut causes),
    }
    let complaints: Vec<String> =
        causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match &complaints[..] {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

const REASON: usize = 1 << 10;
const MESSAGE: usize = 32 << 10;
/// Conditions of the type that all newer kinds share.
pub(super) fn conditions(path: &Path<'_>, conditions: &Value, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (i, condition) in items(conditions).iter().enumerate() {
        let path = path.index(i);
        let (kind, kind_path) = (text(&condition["type"]), path.child("type"));
        if !seen.insert(kind) {
            causes.duplicate(&kind_path, kind, "");
        }
        causes.each(&kind_path, kind, names::qualified(kind));
        let known = ["False", "True", "Unknown"];
        supported(&path.child("status"), &condition["status"], &known, causes);
        if let Some(generation) = condition["observedGeneration"].as_i64().filter(|n| *n < 0) {
            let why = "must be greater than or equal to zero";
            causes.invalid(&path.child("observedGeneration"), &generation, why);
        }
        if text(&condition["lastTransitionTime"]).is_empty() {
            causes.required(&path.child("lastTransitionTime"), "");
        }
        reason(&path.child("reason"), text(&condition["reason"]), causes);
        if text(&condition["message"]).len() > MESSAGE {
            causes.too_long(&path.child("message"), MESSAGE);
        }
    }
}

fn reason(path: &Path<'_>, reason: &str, causes: &mut Causes) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_reason = reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.ends_with(is_word)
        && reason.chars().all(|c| is_word(c) || matches!(c, ',' | ':'));
    match reason {
        "" => causes.required(path, ""),
        _ if !is_reason => {
            let why = names::pattern(
                "a condition reason must start with alphabetic character, optionally followed by a string of \
                 alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
                "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
                &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
            );
            causes.invalid(path, reason, why);
        }
        _ => {}
    }
    if reason.len() > REASON {
        causes.too_long(path, REASON);
    }
}

/// The field is as it was.
pub(super) fn immutable(path: &Path<'_>, new: &Value, old: &Value, causes: &mut Causes) {
    if !same(new, old) {
        causes.invalid(path, new, "field is immutable");
    }
}

/// A valid label selector.
pub(super) fn selector(path: &Path<'_>, selector: &Value, causes: &mut Causes) {
    meta::labels(&path.child("matchLabels"), &selector["matchLabels"], causes);
    let list = path.child("matchExpressions");
    for (i, expression) in items(&selector["matchExpressions"]).iter().enumerate() {
        expression_of_labels(&list.index(i), expression, &[], causes);
    }
}

/// An expression on a label. `comparing` are operators that take one value, beside the usual ones.
fn expression_of_labels(
    path: &Path<'_>,
    expression: &Value,
    comparing: &[&str],
    causes: &mut Causes,
) {
    let values = items(&expression["values"]);
    let list = path.child("values");
    match text(&expression["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            causes.required(&list, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.forbidden(&list, why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other if !comparing.contains(&other) => {
            causes.invalid(&path.child("operator"), other, UNKNOWN_OPERATOR);
        }
        _ if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            causes.required(&list, why);
        }
        _ => {}
    }
    let key = text(&expression["key"]);
    causes.each(&path.child("key"), key, names::qualified(key));
    for (i, value) in values.iter().map(text).enumerate() {
        causes.each(&list.index(i), value, names::label_value(value));
    }
}

/// The labels of objects that are made from a template.
pub(super) fn labels(path: &Path<'_>, labels: &Value, causes: &mut Causes) {
    meta::labels(path, labels, causes);
}

/// A finalizer of a namespace.
pub(super) fn finalizer(path: &Path<'_>, finalizer: &str, causes: &mut Causes) {
    causes.each(path, finalizer, names::qualified(finalizer));
    meta::known_finalizer(path, finalizer, causes);
}

/// Who works with an object, as `example.com/name`.
pub(super) fn domain_prefixed_path(path: &Path<'_>, given: &str, causes: &mut Causes) {
    match given.split_once('/') {
        _ if given.is_empty() => causes.required(path, ""),
        Some((host, name)) if !host.is_empty() && !name.is_empty() => {
            causes.each(path, host, names::dns_subdomain(host));
            causes.each(path, name, names::url_path(name));
        }
        _ => {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            causes.invalid(path, given, why);
        }
    }
}

/// The number is not below zero.
pub(super) fn non_negative(path: &Path<'_>, value: &Value, causes: &mut Causes) {
    if let Some(number) = value.as_i64().filter(|n| *n < 0) {
        causes.invalid(path, &number, "must be greater than or equal to 0");
    }
}

/// The text is one of these.
pub(super) fn supported(path: &Path<'_>, value: &Value, supported: &[&str], causes: &mut Causes) {
    let given = text(value);
    if !supported.contains(&given) {
        causes.not_supported(path, given, supported);
    }
}

/// The text is one of these; empty is "required".
pub(super) fn one_of(path: &Path<'_>, value: &Value, supported: &[&str], causes: &mut Causes) {
    match text(value) {
        "" => causes.required(path, ""),
        given if !supported.contains(&given) => causes.not_supported(path, given, supported),
        _ => {}
    }
}
