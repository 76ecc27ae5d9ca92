//! Authorization. Used by `routes` for each request, by the access reviews, and by
//! admission checks that go beyond the request itself. Nothing is allowed but by a rule.
//!
//! The authorizers are tried in order: the first that allows decides, and so does a webhook that denies.
//! Roles and nodes are in caches that follow the store ([`crate::cache`]), so a decision reads nothing. A
//! refusal is given only from caches that have seen whatever this server wrote before.
//!
//! Current limitations: label selectors are no part of a decision.

mod abac;
mod conditions;
mod config;
mod coverage;
mod escalation;
mod metrics;
mod node;
pub(crate) mod policy;
mod rbac;
mod rule;
#[cfg(test)]
mod tests;
mod webhook;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod webhook_tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_gates::FeatureGates;
use parking_lot::RwLock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use self::abac::Policies;
pub use self::config::AuthorizationConfig;
pub(crate) use self::config::{AuthorizerConfig, Connection, WebhookConfig};
pub(crate) use self::coverage::Missing;
use self::metrics::Metrics;
use self::node::NodeAuthorizer;
pub(crate) use self::node::{mirror_pod_reference, names_audience, secrets};
pub(crate) use self::rbac::GROUP;
use self::rbac::Rbac;
pub(crate) use self::rule::Rule;
use self::webhook::{Opinion, Verdict, Webhook};
use crate::api_types::Resource;
use crate::config_file::{FollowedFile, Rejected};
use crate::offload;
use crate::registry::Registry;
use crate::status::StatusError;
use crate::user::{MASTERS, User, node_name};

/// How often the file with the authorizers is looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// A way to decide that is no webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Policies of a file decide.
    Abac,
    /// Everybody may do everything.
    AlwaysAllow,
    /// Denies everything; for tests.
    AlwaysDeny,
    /// A node may do what it needs for the pods that are bound to it.
    Node,
    /// Roles and bindings decide.
    Rbac,
}

impl Mode {
    /// The type, and the name that configurations give it.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Mode::Abac => ("ABAC", "abac"),
            Mode::AlwaysAllow => ("AlwaysAllow", "alwaysallow"),
            Mode::AlwaysDeny => ("AlwaysDeny", "alwaysdeny"),
            Mode::Node => ("Node", "node"),
            Mode::Rbac => ("RBAC", "rbac"),
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        match name {
            "ABAC" => Ok(Mode::Abac),
            "AlwaysAllow" => Ok(Mode::AlwaysAllow),
            "AlwaysDeny" => Ok(Mode::AlwaysDeny),
            "Node" => Ok(Mode::Node),
            "RBAC" => Ok(Mode::Rbac),
            _ => Err("expected ABAC, AlwaysAllow, AlwaysDeny, Node or RBAC".into()),
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
    /// Version of the group, which only webhooks look at.
    pub(crate) version: &'a str,
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
            version: resource.version,
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
    /// No: nobody allows it.
    Deny(String),
    /// No, as one denies it, whatever others say.
    Veto(String),
    /// No, as one that was asked failed.
    Failed {
        /// Whether the failure denies it, whatever others say.
        is_veto: bool,
        /// What the others say.
        reason: String,
        /// The failure.
        error: String,
    },
}

impl Decision {
    fn allow() -> Decision {
        Decision::Allow(String::new())
    }

    fn deny(reason: impl Into<String>) -> Decision {
        Decision::Deny(reason.into())
    }

