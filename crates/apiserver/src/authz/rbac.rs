//! Role-based access: bindings give the rules of roles to users, groups and service accounts.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Index};
use super::rule::Rule;
use super::{Access, Decision, Rules, Target};
use crate::auth::{self, User};
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, text};
use crate::status::StatusError;

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// Namespace (empty for cluster roles) and name.
type RoleKey = (Box<str>, Box<str>);

/// Rules of roles.
#[derive(Default)]
struct Roles(HashMap<RoleKey, Arc<[Rule]>>);

impl Index for Roles {
    fn put(&mut self, role: &Value) {
        let key = (object::namespace(role).into(), object::name(role).into());
        self.0.insert(key, Rule::all_of(role).into());
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        self.0.remove(&(namespace.into(), name.into()));
    }
}

/// Bindings by namespace (empty for those of the cluster) and name.
#[derive(Default)]
struct Bindings(BTreeMap<Box<str>, BTreeMap<Box<str>, Binding>>);

struct Binding {
    role: RoleRef,
    subjects: Box<[Subject]>,
}

/// Which role a binding gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoleRef {
    /// One of the cluster.
    Cluster(Box<str>),
    /// One of the binding's namespace.
    Namespaced(Box<str>),
}

impl RoleRef {
    pub(super) fn of(binding: &Value) -> RoleRef {
        let name = text(&binding["roleRef"]["name"]).into();
        match text(&binding["roleRef"]["kind"]) {
            "Role" => RoleRef::Namespaced(name),
            _ => RoleRef::Cluster(name),
        }
    }
}

enum Subject {
    User(Box<str>),
    Group(Box<str>),
    ServiceAccount { namespace: Box<str>, name: Box<str> },
}

impl Subject {
    /// `None` for what can be nobody.
    fn of(subject: &Value, namespace: &str) -> Option<Subject> {
        let name: Box<str> = text(&subject["name"]).into();
        match text(&subject["kind"]) {
            "User" => Some(Subject::User(name)),
            "Group" => Some(Subject::Group(name)),
            "ServiceAccount" => {
                let own = Some(text(&subject["namespace"])).filter(|own| !own.is_empty());
                let namespace = own.unwrap_or(namespace);
                (!namespace.is_empty())
                    .then(|| Subject::ServiceAccount { namespace: namespace.into(), name })
            }
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => user.name == **name,
            Subject::Group(name) => user.is_in(name),
            Subject::ServiceAccount { namespace, name } => {
                auth::service_account(&user.name) == Some((namespace, name))
            }
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::User(name) => write!(f, "User {name:?}"),
            Subject::Group(name) => write!(f, "Group {name:?}"),
            Subject::ServiceAccount { namespace, name } => {
                write!(f, "ServiceAccount \"{name}/{namespace}\"")
            }
        }
    }
}

impl Index for Bindings {
    fn put(&mut self, binding: &Value) {
        let namespace = object::namespace(binding);
        let subjects = items(&binding["subjects"]).iter();
        let subjects = subjects.filter_map(|subject| Subject::of(subject, namespace)).collect();
        let binding_of = Binding { role: RoleRef::of(binding), subjects };
        let bindings = self.0.entry(namespace.into()).or_default();
        bindings.insert(object::name(binding).into(), binding_of);
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(bindings) = self.0.get_mut(namespace) else { return };
        bindings.remove(name);
        if bindings.is_empty() {
            self.0.remove(namespace);
        }
    }
}

/// Decides by roles and bindings.
pub(super) struct Rbac {
    cluster_roles: Cache<Roles>,
    roles: Cache<Roles>,
    cluster_bindings: Cache<Bindings>,
    bindings: Cache<Bindings>,
}

/// Whence a rule comes, for reasons.
struct Source<'a> {
    namespace: &'a str,
    name: &'a str,
    binding: &'a Binding,
    subject: &'a Subject,
}

impl std::fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace {
            "" => write!(f, "ClusterRoleBinding {:?} of ", self.name)?,
            namespace => write!(f, "RoleBinding \"{}/{namespace}\" of ", self.name)?,
        }
        match &self.binding.role {
            RoleRef::Cluster(name) => write!(f, "ClusterRole {name:?} to {}", self.subject),
            RoleRef::Namespaced(name) => write!(f, "Role {name:?} to {}", self.subject),
        }
    }
}

