//! Validation of label keys and values, taints and node labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;

/// Labels in Kubernetes namespaces that a node may set on itself, as in NodeRestriction.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Label namespaces that a node may use.
const OWN_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Validates `--node-labels`; the error has one entry per fault.
pub(super) fn check_node_labels(labels: &BTreeMap<String, String>) -> Result<(), Vec<String>> {
    let mut errors = Vec::new();
    for (key, value) in labels {
        if is_kubernetes(key) && !may_label_itself(key) {
            errors.push(format!(
                "--node-labels: {key:?} is in the 'kubernetes.io' or 'k8s.io' namespace, where a node may only set \
                 labels that begin with {} or are one of {}",
                OWN_NAMESPACES.join(", "),
                OWN_LABELS.join(", ")
            ));
        }
        errors
            .extend(check_key(key).err().map(|reason| format!("--node-labels: {key:?} {reason}")));
        errors.extend(
            check_value(value)
                .err()
                .map(|reason| format!("--node-labels: value {value:?} of {key:?} {reason}")),
        );
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn is_within(namespace: &str, parent: &str) -> bool {
    namespace == parent || namespace.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn is_kubernetes(key: &str) -> bool {
    ["kubernetes.io", "k8s.io"].iter().any(|parent| is_within(namespace(key), parent))
}

fn may_label_itself(key: &str) -> bool {
    OWN_LABELS.contains(&key)
        || OWN_NAMESPACES.iter().any(|parent| is_within(namespace(key), parent))
}

/// Validates key, value and effect of a taint.
pub(super) fn check_taint(taint: &Taint) -> Result<(), String> {
    check_key(&taint.key).map_err(|reason| format!("key {:?} {reason}", taint.key))?;
    let value = taint.value.as_deref().unwrap_or_default();
    check_value(value).map_err(|reason| format!("value {value:?} {reason}"))?;
    match taint.effect.as_str() {
        "NoSchedule" | "PreferNoSchedule" | "NoExecute" => Ok(()),
        effect => {
            Err(format!("effect {effect:?} must be NoSchedule, PreferNoSchedule or NoExecute"))
        }
    }
}

/// A qualified name: an optional DNS prefix and a slash, then up to 63 name characters.
fn check_key(key: &str) -> Result<(), &'static str> {
    let name = match key.split_once('/') {
        Some((prefix, _)) if !is_dns_subdomain(prefix) => {
            return Err("must have a DNS name before the slash");
        }
        Some((_, name)) => name,
        None => key,
    };
    if is_name(name) {
        Ok(())
    } else {
        Err("must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends")
    }
}

fn check_value(value: &str) -> Result<(), &'static str> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(
            "must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
        )
    }
}

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// A lower-case DNS subdomain, as in object names.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    !text.is_empty() && text.len() <= 253 && text.split('.').all(label)
}