    /// The reason, and the failure if there was one.
    pub(crate) fn into_texts(self) -> (String, Option<String>) {
        match self {
            Decision::Allow(reason) | Decision::Deny(reason) | Decision::Veto(reason) => {
                (reason, None)
            }
            Decision::Failed { reason, error, .. } => (reason, Some(error)),
        }
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

/// One authorizer of the chain.
enum Step {
    /// Those that follow each other and are no webhooks.
    Local(Vec<Mode>),
    Webhook(Box<Webhook>),
}

/// Decides.
pub(crate) struct Authorizer {
    /// Those that are no webhooks; they stay, whatever the file says later.
    modes: Vec<Mode>,
    chain: RwLock<Arc<Vec<Step>>>,
    policies: Policies,
    rbac: Rbac,
    nodes: NodeAuthorizer,
    file: Option<FollowedFile>,
    metrics: Metrics,
}

impl Authorizer {
    /// One that knows nothing yet: see [`Authorizer::load`].
    pub(crate) fn new(
        config: AuthorizationConfig,
        gates: &FeatureGates,
    ) -> Result<Authorizer, StatusError> {
        let modes = config.local();
        let unusable = |why: String| StatusError::internal_plain(why);
        let metrics = Metrics::default();
        let chain = chain(&config.authorizers, &metrics).map_err(unusable)?;
        let policies = match &config.policy_file {
            Some(file) => Policies::load(file).map_err(|error| unusable(error.to_string()))?,
            None => Policies::default(),
        };
        let followed = |(path, text): (PathBuf, String)| {
            FollowedFile::new(path, &text, RELOAD_INTERVAL, RELOAD_INTERVAL)
        };
        Ok(Authorizer {
            modes,
            chain: RwLock::new(Arc::new(chain)),
            policies,
            rbac: Rbac::new()?,
            nodes: NodeAuthorizer::new(gates)?,
            file: config.file.map(followed),
            metrics,
        })
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

    /// Follows the store, and the file, until `stop`.
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
            async {
                tokio::select! {
                    () = self.follow_file() => {}
                    () = stop.cancelled() => {}
                }
            },
        );
    }

    /// Takes the file in whenever it has changed and is valid; otherwise what was there stays.
    async fn follow_file(&self) {
        let Some(file) = &self.file else { return };
        loop {
            let result = match file.changed().await {
                Ok(text) => file.noted(&text, self.reload(&text)),
                Err(why) => Err(why),
            };
            if let Err(why) = result {
                tracing::error!(why, "failed to reload authorization config");
            }
        }
    }

    fn reload(&self, text: &str) -> Result<(), Rejected> {
        let read = config::parse(text).and_then(|authorizers| {
            let config = AuthorizationConfig { authorizers, ..AuthorizationConfig::default() };
            let (local, own) = (config.local(), &self.modes);
            match local.iter().all(|mode| own.contains(mode)) && local.len() == own.len() {
                true => chain(&config.authorizers, &self.metrics),
                false => Err(format!(
                    "missing required types, or types that were not there at the start: {own:?}"
                )),
            }
        });
        *self.chain.write() = Arc::new(read.map_err(Rejected::Invalid)?);
        tracing::info!("reloaded authorization config");
        Ok(())
    }

    /// Whether a caller may do something, and why or why not. Where it cannot be decided, it is an error.
    pub(crate) async fn check(
        &self,
        registry: &Registry,
        access: &Access<'_>,
    ) -> Result<Result<String, String>, StatusError> {
        let decision = self.authorize(registry, access).await;
        let result = match &decision {
            Decision::Allow(_) => "allowed",
            Decision::Deny(_) => "no-opinion",
            Decision::Veto(_) => "denied",
            Decision::Failed { .. } => "error",
        };
        self.metrics.attempt(result);
        match decision {
            Decision::Allow(reason) => Ok(Ok(reason)),
            Decision::Deny(reason) | Decision::Veto(reason) => Ok(Err(reason)),
            Decision::Failed { error, .. } => {
                Err(StatusError::internal_plain(format!("Internal Server Error: {error}")))
            }
        }
    }

    /// Authorizes one access. The groups of a user whom a review names are as many as its body has.
    pub(crate) async fn authorize(&self, registry: &Registry, access: &Access<'_>) -> Decision {
        self.ask(Some(registry), access).await
    }

    /// Waits a moment for caches that are behind what this server wrote. `false`: none was.
    pub(crate) async fn catch_up(&self, registry: &Registry, user: &User) -> bool {
        let roles = self.has(Mode::Rbac) && self.rbac.catch_up(registry).await;
        let asks_graph = self.has(Mode::Node) && node_name(user).is_some();
        roles | (asks_graph && self.nodes.catch_up(registry).await)
    }

    /// Asks one after the other. Without a registry, from what is known now.
    async fn ask(&self, registry: Option<&Registry>, access: &Access<'_>) -> Decision {
        if access.user.is_in(MASTERS) {
            return Decision::allow();
        }
        let chain = self.chain.read().clone();
        let bytes = access.user.groups.iter().map(String::len).sum();
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for step in chain.iter() {
            match step {
                Step::Local(modes) => {
                    let mut decision = offload::run(bytes, || self.ask_local(modes, access));
                    if let (Some(registry), false) = (registry, decision.is_allowed())
                        && self.catch_up(registry, access.user).await
                    {
                        decision = offload::run(bytes, || self.ask_local(modes, access));
                    }
                    match decision {
                        Decision::Deny(reason) if reason.is_empty() => {}
                        Decision::Deny(reason) => reasons.push(reason),
                        decision => return decision,
                    }
                }
                Step::Webhook(webhook) => {
                    let Opinion { verdict, reason, error } = webhook.opinion(access).await;
                    let final_one = match verdict {
                        Verdict::Allow => Some("allowed"),
                        Verdict::Deny => Some("denied"),
                        Verdict::NoOpinion => None,
                    };
                    if let Some(decision) = final_one {
                        self.metrics.decided("Webhook", webhook.name(), decision);
                    }
                    match (verdict, error) {
                        (Verdict::Allow, _) => return Decision::Allow(reason),
                        (Verdict::Deny, None) => return Decision::Veto(reason),
                        (Verdict::Deny, Some(error)) => {
                            return Decision::Failed { is_veto: true, reason, error };
                        }
                        (Verdict::NoOpinion, error) => {
                            reasons.extend(Some(reason).filter(|reason| !reason.is_empty()));
                            errors.extend(error);
                        }
                    }
                }
            }
        }
        let reason = reasons.join("\n");
        match errors.is_empty() {
            true => Decision::Deny(reason),
            false => Decision::Failed { is_veto: false, reason, error: errors.join(", ") },
        }
    }

    /// Judges one access from what is known now, for callers that cannot wait: a thread waits for webhooks.
    pub(crate) fn decide(&self, access: &Access<'_>) -> Decision {
        if access.user.is_in(MASTERS) {
            return Decision::allow();
        }
        let chain = self.chain.read().clone();
        if let [Step::Local(modes)] = chain.as_slice() {
            return self.ask_local(modes, access);
        }
        match Handle::try_current() {
            Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
                tokio::task::block_in_place(|| handle.block_on(self.ask(None, access)))
            }
            _ => Decision::Failed {
                is_veto: false,
                reason: String::new(),
                error: "webhooks cannot be called from here".to_owned(),
            },
        }
    }

