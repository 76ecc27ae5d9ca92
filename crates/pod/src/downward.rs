//! The downward API: a pod's own fields and resources as text, for environment variables and for
//! volumes. What the object does not have (addresses, the node's allocatable) is passed in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{qos, spec};

/// Why a field or resource has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The path is no field of the downward API.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// `path['key']` on a field that is no map.
    #[error("fieldPath {0:?} does not support subscript")]
    NoSubscript(String),
    /// The key in `path['key']` cannot be a label or annotation key.
    #[error("invalid key subscript in {0}")]
    InvalidKey(String),
    /// The node does not know its own address yet.
    #[error("no address of the node is known yet")]
    NoHostAddress,
    /// The resource is not one of the downward API.
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    /// The selector names a container that the pod does not have.
    #[error("container {0} not found")]
    NoContainer(String),
    /// The divisor is not a positive quantity.
    #[error("invalid divisor {divisor:?} of container resource {resource}")]
    InvalidDivisor {
        /// The requested resource.
        resource: String,
        /// The divisor as written.
        divisor: String,
    },
}

/// The addresses of a pod and its node, the preferred one first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses<'a> {
    /// Addresses of the node.
    pub host: &'a [String],
    /// Addresses of the pod; none before its sandbox has a network.
    pub pod: &'a [String],
}

/// The value of a `fieldRef` in an environment variable.
pub fn field_ref_value<'a>(
    pod: &'a Pod,
    path: &str,
    addresses: Addresses<'a>,
) -> Result<Cow<'a, str>, Error> {
    let pod_spec = pod.spec.as_ref();
    let value = match path {
        "spec.nodeName" | "spec.host" => {
            pod_spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
        }
        "spec.serviceAccountName" => {
            pod_spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default()
        }
        "status.hostIP" => addresses.host.first().ok_or(Error::NoHostAddress)?,
        "status.hostIPs" if addresses.host.is_empty() => return Err(Error::NoHostAddress),
        "status.hostIPs" => return Ok(addresses.host.join(",").into()),
        "status.podIP" => addresses.pod.first().map_or("", String::as_str),
        "status.podIPs" => return Ok(addresses.pod.join(",").into()),
        _ => return metadata_value(pod, path),
    };
    Ok(value.into())
}

/// The value of a `fieldRef` in a volume, which can refer to metadata only.
pub fn metadata_value<'a>(pod: &'a Pod, path: &str) -> Result<Cow<'a, str>, Error> {
    let metadata = &pod.metadata;
    if let Some((map, key)) = split_subscript(path) {
        let (map, valid) = match map {
            // Annotation keys are case-sensitive but checked in lower case, as the apiserver does.
            "metadata.annotations" => {
                (&metadata.annotations, is_qualified_name(&key.to_lowercase()))
            }
            "metadata.labels" => (&metadata.labels, is_qualified_name(key)),
            _ => return Err(Error::NoSubscript(path.to_owned())),
        };
        if !valid {
            return Err(Error::InvalidKey(path.to_owned()));
        }
        return Ok(map.as_ref().and_then(|map| map.get(key)).map_or("", String::as_str).into());
    }
    match path {
        "metadata.name" => Ok(spec::name(pod).into()),
        "metadata.namespace" => Ok(spec::namespace(pod).into()),
        "metadata.uid" => Ok(spec::uid(pod).into()),
        "metadata.labels" => Ok(format_map(metadata.labels.as_ref()).into()),
        "metadata.annotations" => Ok(format_map(metadata.annotations.as_ref()).into()),
        _ => Err(Error::UnsupportedField(path.to_owned())),
    }
}

