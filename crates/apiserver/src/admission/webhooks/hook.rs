//! One webhook of a configuration, and whether it is called for a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::admission::attributes::Attributes;
use crate::admission::policies::{Conditions, Policies};
use crate::api_types::{Gvk, Resource};
use crate::cache::Index;
use crate::kinds;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, text};
use crate::selector::LabelSelector;
use crate::status::StatusError;
use crate::webhook_client::ClientConfig;

/// The time for a webhook that says none (seconds).
const DEFAULT_TIMEOUT: u64 = 10;
/// The longest that is allowed (seconds).
const MAX_TIMEOUT: u64 = 30;

/// A webhook.
#[derive(Debug)]
pub(super) struct Hook {
    /// Configuration, name and place: what tells it from all others.
    pub(super) uid: String,
    pub(super) configuration: String,
    pub(super) name: String,
    pub(super) client: Result<ClientConfig, String>,
    rules: Vec<Rule>,
    is_equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
    pub(super) ignores_failures: bool,
    pub(super) timeout: Duration,
    /// Whether a dry run may call it.
    pub(super) supports_dry_run: bool,
    /// The versions of AdmissionReview that it reads.
    pub(super) versions: Vec<String>,
    /// Whether it wants to see the object again when others change it.
    pub(super) is_reinvoked: bool,
    conditions: Conditions,
    has_conditions: bool,
}

/// Requests that a webhook is called for.
#[derive(Debug)]
pub(in crate::admission) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

/// As what a webhook sees a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct Invocation<'a> {
    pub(in crate::admission) resource: &'a Resource,
    pub(in crate::admission) kind: Gvk,
}

impl Hook {
    fn of(configuration: &str, index: usize, hook: &Value) -> Hook {
        let name = text(&hook["name"]);
        let timeout = hook["timeoutSeconds"].as_u64().unwrap_or(DEFAULT_TIMEOUT);
        Hook {
            uid: format!("{configuration}/{name}/{index}"),
            configuration: configuration.to_owned(),
            name: name.to_owned(),
            client: ClientConfig::of(&hook["clientConfig"]),
            rules: items(&hook["rules"]).iter().map(Rule::of).collect(),
            is_equivalent: hook["matchPolicy"] != "Exact",
            namespaces: LabelSelector::of(&hook["namespaceSelector"]),
            objects: LabelSelector::of(&hook["objectSelector"]),
            ignores_failures: hook["failurePolicy"] == "Ignore",
            timeout: Duration::from_secs(timeout.clamp(1, MAX_TIMEOUT)),
            supports_dry_run: matches!(text(&hook["sideEffects"]), "None" | "NoneOnDryRun"),
            versions: texts(&hook["admissionReviewVersions"]),
            is_reinvoked: hook["reinvocationPolicy"] == "IfNeeded",
            conditions: Conditions::of(&hook["matchConditions"], false),
            has_conditions: !items(&hook["matchConditions"]).is_empty(),
        }
    }

    /// Whether its rules match a request, and as what it sees it.
    pub(super) fn invocation<'a>(&self, attributes: &Attributes<'a>) -> Option<Invocation<'a>> {
        let matches =
            |resource: &Resource| self.rules.iter().any(|rule| rule.matches(attributes, resource));
        if matches(attributes.resource) {
            return Some(Invocation { resource: attributes.resource, kind: attributes.kind });
        }
        if !self.is_equivalent {
            return None;
        }
        self.rules.iter().find_map(|rule| {
            let mut equivalents = equivalents(attributes);
            equivalents.find(|invocation| rule.matches(attributes, invocation.resource))
        })
    }

    /// Whether its selectors and conditions select a request that its rules match.
    pub(super) async fn selects(
        &self,
        registry: &Registry,
        policies: &Policies,
        attributes: &Attributes<'_>,
        invocation: Invocation<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, StatusError> {
        let objects = self.objects.as_ref().map_err(StatusError::internal)?;
        let is_selected = |object: Option<&Value>| object.is_some_and(|o| objects.matches(o));
        if !objects.is_empty() && !is_selected(object) && !is_selected(old) {
            return Ok(false);
        }
        let namespaces = self.namespaces.as_ref().map_err(StatusError::internal)?;
        if !selects_namespace(namespaces, registry, attributes, object).await? {
            return Ok(false);
        }
        if !self.has_conditions {
            return Ok(true);
        }
        let holds = policies
            .conditions_hold(registry, &self.conditions, attributes, invocation, object, old)
            .await?;
        match holds {
            Ok(holds) => Ok(holds),
            Err(_) if self.ignores_failures => Ok(false),
            Err(why) => Err(StatusError::forbidden(attributes.resource, attributes.name, &why)),
        }
    }
}