    fn ask_local(&self, modes: &[Mode], access: &Access<'_>) -> Decision {
        let mut reasons = Vec::new();
        for mode in modes {
            let decision = match mode {
                Mode::Abac => self.policies.decide(access),
                Mode::AlwaysAllow => Decision::allow(),
                Mode::AlwaysDeny => Decision::deny("Everything is forbidden."),
                Mode::Node => self.nodes.decide(access),
                Mode::Rbac => self.rbac.decide(access),
            };
            match decision {
                Decision::Deny(reason) if reason.is_empty() => {}
                Decision::Deny(reason) => reasons.push(reason),
                decision => {
                    let (kind, name) = mode.names();
                    self.metrics.decided(kind, name, "allowed");
                    return decision;
                }
            }
        }
        Decision::Deny(reasons.join("\n"))
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// What a user may do in a namespace.
    pub(crate) fn rules(&self, user: &User, namespace: &str) -> Rules {
        let mut rules = Rules::default();
        for mode in &self.modes {
            match mode {
                Mode::Abac => self.policies.collect(user, namespace, &mut rules),
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
        if self.chain.read().iter().any(|step| matches!(step, Step::Webhook(_))) {
            let why = "webhook authorizer does not support user rule resolution";
            rules.faults.push(why.to_owned());
        }
        rules
    }
}

/// The chain of authorizers. Without any, everything is denied.
fn chain(authorizers: &[AuthorizerConfig], metrics: &Metrics) -> Result<Vec<Step>, String> {
    let mut chain: Vec<Step> = Vec::new();
    for authorizer in authorizers {
        match (authorizer, chain.last_mut()) {
            (AuthorizerConfig::Webhook(config), _) => {
                let webhook = Webhook::new(config, metrics.clone())
                    .map_err(|why| format!("authorization webhook {}: {why}", config.name))?;
                chain.push(Step::Webhook(Box::new(webhook)));
            }
            (AuthorizerConfig::Local(mode), Some(Step::Local(modes))) => modes.push(*mode),
            (AuthorizerConfig::Local(mode), _) => chain.push(Step::Local(vec![*mode])),
        }
    }
    if chain.is_empty() {
        chain.push(Step::Local(Vec::new()));
    }
    Ok(chain)
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
