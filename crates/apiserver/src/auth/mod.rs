//! Who calls, and what a caller may do. `routes` asks for each request, `SubjectAccessReview`
//! asks the same functions.
//!
//! Current limitations: client certificates are the only credentials, and the rules are fixed:
//! `system:masters`, nodes, the apiserver's own kubelet client, and discovery for everybody known.

mod node;
mod references;
mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub(crate) use node::node_name;
pub(crate) use references::{Reference, ReferenceKind, references};

/// The group of callers that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The group of nodes.
pub(crate) const NODES: &str = "system:nodes";
/// The user under which this apiserver calls a node's port 10250.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
const AUTHENTICATED: &str = "system:authenticated";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// Such as `system:node:n1`.
    pub(crate) name: String,
    /// Such as `system:nodes`.
    pub(crate) groups: Vec<String>,
}

impl User {
    /// A caller whose credentials were checked.
    pub(crate) fn authenticated(name: String, mut groups: Vec<String>) -> User {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        User { name, groups }
    }

    /// A caller without credentials.
    pub(crate) fn anonymous() -> User {
        User { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()] }
    }

    /// Somebody whom another caller stands for; a service account is in its own groups anyhow.
    pub(crate) fn impersonated(name: String, mut groups: Vec<String>) -> User {
        if name == ANONYMOUS {
            return User::anonymous();
        }
        let account = name.strip_prefix("system:serviceaccount:");
        if let (true, Some((namespace, _))) =
            (groups.is_empty(), account.and_then(|account| account.split_once(':')))
        {
            groups = vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
        }
        User::authenticated(name, groups)
    }

    /// Whether the caller is a member of a group.
    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Whether the caller has shown no credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.is_in(UNAUTHENTICATED)
    }
}

/// One thing that a caller wants to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// The caller.
    pub(crate) user: &'a User,
    /// `get`, `list`, `create`, …
    pub(crate) verb: &'a str,
    /// On what.
    pub(crate) target: Target<'a>,
}

/// What an access is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// A URL that is no resource, such as `/version`.
    Path(&'a str),
    /// A resource.
    Resource(ResourceTarget<'a>),
}

/// A resource, or one object of it. Empty strings stand for "not given".
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResourceTarget<'a> {
    /// API group; empty is the core group.
    pub(crate) group: &'a str,
    /// Such as `pods`.
    pub(crate) resource: &'a str,
    /// Such as `status`.
    pub(crate) subresource: &'a str,
    /// Namespace of the object.
    pub(crate) namespace: &'a str,
    /// Name of the object.
    pub(crate) name: &'a str,
    /// Equality requirements of the field selector.
    pub(crate) fields: &'a [(String, String)],
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on.
    Allow,
    /// No, and why (may be empty).
    Deny(Cow<'static, str>),
    /// Only if a pod on the node refers to this object; ask who knows the pods.
    IfReferenced {
        /// The node.
        node: String,
        /// The object.
        reference: Reference,
    },
}

impl Decision {
    fn deny(reason: impl Into<Cow<'static, str>>) -> Decision {
        Decision::Deny(reason.into())
    }
}

/// Judges one access.
pub(crate) fn authorize(access: &Access<'_>) -> Decision {
    if access.user.is_in(MASTERS) || rules::allows(access) {
        return Decision::Allow;
    }
    match (node_name(access.user), &access.target) {
        (Some(""), _) => Decision::deny(format!("unknown node for user {:?}", access.user.name)),
        (Some(node), Target::Resource(target)) => node::authorize(node, access.verb, target),
        _ => Decision::deny(""),
    }
}

/// The message of a refusal, in the words of every Kubernetes apiserver.
pub(crate) fn forbidden_message(access: &Access<'_>, reason: &str) -> String {
    let user = &access.user.name;
    let verb = access.verb;
    let mut message = match &access.target {
        Target::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
        Target::Resource(target) => {
            let (slash, group) =
                (if target.subresource.is_empty() { "" } else { "/" }, target.group);
            let scope = match target.namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            format!(
                "User {user:?} cannot {verb} resource \"{}{slash}{}\" in API group {group:?} {scope}",
                target.resource, target.subresource
            )
        }
    };
    if !reason.is_empty() {
        message.push_str(": ");
        message.push_str(reason);
    }
    message
}
