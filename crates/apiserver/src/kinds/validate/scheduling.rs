//! Rules for what a pod asks of the scheduler: affinity, spread over topologies, selectors of nodes.
//! Source: `validateAffinity`, `validateTopologySpreadConstraints` and `ValidateNodeSelector` of
//! upstream's core validation.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{UNKNOWN_OPERATOR, expression_of_labels, selector};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{entries, items, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(path: &Path<'_>, affinity: &Value, causes: &mut Causes) {
    node_affinity(&path.child("nodeAffinity"), &affinity["nodeAffinity"], causes);
    for field in ["podAffinity", "podAntiAffinity"] {
        let path = path.child(field);
        let list = path.child(REQUIRED);
        for (i, term) in items(&affinity[field][REQUIRED]).iter().enumerate() {
            pod_affinity_term(&list.index(i), term, causes);
        }
        let list = path.child(PREFERRED);
        for (i, weighted) in items(&affinity[field][PREFERRED]).iter().enumerate() {
            let path = list.index(i);
            weight(&path, weighted, causes);
            pod_affinity_term(&path.child("podAffinityTerm"), &weighted["podAffinityTerm"], causes);
        }
    }
}

fn node_affinity(path: &Path<'_>, affinity: &Value, causes: &mut Causes) {
    if !affinity[REQUIRED].is_null() {
        node_selector(&path.child(REQUIRED), &affinity[REQUIRED], causes);
    }
    let list = path.child(PREFERRED);
    for (i, preferred) in items(&affinity[PREFERRED]).iter().enumerate() {
        let path = list.index(i);
        weight(&path, preferred, causes);
        node_selector_term(&path.child("preference"), &preferred["preference"], causes);
    }
}

fn weight(path: &Path<'_>, weighted: &Value, causes: &mut Causes) {
    let weight = weighted["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        causes.invalid(&path.child("weight"), &weight, "must be in the range 1-100");
    }
}

/// A selector of nodes, which has terms.
pub(super) fn node_selector(path: &Path<'_>, selector: &Value, causes: &mut Causes) {
    let list = path.child("nodeSelectorTerms");
    if items(&selector["nodeSelectorTerms"]).is_empty() {
        causes.required(&list, "must have at least one node selector term");
    }
    for (i, term) in items(&selector["nodeSelectorTerms"]).iter().enumerate() {
        node_selector_term(&list.index(i), term, causes);
    }
}

fn node_selector_term(path: &Path<'_>, term: &Value, causes: &mut Causes) {
    let list = path.child("matchExpressions");
    for (i, expression) in items(&term["matchExpressions"]).iter().enumerate() {
        expression_of_labels(&list.index(i), expression, &["Gt", "Lt"], causes);
    }
    let list = path.child("matchFields");
    for (i, field) in items(&term["matchFields"]).iter().enumerate() {
        node_field(&list.index(i), field, causes);
    }
}

/// Of the fields of a node, only its name can be selected by.
fn node_field(path: &Path<'_>, field: &Value, causes: &mut Causes) {
    let values = items(&field["values"]);
    let values_path = path.child("values");
    match text(&field["operator"]) {
        "In" | "NotIn" => {
            if values.len() != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node \
                           field selector";
                causes.required(&values_path, why);
            }
        }
        other => causes.invalid(&path.child("operator"), other, UNKNOWN_OPERATOR),
    }
    match text(&field["key"]) {
        "metadata.name" => {
            for (i, value) in values.iter().map(text).enumerate() {
                causes.each(&values_path.index(i), value, names::dns_subdomain(value));
            }
        }
        other => causes.invalid(&path.child("key"), other, "not a valid field selector key"),
    }
}

