//! Role-based access: bindings give the rules of roles to users, groups and service accounts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::rule::Rule;
use super::{Access, Decision, Rules, Target};
use crate::cache::{Cache, Index};
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, text};
use crate::status::StatusError;
use crate::user::{self, User};

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// How many missing roles a message names at most.
const MAX_FAULTS: usize = 16;
/// How many names (verbs, groups, resources and others) the rules for one decision may have together:
/// some ten milliseconds. What is beyond gives nothing.
const MAX_NAMES_DECIDED: usize = 1 << 22;
/// The same for rules that are listed, and so copied.
const MAX_NAMES_LISTED: usize = 1 << 18;

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

/// Bindings by namespace; the empty one is that of the cluster.
#[derive(Default)]
struct Bindings(HashMap<Box<str>, NamespaceBindings>);

/// The bindings of one namespace.
#[derive(Default)]
struct NamespaceBindings {
    by_name: HashMap<Arc<str>, Binding>,
    /// The roles of each subject, and the bindings that give them. A decision looks at what its caller
    /// has, and at no other subject, however many there are.
    by_subject: HashMap<Subject, BTreeMap<RoleRef, BTreeSet<Arc<str>>>>,
}

struct Binding {
    role: RoleRef,
    subjects: Box<[Subject]>,
}

impl NamespaceBindings {
    fn put(&mut self, name: &str, binding: Binding) {
        self.remove(name);
        let name: Arc<str> = name.into();
        for subject in &binding.subjects {
            let roles = self.by_subject.entry(subject.clone()).or_default();
            roles.entry(binding.role.clone()).or_default().insert(name.clone());
        }
        self.by_name.insert(name, binding);
    }

    fn remove(&mut self, name: &str) {
        let Some(Binding { role, subjects }) = self.by_name.remove(name) else { return };
        for subject in subjects {
            let Entry::Occupied(mut roles) = self.by_subject.entry(subject) else { continue };
            if let Some(names) = roles.get_mut().get_mut(&role) {
                names.remove(name);
                if names.is_empty() {
                    roles.get_mut().remove(&role);
                }
            }
            if roles.get().is_empty() {
                roles.remove();
            }
        }
    }
}

/// Which role a binding gives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RoleRef {
    /// One of the cluster.
    Cluster(Arc<str>),
    /// One of the binding's namespace.
    Namespaced(Arc<str>),
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    User(Arc<str>),
    Group(Arc<str>),
    ServiceAccount { namespace: Arc<str>, name: Arc<str> },
}

