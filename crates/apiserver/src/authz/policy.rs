//! The roles and bindings that every cluster starts with, from `data/rbac.json`: some with a feature gate.

use std::collections::BTreeMap;

use longshore_gates::FeatureGates;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rbac::GROUP;
use super::rule::Rule;
use crate::object;

/// The role whose rules are those of all nodes.
const NODE_ROLE: &str = "system:node";
/// Set to "false" on an object, it is left as it is.
pub(crate) const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy<'a> {
    #[serde(borrow)]
    cluster_roles: Vec<Role<'a>>,
    #[serde(borrow)]
    cluster_role_bindings: Vec<Binding<'a>>,
    #[serde(borrow)]
    roles: Vec<Role<'a>>,
    #[serde(borrow)]
    role_bindings: Vec<Binding<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Role<'a> {
    #[serde(default)]
    namespace: &'a str,
    name: &'a str,
    aggregate_to: Option<&'a str>,
    aggregates: Option<&'a str>,
    #[serde(default, borrow)]
    rules: Vec<&'a str>,
    /// Further rules, by the feature gate that they come with. Without any rule, there is no such role.
    #[serde(default, borrow)]
    gated: BTreeMap<&'a str, Vec<&'a str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Binding<'a> {
    #[serde(default)]
    namespace: &'a str,
    name: &'a str,
    role: &'a str,
    #[serde(default, borrow)]
    users: Vec<&'a str>,
    #[serde(default, borrow)]
    groups: Vec<&'a str>,
    #[serde(default, borrow)]
    service_accounts: Vec<&'a str>,
}

/// The text is compiled in, so it either parses for every user or fails the crate's first test.
#[allow(clippy::expect_used)]
fn policy() -> Policy<'static> {
    const DATA: &str = include_str!("../../data/rbac.json");
    serde_json::from_str(DATA).expect("data/rbac.json is well formed")
}

#[allow(clippy::expect_used)]
fn rules(lines: &[&str]) -> Vec<Rule> {
    let rule = |line: &&str| Rule::from_line(line).expect("data/rbac.json has rules of their form");
    lines.iter().map(rule).collect()
}

/// What every node may do.
pub(crate) fn node_rules(gates: &FeatureGates) -> Vec<Rule> {
    let roles = policy().cluster_roles;
    roles
        .iter()
        .find(|role| role.name == NODE_ROLE)
        .map(|role| rules(&role.rules(gates)))
        .unwrap_or_default()
}

/// Every object, with the plural of its resource; roles before bindings.
pub(crate) fn objects(gates: &FeatureGates) -> Vec<(&'static str, Value)> {
    let Policy { mut cluster_roles, mut cluster_role_bindings, roles, role_bindings } = policy();
    let is_absent = |role: &Role<'_>| !role.gated.is_empty() && role.rules(gates).is_empty();
    cluster_role_bindings.retain(|binding| {
        !cluster_roles.iter().any(|role| role.name == binding.role && is_absent(role))
    });
    cluster_roles.retain(|role| !is_absent(role));
    let mut objects = Vec::new();
    let of = |role: &Role<'_>, kind| role.object(kind, gates);
    objects.extend(cluster_roles.iter().map(|r| ("clusterroles", of(r, "ClusterRole"))));
    objects.extend(roles.iter().map(|r| ("roles", of(r, "Role"))));
    let bindings = cluster_role_bindings.iter();
    objects.extend(
        bindings.map(|b| ("clusterrolebindings", b.object("ClusterRoleBinding", "ClusterRole"))),
    );
    let bindings = role_bindings.iter();
    objects.extend(bindings.map(|b| ("rolebindings", b.object("RoleBinding", "Role"))));
    objects
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "annotations": {AUTOUPDATE: "true"},
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        },
    });
    if !namespace.is_empty() {
        object::metadata_mut(&mut object).insert("namespace".into(), namespace.into());
    }
    object
}

impl<'a> Role<'a> {
    fn rules(&self, gates: &FeatureGates) -> Vec<&'a str> {
        let gated = self.gated.iter().filter(|(gate, _)| gates.enabled(gate));
        self.rules.iter().chain(gated.flat_map(|(_, rules)| rules)).copied().collect()
    }

    fn object(&self, kind: &str, gates: &FeatureGates) -> Value {
        let mut role = object(kind, self.namespace, self.name);
        let label = |to: &str| format!("{GROUP}/aggregate-to-{to}");
        if let Some(to) = self.aggregate_to {
            role["metadata"]["labels"][label(to)] = "true".into();
        }
        if let Some(of) = self.aggregates {
            let selector = json!({"matchLabels": {label(of): "true"}});
            role["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
        }
        role["rules"] = rules(&self.rules(gates)).iter().map(Rule::to_value).collect();
        role
    }
}

impl Binding<'_> {
    fn object(&self, kind: &str, role_kind: &str) -> Value {
        let mut binding = object(kind, self.namespace, self.name);
        binding["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": self.role});
        let named = |kind: &'static str| move |name: &&str| json!({"apiGroup": GROUP, "kind": kind, "name": name});
        let account = |path: &&str| {
            let (namespace, name) = path.split_once('/').unwrap_or_default();
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        };
        let subjects: Vec<Value> = self
            .groups
            .iter()
            .map(named("Group"))
            .chain(self.users.iter().map(named("User")))
            .chain(self.service_accounts.iter().map(account))
            .collect();
        if !subjects.is_empty() {
            binding["subjects"] = subjects.into();
        }
        binding
    }
}
