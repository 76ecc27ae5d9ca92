//! Callers: their names, groups, and what these say.

use std::collections::BTreeMap;

/// The group of callers that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The group of those who watch over the control plane.
pub(crate) const MONITORING: &str = "system:monitoring";
/// The group of nodes.
pub(crate) const NODES: &str = "system:nodes";
/// The user under which this apiserver calls a node's port 10250.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The group of callers with credentials.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";
const NODE_PREFIX: &str = "system:node:";

/// What else is known of a caller: lists of texts by lower-case keys such as `scopes`.
pub(crate) type Extra = BTreeMap<String, Vec<String>>;

/// A caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// Such as `system:node:n1`.
    pub(crate) name: String,
    /// Distinguishes users of the same name over time; may be empty.
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

    /// This apiserver itself, which may do everything.
    pub(crate) fn apiserver() -> User {
        User::authenticated("system:apiserver".into(), vec![MASTERS.into()])
    }

    /// This apiserver as it calls aggregated servers on its own account.
    pub(crate) fn aggregator() -> User {
        let groups = vec![MASTERS.into()];
        User { name: "system:kube-aggregator".into(), groups, ..User::default() }
    }

    /// A caller whose credentials somebody trusted has checked.
    pub(crate) fn vouched_for(mut self) -> User {
        if self.name != ANONYMOUS && !self.is_anonymous() {
            self.join(AUTHENTICATED);
        }
        self
    }

    /// An impersonated user, with the implied groups: those of a service account when no others are
    /// named, and `system:authenticated` or `system:unauthenticated`.
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

impl From<&longshore_tls::User> for User {
    fn from(user: &longshore_tls::User) -> User {
        let longshore_tls::User { name, uid, groups, extra } = user.clone();
        User { uid, extra, ..User::authenticated(name, groups) }
    }
}

/// The node that the caller is: `None` for other callers, empty for one that does not say which.
pub(crate) fn node_name(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    user.is_in(NODES).then_some(name)
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