pub(in crate::admission) async fn selects_namespace(
    selector: &LabelSelector,
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<bool, StatusError> {
    use crate::admission::attributes::Operation;
    let is_namespace = attributes.resource.plural == "namespaces";
    if selector.is_empty() || (attributes.namespace.is_empty() && !is_namespace) {
        return Ok(true);
    }
    let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
    if is_namespace && attributes.subresource.is_empty() && writes {
        return Ok(object.is_some_and(|namespace| selector.matches(namespace)));
    }
    let namespaces = kinds::core("namespaces")?;
    registry.get(namespaces, "", attributes.namespace).await.map(|found| selector.matches(&found))
}

/// The same stored objects under other groups and versions.
pub(in crate::admission) fn equivalents<'a>(
    attributes: &Attributes<'a>,
) -> impl Iterator<Item = Invocation<'a>> + use<'a> {
    let (resource, subresource, kind) =
        (attributes.resource, attributes.subresource.to_owned(), attributes.kind);
    let custom: Vec<&'static Resource> =
        resource.custom.map(|live| live.versions().to_vec()).unwrap_or_default();
    let others = kinds::resources().chain(custom).filter(move |other| {
        let is_itself = (other.group, other.version) == (resource.group, resource.version);
        !is_itself && other.same_storage(resource)
    });
    others.filter_map(move |other| {
        let kind = match subresource.as_str() {
            "" => other.gvk(),
            name => match other.subresource(name)?.gvk {
                own if own == other.gvk() => own,
                _ => kind,
            },
        };
        Some(Invocation { resource: other, kind })
    })
}

impl Rule {
    pub(in crate::admission) fn of(rule: &Value) -> Rule {
        Rule {
            operations: texts(&rule["operations"]),
            groups: texts(&rule["apiGroups"]),
            versions: texts(&rule["apiVersions"]),
            resources: texts(&rule["resources"]),
            scope: text(&rule["scope"]).to_owned(),
        }
    }

    pub(in crate::admission) fn matches(
        &self,
        attributes: &Attributes<'_>,
        resource: &Resource,
    ) -> bool {
        let listed = |list: &[String], wanted: &str| {
            list.iter().any(|listed| listed == "*" || listed == wanted)
        };
        self.is_in_scope(attributes, resource)
            && listed(&self.operations, attributes.operation.name())
            && listed(&self.groups, resource.group)
            && listed(&self.versions, resource.version)
            && self.resources.iter().any(|listed| {
                let (plural, below) = listed.split_once('/').unwrap_or((listed, ""));
                (plural == "*" || plural == resource.plural)
                    && (below == "*" || below == attributes.subresource)
            })
    }

    fn is_in_scope(&self, attributes: &Attributes<'_>, resource: &Resource) -> bool {
        let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
        let is_namespaced = !is_namespace && !attributes.namespace.is_empty();
        match self.scope.as_str() {
            "Namespaced" => is_namespaced,
            "Cluster" => !is_namespaced,
            scope => matches!(scope, "" | "*"),
        }
    }
}

pub(in crate::admission) fn texts(list: &Value) -> Vec<String> {
    items(list).iter().map(|item| text(item).to_owned()).collect()
}

/// The webhooks of all configurations of one kind, by the configurations' names.
#[derive(Default)]
pub(super) struct Hooks {
    configurations: BTreeMap<String, Vec<Arc<Hook>>>,
}

impl Hooks {
    /// All of them in the order in which they are called.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Hook>> {
        self.configurations.values().flatten()
    }
}

