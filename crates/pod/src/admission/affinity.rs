//! The node selector and required node affinity of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

/// Labels by key.
pub(super) type Labels = BTreeMap<String, String>;

/// Whether the node of that name with those labels matches the pod's selector and affinity.
pub(super) fn matches(pod_spec: &PodSpec, name: &str, labels: &Labels) -> bool {
    let mut selector = pod_spec.node_selector.iter().flatten();
    let affinity = pod_spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| selects_node(required, name, labels))
}

/// Whether a node selector (such as the node affinity of a volume) selects the node of that name
/// with those labels.
pub fn selects_node(
    selector: &NodeSelector,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, name, labels))
}

/// Whether all requirements of a term are met. An empty or invalid term matches no node.
fn matches_term(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|expression| matches_expression(labels, expression).unwrap_or(false))
        && fields.iter().all(|field| matches_field(name, field))
}

/// Whether the labels meet a requirement; `None` if it is invalid.
fn matches_expression(labels: &Labels, expression: &NodeSelectorRequirement) -> Option<bool> {
    let values = expression.values.as_deref().unwrap_or_default();
    let label = labels.get(&expression.key);
    let number = || match values {
        [value] => value.parse::<i64>().ok(),
        _ => None,
    };
    let label_as_number = || label.and_then(|label| label.parse::<i64>().ok());
    match expression.operator.as_str() {
        "In" if !values.is_empty() => Some(label.is_some_and(|label| values.contains(label))),
        "NotIn" if !values.is_empty() => Some(label.is_none_or(|label| !values.contains(label))),
        "Exists" if values.is_empty() => Some(label.is_some()),
        "DoesNotExist" if values.is_empty() => Some(label.is_none()),
        "Gt" => number().map(|bound| label_as_number().is_some_and(|label| label > bound)),
        "Lt" => number().map(|bound| label_as_number().is_some_and(|label| label < bound)),
        _ => None,
    }
}

/// Whether the node's name meets a field requirement; `metadata.name` is the only field.
fn matches_field(name: &str, field: &NodeSelectorRequirement) -> bool {
    let [value] = field.values.as_deref().unwrap_or_default() else { return false };
    let own = if field.key == "metadata.name" { name } else { "" };
    match field.operator.as_str() {
        "In" => own == value,
        "NotIn" => own != value,
        _ => false,
    }
}
