//! What a node may do to single objects: its own Node, Lease and pods, and what its pods refer to.

use super::{Decision, NODES, Reference, ReferenceKind, ResourceTarget, User};

const NODE_PREFIX: &str = "system:node:";
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The node that the caller is: `None` for other callers, empty for one that does not say which.
pub(crate) fn node_name(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    user.is_in(NODES).then_some(name)
}

pub(super) fn authorize(node: &str, verb: &str, target: &ResourceTarget<'_>) -> Decision {
    match (target.group, target.resource) {
        ("", "secrets") => read_namespaced(node, verb, target, ReferenceKind::Secret),
        ("", "configmaps") => read_namespaced(node, verb, target, ReferenceKind::ConfigMap),
        ("", "serviceaccounts") => service_account(node, verb, target),
        ("", "nodes") => own_node(node, verb, target),
        ("", "pods") => pods(node, verb, target),
        ("coordination.k8s.io", "leases") => lease(node, verb, target),
        _ => Decision::deny(""),
    }
}

fn read_namespaced(
    node: &str,
    verb: &str,
    target: &ResourceTarget<'_>,
    kind: ReferenceKind,
) -> Decision {
    if !matches!(verb, "get" | "list" | "watch") {
        return Decision::deny("can only read resources of this type");
    }
    if !target.subresource.is_empty() {
        return Decision::deny("cannot read subresource");
    }
    if target.namespace.is_empty() {
        return Decision::deny("can only read namespaced object of this type");
    }
    if_referenced(node, target, kind)
}

fn if_referenced(node: &str, target: &ResourceTarget<'_>, kind: ReferenceKind) -> Decision {
    if target.name.is_empty() {
        return Decision::deny("No Object name found");
    }
    Decision::IfReferenced {
        node: node.to_owned(),
        reference: Reference {
            kind,
            namespace: target.namespace.to_owned(),
            name: target.name.to_owned(),
        },
    }
}

fn service_account(node: &str, verb: &str, target: &ResourceTarget<'_>) -> Decision {
    match (verb, target.subresource) {
        ("get", "") => read_namespaced(node, verb, target, ReferenceKind::ServiceAccount),
        ("create", "token") if !target.name.is_empty() => {
            if_referenced(node, target, ReferenceKind::ServiceAccount)
        }
        ("create", _) if !target.name.is_empty() => {
            Decision::deny("can only create token subresource of serviceaccount")
        }
        _ => Decision::deny("can only create tokens for individual service accounts"),
    }
}

fn own_node(node: &str, verb: &str, target: &ResourceTarget<'_>) -> Decision {
    match (target.subresource, verb) {
        // Which node is written is for the admission to judge: it sees the object.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Decision::Allow,
        ("", "get" | "list" | "watch") => match target.name {
            name if name == node => Decision::Allow,
            "" => Decision::deny(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            name => Decision::deny(format!(
                "node '{node}' cannot read '{name}', only its own Node object"
            )),
        },
        _ => Decision::deny(""),
    }
}

fn pods(node: &str, verb: &str, target: &ResourceTarget<'_>) -> Decision {
    match (target.subresource, verb) {
        ("", "get") => if_referenced(node, target, ReferenceKind::Pod),
        ("", "list" | "watch") => {
            let is_scoped =
                |(field, value): &(String, String)| field == "spec.nodeName" && value == node;
            if target.fields.iter().any(is_scoped) {
                Decision::Allow
            } else if !target.name.is_empty() {
                if_referenced(node, target, ReferenceKind::Pod)
            } else {
                Decision::deny("can only list/watch pods with spec.nodeName field selector")
            }
        }
        // Whose pod it is is for the admission to judge.
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
            Decision::Allow
        }
        _ => Decision::deny(""),
    }
}

fn lease(node: &str, verb: &str, target: &ResourceTarget<'_>) -> Decision {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return Decision::deny("can only get, create, update, patch, or delete a node lease");
    }
    if target.namespace != NODE_LEASE_NAMESPACE {
        return Decision::deny(format!(
            "can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"
        ));
    }
    if verb != "create" && target.name != node {
        return Decision::deny(
            "can only access node lease with the same name as the requesting node",
        );
    }
    Decision::Allow
}