fn pod_affinity_term(path: &Path<'_>, term: &Value, causes: &mut Causes) {
    selector(&path.child("labelSelector"), &term["labelSelector"], causes);
    selector(&path.child("namespaceSelector"), &term["namespaceSelector"], causes);
    for name in items(&term["namespaces"]).iter().map(text) {
        causes.each(&path.child("namespace"), name, names::dns_label(name));
    }
    let both = ["matchLabelKeys", "mismatchLabelKeys"];
    for field in both {
        label_keys(&path.child(field), term, field, causes);
        if field == "matchLabelKeys" {
            selected_twice(path, term, causes);
        }
    }
    let of = |field: &str| items(&term[field]).iter().map(text).collect::<Vec<_>>();
    let mismatched = of(both[1]);
    for (i, key) in of(both[0]).into_iter().enumerate() {
        if mismatched.contains(&key) {
            let list = path.child("matchLabelKeys");
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            causes.invalid(&list.index(i), key, why);
        }
    }
    let topology = text(&term["topologyKey"]);
    let topology_path = path.child("topologyKey");
    if topology.is_empty() {
        causes.required(&topology_path, "can not be empty");
    }
    causes.each(&topology_path, topology, names::qualified(topology));
}

/// The keys of labels whose values a pod's own decide.
fn label_keys(path: &Path<'_>, owner: &Value, field: &str, causes: &mut Causes) {
    let keys = items(&owner[field]);
    if keys.is_empty() {
        return;
    }
    if owner["labelSelector"].is_null() {
        causes.forbidden(path, "must not be specified when labelSelector is not set");
    }
    for (i, key) in keys.iter().map(text).enumerate() {
        causes.each(&path.index(i), key, names::qualified(key));
    }
}

/// A label that the selector names already cannot be one of `matchLabelKeys`.
fn selected_twice(path: &Path<'_>, owner: &Value, causes: &mut Causes) {
    let selection = &owner["labelSelector"];
    let labels = entries(&selection["matchLabels"]).map(|(key, _)| key.as_str());
    let expressions = items(&selection["matchExpressions"]).iter().map(|e| text(&e["key"]));
    let selected: BTreeSet<&str> = labels.chain(expressions).collect();
    for (i, key) in items(&owner["matchLabelKeys"]).iter().map(text).enumerate() {
        if selected.contains(key) {
            let why = "exists in both matchLabelKeys and labelSelector";
            causes.invalid(&path.index(i), key, why);
        }
    }
}

pub(super) fn topology_spread(path: &Path<'_>, constraints: &Value, causes: &mut Causes) {
    let list = items(constraints);
    for (i, constraint) in list.iter().enumerate() {
        let path = path.index(i);
        let of = |field: &str| text(&constraint[field]);
        let (topology, action) = (of("topologyKey"), of("whenUnsatisfiable"));
        positive(&path.child("maxSkew"), constraint["maxSkew"].as_i64().unwrap_or(0), causes);
        let topology_path = path.child("topologyKey");
        if topology.is_empty() {
            causes.required(&topology_path, "can not be empty");
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action) {
            causes.not_supported(&path.child("whenUnsatisfiable"), action, &actions);
        }
        let same = |other: &Value| {
            text(&other["topologyKey"]) == topology && text(&other["whenUnsatisfiable"]) == action
        };
        if list.iter().skip(i + 1).any(same) {
            let pair = path.child("{topologyKey, whenUnsatisfiable}");
            causes.duplicate(&pair, &format!("{{{topology}, {action}}}"), "");
        }
        if let Some(domains) = constraint["minDomains"].as_i64() {
            let field = path.child("minDomains");
            positive(&field, domains, causes);
            if action != "DoNotSchedule" {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                causes.invalid(&field, &domains, why);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policies = ["Honor", "Ignore"];
            let policy = text(&constraint[field]);
            if !constraint[field].is_null() && !policies.contains(&policy) {
                causes.not_supported(&path.child(field), policy, &policies);
            }
        }
        label_keys(&path.child("matchLabelKeys"), constraint, "matchLabelKeys", causes);
        selected_twice(&path.child("matchLabelKeys"), constraint, causes);
        selector(&path.child("labelSelector"), &constraint["labelSelector"], causes);
    }
}

fn positive(path: &Path<'_>, number: i64, causes: &mut Causes) {
    if number <= 0 {
        causes.invalid(path, &number, "must be greater than zero");
    }
}
