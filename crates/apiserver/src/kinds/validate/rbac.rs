//! Rules for roles and bindings.

use serde_json::Value;

use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{items, same, text};
use crate::selector::LabelSelector;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(in crate::kinds) fn role(role: &Value, causes: &mut Causes) {
    rules(role, true, causes);
}

pub(in crate::kinds) fn cluster_role(role: &Value, causes: &mut Causes) {
    rules(role, false, causes);
    aggregation(&role["aggregationRule"], causes);
}

fn rules(role: &Value, namespaced: bool, causes: &mut Causes) {
    let path = Path::root("rules");
    for (i, rule) in items(&role["rules"]).iter().enumerate() {
        policy_rule(&path.index(i), rule, namespaced, causes);
    }
}

fn policy_rule(path: &Path<'_>, rule: &Value, namespaced: bool, causes: &mut Causes) {
    let is_empty = |field: &str| items(&rule[field]).is_empty();
    if is_empty("verbs") {
        causes.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    if !is_empty("nonResourceURLs") {
        let (path, urls) = (path.child("nonResourceURLs"), &rule["nonResourceURLs"]);
        if namespaced {
            causes.invalid(&path, urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].into_iter().any(|field| !is_empty(field)) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            causes.invalid(&path, urls, why);
        }
        return;
    }
    if is_empty("apiGroups") {
        let why = "resource rules must supply at least one api group";
        causes.required(&path.child("apiGroups"), why);
    }
    if is_empty("resources") {
        let why = "resource rules must supply at least one resource";
        causes.required(&path.child("resources"), why);
    }
}

fn aggregation(rule: &Value, causes: &mut Causes) {
    if !rule.is_object() {
        return;
    }
    let path = Path::root("aggregationRule");
    let path = path.child("clusterRoleSelectors");
    let selectors = items(&rule["clusterRoleSelectors"]);
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        causes.required(&path, why);
    }
    for (i, selector) in selectors.iter().enumerate() {
        super::selector(&path.index(i), selector, causes);
    }
    if selectors.iter().any(|selector| LabelSelector::of(selector).is_err()) {
        causes.invalid(&path, &Value::Null, "invalid label selector.");
    }
}

pub(in crate::kinds) fn binding(
    binding: &Value,
    old: Option<&Value>,
    namespaced: bool,
    causes: &mut Causes,
) {
    let (path, role) = (Path::root("roleRef"), &binding["roleRef"]);
    only(&path.child("apiGroup"), &role["apiGroup"], &[GROUP], causes);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    only(&path.child("kind"), &role["kind"], kinds, causes);
    match text(&role["name"]) {
        "" => causes.required(&path.child("name"), ""),
        name => causes.each(&path.child("name"), name, names::path_segment(name)),
    }
    let subjects = Path::root("subjects");
    for (i, subject) in items(&binding["subjects"]).iter().enumerate() {
        self::subject(&subjects.index(i), subject, namespaced, causes);
    }
    if let Some(old) = old
        && !same(role, &old["roleRef"])
    {
        causes.invalid(&path, role, "cannot change roleRef");
    }
}

fn subject(path: &Path<'_>, subject: &Value, namespaced: bool, causes: &mut Causes) {
    let name = text(&subject["name"]);
    if name.is_empty() {
        causes.required(&path.child("name"), "");
    }
    match text(&subject["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                causes.each(&path.child("name"), name, names::dns_subdomain(name));
            }
            only(&path.child("apiGroup"), &subject["apiGroup"], &[""], causes);
            if !namespaced && text(&subject["namespace"]).is_empty() {
                causes.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => only(&path.child("apiGroup"), &subject["apiGroup"], &[GROUP], causes),
        kind => {
            causes.not_supported(&path.child("kind"), kind, &["ServiceAccount", "User", "Group"]);
        }
    }
}

/// The text is one of these, even when it is empty.
fn only(path: &Path<'_>, value: &Value, supported: &[&str], causes: &mut Causes) {
    if !supported.contains(&text(value)) {
        causes.not_supported(path, text(value), supported);
    }
}