/// The value of a `resourceFieldRef`: the container that the selector names, or else `own`, and its
/// request or limit in units of the divisor, rounded up. A limit that is not set is the pod's own,
/// or else what the node can allocate.
pub fn resource_field_value(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, Error> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let container = match named {
        Some(name) => spec::container(pod, name).map(|(_, container)| container),
        None => own.map(Cow::Borrowed),
    }
    .ok_or_else(|| Error::NoContainer(named.unwrap_or_default().to_owned()))?;

    let unsupported = || Error::UnsupportedResource(selector.resource.clone());
    let (kind, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let defaulted = matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if !defaulted && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let set = |list: Option<&BTreeMap<String, Quantity>>| {
        list.and_then(|list| list.get(resource))
            .filter(|quantity| qos::milli(quantity) != Some(0))
            .cloned()
    };
    let quantity = match kind {
        "requests" => set(qos::requests(&container)),
        "limits" => set(qos::limits(&container)).or_else(|| {
            let pod_limits =
                pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.limits.as_ref());
            defaulted.then(|| set(pod_limits).or_else(|| set(Some(allocatable)))).flatten()
        }),
        _ => return Err(unsupported()),
    };

    // CPU is counted in thousandths, everything else in whole units.
    let count = |quantity: &Quantity| {
        qos::milli(quantity)
            .map(|milli| if resource == "cpu" { milli } else { ceil_div(milli, 1000) })
    };
    let one = Quantity("1".to_owned());
    let divisor = selector
        .divisor
        .as_ref()
        .filter(|divisor| !divisor.0.is_empty() && qos::milli(divisor) != Some(0));
    let divisor = divisor.unwrap_or(&one);
    let parts = count(divisor).filter(|parts| *parts > 0).ok_or_else(|| Error::InvalidDivisor {
        resource: selector.resource.clone(),
        divisor: divisor.0.clone(),
    })?;
    let amount = quantity.as_ref().and_then(count).unwrap_or(0);
    Ok(ceil_div(amount, parts).to_string())
}

fn ceil_div(dividend: i128, divisor: i128) -> i128 {
    dividend.div_euclid(divisor) + i128::from(dividend.rem_euclid(divisor) != 0)
}

/// `map['key']` as its two parts; `None` for a path without subscript.
fn split_subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(map, _)| !map.is_empty())
}

/// Whether text is a label key: an optional DNS subdomain and `/`, then a name of up to 63
/// characters.
fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let framed = |text: &str, inner: fn(u8) -> bool, outer: fn(u8) -> bool| {
        let bytes = text.as_bytes();
        bytes.iter().all(|byte| inner(*byte))
            && bytes.first().is_some_and(|byte| outer(*byte))
            && bytes.last().is_some_and(|byte| outer(*byte))
    };
    let dns_outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let dns_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let name_outer = |byte: u8| byte.is_ascii_alphanumeric();
    let name_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    prefix.is_none_or(|prefix| {
        prefix.len() <= 253 && prefix.split('.').all(|label| framed(label, dns_inner, dns_outer))
    }) && name.len() <= 63
        && framed(name, name_inner, name_outer)
}

/// One `key="value"` per line, sorted by key, with the value quoted as Go quotes it: programs
/// inside pods parse that form.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let mut text = String::new();
    for (key, value) in map.into_iter().flatten() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(key);
        text.push('=');
        quote(&mut text, value);
    }
    text
}

fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\x07' => text.push_str("\\a"),
            '\x08' => text.push_str("\\b"),
            '\x0c' => text.push_str("\\f"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\x0b' => text.push_str("\\v"),
            ' '..='~' => text.push(c),
            // Writing to a string cannot fail.
            '\0'..='\x7f' => drop(write!(text, "\\x{:02x}", c as u32)),
            c if is_print(c) => text.push(c),
            '\0'..='\u{ffff}' => drop(write!(text, "\\u{:04x}", c as u32)),
            _ => drop(write!(text, "\\U{:08x}", c as u32)),
        }
    }
    text.push('"');
}

/// Whether Go would print the character as it is. Rust's debug form escapes the same Unicode
/// categories; the letter before it keeps it from escaping a combining mark too.
fn is_print(c: char) -> bool {
    let text = String::from_iter(['x', c]);
    text.escape_debug().eq(text.chars())
}

#[cfg(test)]
mod tests;
