//! Who calls, and what a caller may do. `routes` asks for each request, `SubjectAccessReview`
//! asks the same functions.
//!
//! Current limitations: the rules are fixed: `system:masters`, nodes, the apiserver's own kubelet
//! client, discovery for everybody known, and what verifies tokens for service accounts.

mod authenticator;
mod bootstrap;
mod node;
mod references;
mod rules;
#[cfg(test)]
mod tests;
mod token_file;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use authenticator::AuthenticationConfig;
pub(crate) use authenticator::{Authenticator, Error};
pub(crate) use node::node_name;
pub(crate) use references::{Reference, ReferenceKind, references};

/// The group of callers that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The group of nodes.
pub(crate) const NODES: &str = "system:nodes";
/// The user under which this apiserver calls a node's port 10250.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// Which credential a caller has shown, among the user's extra.
pub(crate) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const AUTHENTICATED: &str = "system:authenticated";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";

/// What else is known of a caller: lists of texts by lower-case keys such as `scopes`.
pub(crate) type Extra = BTreeMap<String, Vec<String>>;

/// A caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// Such as `system:node:n1`.
    pub(crate) name: String,
    /// Tells one holder of the name from a later one; empty when there is no such mark.
    pub(crate) uid: String,
    /// Such as `system:nodes`.
    pub(crate) groups: Vec<String>,
    /// Such as the pod that a service account's token was given to.
    pub(crate) extra: Extra,
}

impl User {
    /// A caller whose credentials were checked.
    pub(crate) fn authenticated(name: String, groups: Vec<String>) -> User {
        let mut user = User { name, groups, ..User::default() };
        user.join(AUTHENTICATED);
        user
    }

    /// A caller without credentials.
    pub(crate) fn anonymous() -> User {
        User { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..User::default() }
    }

    /// Somebody whom another caller stands for, in the groups that go without saying too: those of
    /// a service account when no others are named, and that of all who are known, or not.
    pub(crate) fn impersonated(mut self) -> User {
        if let (true, Some((namespace, _))) = (self.groups.is_empty(), service_account(&self.name))
        {
            self.groups = service_account_groups(namespace);
        }
        match self.name == ANONYMOUS {
            true => self.join(UNAUTHENTICATED),
            false if !self.is_anonymous() => self.join(AUTHENTICATED),
            false => {}
        }
        self
    }

    fn join(&mut self, group: &str) {
        if !self.is_in(group) {
            self.groups.push(group.into());
        }
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

/// Namespace and name of the service account whose user this is, if it is one's.
pub(crate) fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// The groups of a namespace's service accounts.
pub(crate) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
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
