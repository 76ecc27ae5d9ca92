//! Escalation prevention: writing a role requires all its rules, or the verb `escalate` on it; writing
//! a binding requires the rules of its role, or the verb `bind` on it.

use serde_json::Value;

use super::coverage::Missing;
use super::rbac::{GROUP, RoleRef};
use super::rule::Rule;
use super::{Access, Authorizer, ResourceTarget, Target};
use crate::api_types::Resource;
use crate::kinds::known;
use crate::object;
use crate::schema::value::{items, same, text};
use crate::status::StatusError;
use crate::user::{MASTERS, User};

/// How many rules of one verb on one thing a refusal names.
const MAX_NAMED: usize = 200;

impl Authorizer {
    /// Judges the writing of a role or a binding; other objects pass. `old`: what it replaces.
    pub(crate) fn admit_grant(
        &self,
        user: &User,
        resource: &Resource,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        let is_grant = resource.group == GROUP && !user.is_in(MASTERS);
        if !is_grant || old.is_some_and(|old| differs_in_lifetime_only(new, old)) {
            return Ok(());
        }
        let why = match resource.kind {
            "Role" | "ClusterRole" => self.role_fault(user, resource, new, old),
            _ => self.binding_fault(user, new)?,
        };
        match why {
            None => Ok(()),
            Some(why) => Err(StatusError::forbidden(resource, object::name(new), &why)),
        }
    }

    fn role_fault(
        &self,
        user: &User,
        resource: &Resource,
        new: &Value,
        old: Option<&Value>,
    ) -> Option<String> {
        let (namespace, name) = (object::namespace(new), object::name(new));
        // The name of a role that is only being made is not part of the question.
        let name = if old.is_some() { name } else { "" };
        let target = ResourceTarget::of(resource, namespace, name);
        if self.has_verb(user, "escalate", target) {
            return None;
        }
        let aggregates =
            |role: &Value| !items(&role["aggregationRule"]["clusterRoleSelectors"]).is_empty();
        self.grant_fault(user, namespace, &Rule::all_of(new)).or_else(|| {
            let gathers = aggregates(new) || old.is_some_and(aggregates);
            (gathers && self.grant_fault(user, "", &Rule::everything()).is_some())
                .then(|| "must have cluster-admin privileges to use the aggregationRule".to_owned())
        })
    }

    fn binding_fault(&self, user: &User, binding: &Value) -> Result<Option<String>, StatusError> {
        let (namespace, role) = (object::namespace(binding), RoleRef::of(binding));
        let (plural, name) = match &role {
            RoleRef::Cluster(name) => ("clusterroles", name),
            RoleRef::Namespaced(name) => ("roles", name),
        };
        let target = ResourceTarget {
            group: text(&binding["roleRef"]["apiGroup"]),
            resource: plural,
            namespace,
            name,
            ..ResourceTarget::default()
        };
        if self.has_verb(user, "bind", target) {
            return Ok(None);
        }
        match self.rbac.rules_of(&role, namespace) {
            Ok(rules) => Ok(self.grant_fault(user, namespace, &rules)),
            // To grant what is not there yet would be to grant whatever comes.
            Err(_) => Err(StatusError::not_found(known(GROUP, plural)?, name)),
        }
    }

    fn has_verb(&self, user: &User, verb: &str, target: ResourceTarget<'_>) -> bool {
        self.decide(&Access { user, verb, target: Target::Resource(target) }).is_allowed()
    }

    /// What of these rules the user does not have, if anything.
    fn grant_fault(&self, user: &User, namespace: &str, rules: &[Rule]) -> Option<String> {
        let owned = self.rules(user, namespace);
        let missing = Missing::of(&owned.rules, rules, MAX_NAMED);
        if missing.is_empty() {
            return None;
        }
        let named = Rule::compact(missing.rules);
        let mut lines: Vec<String> = named.iter().map(Rule::to_string).collect();
        lines.sort();
        lines.dedup();
        lines.extend(missing.note.map(str::to_owned));
        let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
        let mut why = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            lines.join("\n")
        );
        if !owned.faults.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", owned.faults.join(", ")));
        }
        Some(why)
    }
}

/// Whether an update touches only owners and finalizers, as a garbage collector does.
fn differs_in_lifetime_only(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        let metadata = object::metadata_mut(&mut object);
        for field in ["ownerReferences", "finalizers", "resourceVersion", "managedFields"] {
            metadata.remove(field);
        }
        object
    };
    same(&without(new), &without(old))
}
