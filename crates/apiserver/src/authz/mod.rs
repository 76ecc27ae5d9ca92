//! Authorization. Used by `routes` for each request, by the access reviews, and by
//! admission checks that go beyond the request itself. Nothing is allowed but by a rule.
//!
//! The modes are tried in order: the first that allows decides. Both work on caches that follow the
//! store ([`crate::cache`]), so a decision reads nothing. A refusal is given only from caches that have
//! seen whatever this server wrote before.
//!
//! Current limitations: no webhooks, no ABAC files; label selectors are no part of a decision.

mod coverage;
mod escalation;
mod node;
pub(crate) mod policy;
mod rbac;
mod rule;
#[cfg(test)]
mod tests;

use tokio_util::sync::CancellationToken;

pub(crate) use self::coverage::Missing;
use self::node::NodeAuthorizer;
pub(crate) use self::node::{mirror_pod_reference, names_audience, secrets};
pub(crate) use self::rbac::GROUP;
use self::rbac::Rbac;
pub(crate) use self::rule::Rule;
use crate::api_types::Resource;
use crate::offload;
use crate::registry::Registry;
use crate::status::StatusError;
use crate::user::{MASTERS, User, node_name};

/// A way to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody may do everything.
    AlwaysAllow,
    /// Denies everything; for tests.
    AlwaysDeny,
    /// A node may do what it needs for the pods that are bound to it.
    Node,
    /// Roles and bindings decide.
    Rbac,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        match name {
            "AlwaysAllow" => Ok(Mode::AlwaysAllow),
            "AlwaysDeny" => Ok(Mode::AlwaysDeny),
            "Node" => Ok(Mode::Node),
            "RBAC" => Ok(Mode::Rbac),
            _ => Err("expected AlwaysAllow, AlwaysDeny, Node or RBAC".into()),
        }
    }
}

/// The attributes of a request to be authorized.
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

impl<'a> ResourceTarget<'a> {
    /// One object of a resource.
    pub(crate) fn of(resource: &Resource, namespace: &'a str, name: &'a str) -> Self {
        ResourceTarget {
            group: resource.group,
            resource: resource.plural,
            namespace,
            name,
            ..ResourceTarget::default()
        }
    }
}

/// The answer, with its reason (which may be empty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on.
    Allow(String),
    /// No.
    Deny(String),
}

impl Decision {
    fn allow() -> Decision {
        Decision::Allow(String::new())
    }

    fn deny(reason: impl Into<String>) -> Decision {
        Decision::Deny(reason.into())
    }

    /// Whether it is a yes.
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allow(_))
    }
}

/// What a user may do in a namespace, as far as it can be listed.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// The rules, by subject and role.
    pub(crate) rules: Vec<Rule>,
    /// Why they may not be all; empty when they are.
    pub(crate) faults: Vec<String>,
}

/// Decides.
pub(crate) struct Authorizer {
    modes: Vec<Mode>,
    rbac: Rbac,
    nodes: NodeAuthorizer,
}

impl Authorizer {
    /// One that knows nothing yet: see [`Authorizer::load`].
    pub(crate) fn new(modes: Vec<Mode>) -> Result<Authorizer, StatusError> {
        Ok(Authorizer { modes, rbac: Rbac::new()?, nodes: NodeAuthorizer::new()? })
    }

    /// Whether this mode is enabled.
    pub(crate) fn has(&self, mode: Mode) -> bool {
        self.modes.contains(&mode)
    }

    /// Reads what decisions are made from.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        if self.has(Mode::Rbac) {
            self.rbac.load(registry).await?;
        }
        if self.has(Mode::Node) {
            self.nodes.load(registry).await?;
        }
        Ok(())
    }

    /// Follows the store until `stop`.
    pub(crate) async fn run(&self, registry: &Registry, stop: CancellationToken) {
        tokio::join!(
            async {
                if self.has(Mode::Rbac) {
                    self.rbac.run(registry, &stop).await;
                }
            },
            async {
                if self.has(Mode::Node) {
                    self.nodes.run(registry, &stop).await;
                }
            },
        );
    }

    /// Whether a caller may do something, and if not, why.
    pub(crate) async fn check(
        &self,
        registry: &Registry,
        access: &Access<'_>,
    ) -> Result<(), String> {
        match self.authorize(registry, access).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(reason) => Err(reason),
        }
    }

    /// Authorizes one access. The groups of a user whom a review names are as many as its body has.
    pub(crate) async fn authorize(&self, registry: &Registry, access: &Access<'_>) -> Decision {
        let bytes = access.user.groups.iter().map(String::len).sum();
        let decision = offload::run(bytes, || self.decide(access));
        if decision.is_allowed() || !self.catch_up(registry, access.user).await {
            return decision;
        }
        offload::run(bytes, || self.decide(access))
    }

    /// Waits a moment for caches that are behind what this server wrote. `false`: none was.
    pub(crate) async fn catch_up(&self, registry: &Registry, user: &User) -> bool {
        let roles = self.has(Mode::Rbac) && self.rbac.catch_up(registry).await;
        let asks_graph = self.has(Mode::Node) && node_name(user).is_some();
        roles | (asks_graph && self.nodes.catch_up(registry).await)
    }

    /// Judges one access from what is known now.
    pub(crate) fn decide(&self, access: &Access<'_>) -> Decision {
        if access.user.is_in(MASTERS) {
            return Decision::allow();
        }
        let mut reasons = Vec::new();
        for mode in &self.modes {
            let decision = match mode {
                Mode::AlwaysAllow => Decision::allow(),
                Mode::AlwaysDeny => Decision::deny("Everything is forbidden."),
                Mode::Node => self.nodes.decide(access),
                Mode::Rbac => self.rbac.decide(access),
            };
            match decision {
                Decision::Allow(_) => return decision,
                Decision::Deny(reason) if reason.is_empty() => {}
                Decision::Deny(reason) => reasons.push(reason),
            }
        }
        Decision::Deny(reasons.join("\n"))
    }

    /// What a user may do in a namespace.
    pub(crate) fn rules(&self, user: &User, namespace: &str) -> Rules {
        let mut rules = Rules::default();
        for mode in &self.modes {
            match mode {
                Mode::AlwaysAllow => rules.rules.extend(Rule::everything()),
                Mode::AlwaysDeny => {}
                Mode::Node if node_name(user).is_some() => {
                    let why = "node authorizer does not support user rule resolution";
                    rules.faults.push(why.to_owned());
                }
                Mode::Node => {}
                Mode::Rbac => self.rbac.collect(user, namespace, &mut rules),
            }
        }
        rules
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
