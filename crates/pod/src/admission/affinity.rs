//! Whether a node is one that the pod wants to be on: its node selector and required affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

/// Labels by key.
pub(super) type Labels = BTreeMap<String, String>;

/// Whether the pod wants to be on the node of that name with those labels.
pub(super) fn matches(pod_spec: &PodSpec, name: &str, labels: &Labels) -> bool {
    let mut selector = pod_spec.node_selector.iter().flatten();
    let affinity = pod_spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| selects_node(required, name, labels))
}

/// Whether a node of that name with those labels is one that the selector selects, such as that of
/// the nodes from which a volume can be reached.
pub fn selects_node(
    selector: &NodeSelector,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    selector.node_selector_terms.iter().any(|term| fulfils(term, name, labels))
}

/// Whether all that a term requires is given. An empty one wants no node; neither does one that
/// makes no sense.
fn fulfils(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|expression| has(labels, expression).unwrap_or(false))
        && fields.iter().all(|field| is_named(name, field))
}

/// Whether the labels are as an expression wants them; `None` if it makes no sense.
fn has(labels: &Labels, expression: &NodeSelectorRequirement) -> Option<bool> {
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

/// Whether the node's name is as a field wants it. There are no other fields.
fn is_named(name: &str, field: &NodeSelectorRequirement) -> bool {
    let [value] = field.values.as_deref().unwrap_or_default() else { return false };
    let own = if field.key == "metadata.name" { name } else { "" };
    match field.operator.as_str() {
        "In" => own == value,
        "NotIn" => own != value,
        _ => false,
    }
}
