//! Parser of manifests: the static pods of this node that it contains, or an error that names the
//! field.

use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use longshore_json::decode::decode_value;
use longshore_pod::spec;
use serde_json::{Number, Value};

use super::{defaults, dump, validate};

/// Limit of the size of a manifest.
pub(super) const MAX_BYTES: u64 = 10 << 20;

/// Why a manifest is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot be read: {0}")]
    Read(String),
    #[error("is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("is not a manifest: {0}")]
    Syntax(String),
    #[error("{field}: {reason}")]
    Field { field: String, reason: String },
}

pub(super) fn field(field: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Field { field: field.into(), reason: reason.into() }
}

/// The source of a manifest.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    File(&'a Path),
    Url(&'a str),
}

/// The static pod of a manifest.
pub(super) fn pod(bytes: &[u8], origin: Origin<'_>, node_name: &str) -> Result<Pod, Error> {
    let document = document(bytes)?;
    expect(&document, "kind", "Pod")?;
    static_pod(decode(&document)?, origin, node_name)
}

/// An invalid item of a list.
#[derive(Debug)]
pub(super) struct BadItem {
    pub(super) error: Error,
    /// Namespace and name of the static pod, as far as they can be read.
    pub(super) name: (String, String),
}

/// The static pods of a manifest that is a pod or a list of pods. An invalid item of a list does
/// not affect the others.
pub(super) fn pods(
    bytes: &[u8],
    origin: Origin<'_>,
    node_name: &str,
) -> Result<Vec<Result<Pod, BadItem>>, Error> {
    let mut document = document(bytes)?;
    if document["kind"] == "Pod" {
        return Ok(vec![Ok(static_pod(decode(&document)?, origin, node_name)?)]);
    }
    expect(&document, "kind", "PodList")?;
    let items = match document["items"].take() {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        _ => return Err(field("items", "is not a list")),
    };
    let item = |(index, item): (usize, Value)| {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
        let name =
            (namespace_or_default(text("namespace")), with_node_name(&text("name"), node_name));
        decode(&item).and_then(|pod| static_pod(pod, origin, node_name)).map_err(|error| {
            let error = match error {
                Error::Field { field, reason } => {
                    Error::Field { field: format!("items[{index}].{field}"), reason }
                }
                error => error,
            };
            BadItem { error, name }
        })
    };
    Ok(items.into_iter().enumerate().map(item).collect())
}

/// The name of a static pod: that of its manifest with the node's name appended.
fn with_node_name(name: &str, node_name: &str) -> String {
    format!("{name}-{}", node_name.to_lowercase())
}

fn namespace_or_default(namespace: String) -> String {
    if namespace.is_empty() { "default".to_owned() } else { namespace }
}

fn expect(document: &Value, name: &str, wanted: &str) -> Result<(), Error> {
    match &document[name] {
        value if value == wanted => Ok(()),
        Value::Null => Err(field(name, format!("required, as {wanted:?}"))),
        value => Err(field(name, format!("{value} is not {wanted:?}"))),
    }
}

/// The first document of a YAML (or JSON) text, parsed as Kubernetes clients do.
fn document(bytes: &[u8]) -> Result<Value, Error> {
    let mut options = serde_saphyr::options! { with_snippet: false };
    // a limit against alias bombs that valid manifests do not reach
    options.alias_limits.max_total_replayed_events = 10_000;
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    // `defaultMode: 0644` is octal in Kubernetes clients
    options.legacy_octal_numbers = true;
    let mut reader = bytes;
    let mut document: Value = match serde_saphyr::read_with_options(&mut reader, options).next() {
        Some(document) => {
            document.map_err(|error| Error::Syntax(first_line(&error.to_string())))?
        }
        None => return Err(Error::Syntax("it is empty".to_owned())),
    };
    if !document.is_object() {
        return Err(Error::Syntax("it is not an object".to_owned()));
    }
    whole_numbers(&mut document);
    expect(&document, "apiVersion", "v1")?;
    Ok(document)
}

/// `1e3` and `5.0` are integers in Kubernetes clients.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            // A whole float below 2^53 is exact; Go writes those up to 10^21 without an exponent.
            if let Some(whole) = whole.filter(|whole| whole.abs() < 1e21) {
                let exact = format!("{whole:.0}").parse::<i64>().ok();
                *number = exact.map_or_else(|| number.clone(), Number::from);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn decode(document: &Value) -> Result<Pod, Error> {
    decode_value(document).map_err(|error| field(error.path.to_string(), first_line(&error.reason)))
}

/// Make the pod a static pod of this node.
///
/// Without a UID in the manifest, it is a hash of node, origin and content: the same manifest gives
/// the same pod after a restart, an edited one another. It is upstream's UID, see [`dump`].
fn static_pod(mut pod: Pod, origin: Origin<'_>, node_name: &str) -> Result<Pod, Error> {
    validate::check(&pod)?;
    defaults::apply(&mut pod);
    let content = |pod: &Pod| match origin {
        Origin::File(path) => {
            dump::uid(pod, format_args!("host:{node_name}file:{}", path.display()))
        }
        Origin::Url(url) => dump::uid(pod, format_args!("url:{url}")),
    };
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    let content = content(&pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    // The manifest may have been copied from a mirror pod.
    annotations.remove(spec::MIRROR_ANNOTATION);
    if given.is_some() {
        annotations.insert(spec::CONTENT_ANNOTATION.to_owned(), content.clone());
    }
    let uid = given.unwrap_or(content);
    let source = match origin {
        Origin::File(_) => "file",
        Origin::Url(_) => "http",
    };
    annotations.insert(spec::SOURCE_ANNOTATION.to_owned(), source.to_owned());
    annotations.insert(spec::HASH_ANNOTATION.to_owned(), uid.clone());
    let name = with_node_name(spec::name(&pod), node_name);
    let metadata = &mut pod.metadata;
    metadata.uid = Some(uid);
    metadata.name = Some(name);
    metadata.namespace = Some(namespace_or_default(metadata.namespace.take().unwrap_or_default()));
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    metadata.resource_version = None;
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node_name.to_owned());
        if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
            spec.termination_grace_period_seconds = Some(1);
        }
        if matches!(origin, Origin::File(_)) {
            tolerate_no_execute(spec.tolerations.get_or_insert_default());
        }
    }
    Ok(pod)
}

/// A static pod tolerates all `NoExecute` taints.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let exists = || Some("Exists".to_owned());
    let everything = Toleration {
        operator: exists(),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let check_limits = |toleration: &mut Toleration| {
        let unbounded = Toleration { toleration_seconds: None, ..toleration.clone() };
        unbounded == everything
    };
    match tolerations.iter_mut().find_map(|known| check_limits(known).then_some(known)) {
        Some(known) => known.toleration_seconds = None,
        None => tolerations.push(everything),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