impl Subject {
    /// `None` for an invalid subject.
    fn of(subject: &Value, namespace: &str) -> Option<Subject> {
        let name: Arc<str> = text(&subject["name"]).into();
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

    /// Everything that a caller is, each once: who asks for a review names the groups.
    fn all_of(user: &User) -> BTreeSet<Subject> {
        let account = user::service_account(&user.name).map(|(namespace, name)| {
            Subject::ServiceAccount { namespace: namespace.into(), name: name.into() }
        });
        let user_subject = Subject::User(user.name.as_str().into());
        let groups = user.groups.iter().map(|group| Subject::Group(group.as_str().into()));
        account.into_iter().chain([user_subject]).chain(groups).collect()
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
        let indexed = Binding { role: RoleRef::of(binding), subjects };
        self.0.entry(namespace.into()).or_default().put(object::name(binding), indexed);
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(bindings) = self.0.get_mut(namespace) else { return };
        bindings.remove(name);
        if bindings.by_name.is_empty() {
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
    role: &'a RoleRef,
    subject: &'a Subject,
}

impl std::fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace {
            "" => write!(f, "ClusterRoleBinding {:?} of ", self.name)?,
            namespace => write!(f, "RoleBinding \"{}/{namespace}\" of ", self.name)?,
        }
        match self.role {
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
        let rules = roles.read().0.get(&(namespace.into(), (&**name).into())).cloned();
        rules.ok_or_else(|| format!("{kind}.{GROUP} {name:?} not found"))
    }

    /// Shows each rule that a user has in a namespace to `visit`, until it breaks off or the rules
    /// have had `max_names` names. A role is shown once, however many bindings give it.
    fn visit(
        &self,
        user: &User,
        namespace: &str,
        max_names: usize,
        faults: &mut Vec<String>,
        mut visit: impl FnMut(&Source<'_>, &Rule) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let subjects = Subject::all_of(user);
        let mut names_left = max_names;
        let caches = [(&self.cluster_bindings, ""), (&self.bindings, namespace)];
        let caches = &caches[..if namespace.is_empty() { 1 } else { 2 }];
        for (cache, namespace) in caches {
            let bindings = cache.read();
            let Some(bindings) = bindings.0.get(*namespace) else { continue };
            let mut visited = HashSet::new();
            for subject in &subjects {
                for (role, names) in bindings.by_subject.get(subject).into_iter().flatten() {
                    if !visited.insert(role) {
                        continue;
                    }
                    let rules = match self.rules_of(role, namespace) {
                        Ok(rules) => rules,
                        Err(fault) => {
                            if faults.len() < MAX_FAULTS {
                                faults.push(fault);
                            }
                            continue;
                        }
                    };
                    let name = names.first().map(|name| &**name).unwrap_or_default();
                    let source = Source { namespace, name, role, subject };
                    for rule in &*rules {
                        let Some(left) = names_left.checked_sub(1 + rule.name_count()) else {
                            faults.push(format!("roles have more than {max_names} names together"));
                            return ControlFlow::Break(());
                        };
                        names_left = left;
                        visit(&source, rule)?;
                    }
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
        let _ =
            self.visit(access.user, namespace, MAX_NAMES_DECIDED, &mut faults, |source, rule| {
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
        let _ = self.visit(user, namespace, MAX_NAMES_LISTED, faults, |_, rule| {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// `(name, role, subjects)` puts a binding, without subjects it removes one.
    fn changes() -> impl Strategy<Value = Vec<(u8, u8, Vec<u8>)>> {
        vec((0..4u8, 0..3u8, vec(0..5u8, 0..4)), 1..40)
    }

    proptest! {
        #[test]
        fn rbac_index_by_subject_is_that_of_the_bindings_that_are_left(changes in changes()) {
            let mut index = NamespaceBindings::default();
            for (name, role, subjects) in changes {
                let name = format!("b{name}");
                if subjects.is_empty() {
                    index.remove(&name);
                } else {
                    let role = RoleRef::Cluster(format!("r{role}").into());
                    let subject = |id: u8| Subject::User(format!("u{id}").into());
                    let subjects = subjects.into_iter().map(subject).collect();
                    index.put(&name, Binding { role, subjects });
                }
            }
            let mut afresh = NamespaceBindings::default();
            for (name, Binding { role, subjects }) in &index.by_name {
                afresh.put(name, Binding { role: role.clone(), subjects: subjects.clone() });
            }
            prop_assert_eq!(index.by_subject, afresh.by_subject);
        }
    }

    fn role(name: &str, rules: usize, verbs: usize) -> Value {
        let verbs: Vec<String> = (0..verbs).map(|i| format!("v{i}")).collect();
        let rule = json!({"verbs": verbs, "apiGroups": [""], "resources": ["pods"]});
        json!({"kind": "Role", "metadata": {"namespace": "ns", "name": name},
            "rules": vec![rule; rules]})
    }

    fn binding(name: &str, role: &str) -> Value {
        json!({"kind": "RoleBinding", "metadata": {"namespace": "ns", "name": name},
            "roleRef": {"kind": "Role", "name": role},
            "subjects": [{"kind": "Group", "name": name}, {"kind": "User", "name": "u"}]})
    }

    fn user(groups: Vec<String>) -> User {
        User { name: "u".into(), uid: String::new(), groups, extra: Default::default() }
    }

    #[test]
    fn rbac_role_given_by_many_bindings_is_listed_once() {
        let rbac = Rbac::new().unwrap();
        rbac.put(&role("r", 10, 1));
        (0..100).for_each(|i| rbac.put(&binding(&format!("b{i}"), "r")));
        (0..100).for_each(|i| rbac.put(&binding(&format!("lost{i}"), &format!("gone{i}"))));
        let mut all = Rules::default();
        rbac.collect(&user((0..100).map(|i| format!("b{i}")).collect()), "ns", &mut all);
        assert_eq!(all.rules.len(), 10);
        assert_eq!(all.faults.len(), MAX_FAULTS);
    }

    #[test]
    fn rbac_rules_beyond_the_limit_are_not_listed_and_the_answer_says_so() {
        let rbac = Rbac::new().unwrap();
        for i in 0..20 {
            rbac.put(&role(&format!("r{i}"), 10, 2000));
            rbac.put(&binding(&format!("b{i}"), &format!("r{i}")));
        }
        let mut all = Rules::default();
        rbac.collect(&user(Vec::new()), "ns", &mut all);
        assert_eq!(all.rules.len(), 130, "of 200");
        assert_eq!(all.faults, ["roles have more than 262144 names together"]);
    }
}