impl Rbac {
    pub(super) fn new() -> Result<Rbac, StatusError> {
        Ok(Rbac {
            cluster_roles: Cache::new(GROUP, "clusterroles")?,
            roles: Cache::new(GROUP, "roles")?,
            cluster_bindings: Cache::new(GROUP, "clusterrolebindings")?,
            bindings: Cache::new(GROUP, "rolebindings")?,
        })
    }

    pub(super) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.cluster_roles.load(registry).await?;
        self.roles.load(registry).await?;
        self.cluster_bindings.load(registry).await?;
        self.bindings.load(registry).await
    }

    pub(super) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        tokio::join!(
            self.cluster_roles.run(registry, stop),
            self.roles.run(registry, stop),
            self.cluster_bindings.run(registry, stop),
            self.bindings.run(registry, stop),
        );
    }

    pub(super) async fn catch_up(&self, registry: &Registry) -> bool {
        let (a, b, c, d) = tokio::join!(
            self.cluster_roles.catch_up(registry),
            self.roles.catch_up(registry),
            self.cluster_bindings.catch_up(registry),
            self.bindings.catch_up(registry),
        );
        a | b | c | d
    }

    /// The rules of a role; the error names one that is not there.
    pub(super) fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[Rule]>, String> {
        let (roles, namespace, kind, name) = match role {
            RoleRef::Cluster(name) => (&self.cluster_roles, "", "clusterrole", name),
            RoleRef::Namespaced(name) => (&self.roles, namespace, "role", name),
        };
        let rules = roles.read().0.get(&(namespace.into(), name.clone())).cloned();
        rules.ok_or_else(|| format!("{kind}.{GROUP} {name:?} not found"))
    }

    /// Shows each rule that a user has in a namespace to `visit`, until it breaks off.
    fn visit(
        &self,
        user: &User,
        namespace: &str,
        faults: &mut Vec<String>,
        mut visit: impl FnMut(&Source<'_>, &Rule) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let caches = [(&self.cluster_bindings, ""), (&self.bindings, namespace)];
        let caches = &caches[..if namespace.is_empty() { 1 } else { 2 }];
        for (cache, namespace) in caches {
            let bindings = cache.read();
            for (name, binding) in bindings.0.get(*namespace).into_iter().flatten() {
                let Some(subject) = binding.subjects.iter().find(|subject| subject.is(user)) else {
                    continue;
                };
                match self.rules_of(&binding.role, namespace) {
                    Ok(rules) => {
                        let source = Source { namespace, name, binding, subject };
                        rules.iter().try_for_each(|rule| visit(&source, rule))?;
                    }
                    Err(fault) => faults.push(fault),
                }
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn decide(&self, access: &Access<'_>) -> Decision {
        let namespace = match &access.target {
            Target::Resource(target) => target.namespace,
            Target::Path(_) => "",
        };
        let (mut faults, mut reason) = (Vec::new(), None);
        let _ = self.visit(access.user, namespace, &mut faults, |source, rule| {
            if !rule.allows(access.verb, &access.target) {
                return ControlFlow::Continue(());
            }
            reason = Some(format!("RBAC: allowed by {source}"));
            ControlFlow::Break(())
        });
        match (reason, faults.as_slice()) {
            (Some(reason), _) => Decision::Allow(reason),
            (None, []) => Decision::deny(""),
            (None, [fault]) => Decision::Deny(format!("RBAC: {fault}")),
            (None, faults) => Decision::Deny(format!("RBAC: [{}]", faults.join(", "))),
        }
    }

    pub(super) fn collect(&self, user: &User, namespace: &str, all: &mut Rules) {
        let Rules { rules, faults } = all;
        let _ = self.visit(user, namespace, faults, |_, rule| {
            rules.push(rule.clone());
            ControlFlow::Continue(())
        });
    }

    #[cfg(test)]
    pub(super) fn put(&self, object: &Value) {
        match text(&object["kind"]) {
            "ClusterRole" => self.cluster_roles.put(object),
            "Role" => self.roles.put(object),
            "ClusterRoleBinding" => self.cluster_bindings.put(object),
            _ => self.bindings.put(object),
        }
    }
}