impl Index for Hooks {
    fn put(&mut self, configuration: &Value) {
        let name = object::name(configuration);
        let hooks = items(&configuration["webhooks"]).iter().enumerate();
        let hooks = hooks.map(|(index, hook)| Arc::new(Hook::of(name, index, hook))).collect();
        self.configurations.insert(name.to_owned(), hooks);
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.configurations.remove(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::attributes::Operation;
    use crate::kinds::{core, known, lookup};
    use crate::user::User;

    fn hook(rule: Value, policy: &str) -> Hook {
        Hook::of("c", 0, &json!({"name": "h", "rules": [rule], "matchPolicy": policy}))
    }

    fn rule(
        operations: &[&str],
        groups: &[&str],
        versions: &[&str],
        resources: &[&str],
        scope: &str,
    ) -> Value {
        json!({
            "operations": operations, "apiGroups": groups, "apiVersions": versions,
            "resources": resources, "scope": scope,
        })
    }

    #[test]
    fn webhooks_rules_match_requests() {
        let user = User::anonymous();
        let pods = core("pods").unwrap();
        let namespaces = core("namespaces").unwrap();
        let roles = known("rbac.authorization.k8s.io", "clusterroles").unwrap();
        let pod = Attributes::new(Operation::Create, &user, pods, ("n", "p"), false);
        let status = Attributes::new(Operation::Update, &user, pods, ("n", "p"), false)
            .of_subresource("status", pods.gvk());
        let namespace = Attributes::new(Operation::Delete, &user, namespaces, ("", "n"), false);
        let role = Attributes::new(Operation::Create, &user, roles, ("", "r"), false);
        assert_eq!(namespace.namespace, "n");
        let all = &["*"][..];
        for (rule, expected) in [
            (rule(all, all, all, &["*/*"], "*"), [true, true, true, true]),
            (rule(all, all, all, all, "*"), [true, false, true, true]),
            (rule(all, all, all, &["pods"], "*"), [true, false, false, false]),
            (rule(all, all, all, &["pods/*"], "*"), [true, true, false, false]),
            (rule(all, all, all, &["*/status"], "*"), [false, true, false, false]),
            (rule(all, all, all, &["pods/status"], "*"), [false, true, false, false]),
            (rule(&["UPDATE"], all, all, &["*/*"], "*"), [false, true, false, false]),
            (rule(&["DELETE", "CREATE"], all, all, all, ""), [true, false, true, true]),
            (rule(all, &[""], all, all, "*"), [true, false, true, false]),
            (rule(all, &["rbac.authorization.k8s.io"], all, all, "*"), [false, false, false, true]),
            (rule(all, all, &["v1beta1"], &["*/*"], "*"), [false; 4]),
            (rule(all, all, all, &["*/*"], "Cluster"), [false, false, true, true]),
            (rule(all, all, all, &["*/*"], "Namespaced"), [true, true, false, false]),
            (rule(all, all, all, &["*/*"], "Other"), [false; 4]),
        ] {
            let hook = hook(rule, "Exact");
            let found = [&pod, &status, &namespace, &role].map(|a| hook.invocation(a).is_some());
            assert_eq!(found, expected, "{hook:?}");
        }
    }

    #[test]
    fn webhooks_see_equivalent_resources() {
        let user = User::anonymous();
        let scaler = lookup("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let attributes = Attributes::new(Operation::Create, &user, scaler, ("n", "s"), false);
        let rule = rule(&["*"], &["autoscaling"], &["v2"], &["horizontalpodautoscalers"], "*");
        assert!(hook(rule.clone(), "Exact").invocation(&attributes).is_none());
        let seen = hook(rule.clone(), "Equivalent");
        let seen = seen.invocation(&attributes).unwrap();
        assert_eq!((seen.resource.version, seen.kind.version), ("v2", "v2"));
        let status = attributes.of_subresource("status", scaler.gvk());
        assert!(hook(rule, "Equivalent").invocation(&status).is_none(), "another subresource");
    }

    #[test]
    fn webhooks_are_called_in_order_of_their_configurations() {
        let mut hooks = Hooks::default();
        for (configuration, names) in [("b", ["1", "2"]), ("a", ["3", "4"])] {
            let list: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            hooks.put(&json!({"metadata": {"name": configuration}, "webhooks": list}));
        }
        let names = |hooks: &Hooks| hooks.all().map(|hook| hook.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&hooks), ["3", "4", "1", "2"]);
        hooks.remove("", "a");
        assert_eq!(names(&hooks), ["1", "2"]);
    }
}
