//! Aggregated cluster roles: their rules are those of all roles that their selectors match.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::json;

use crate::Context;
use crate::writes::{unless_replaced, unless_stopped};

/// Workers, as upstream has them.
const WORKERS: usize = 5;

/// PURE: the rules of an aggregated role: those of all roles that its selectors match, in the order of
/// the roles' names, each once. `None`: it is not aggregated, or has them.
fn rules(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.iter().flatten();
    let mut sorted: Vec<&ClusterRole> = roles.iter().map(|role| &**role).collect();
    sorted.sort_by_key(|role| &role.metadata.name);
    sorted.retain(|other| other.metadata.name != role.metadata.name);
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        let selector = Selector::try_from(selector.clone()).ok()?;
        let labels = |role: &ClusterRole| role.metadata.labels.clone().unwrap_or_default();
        let matching = sorted.iter().filter(|other| selector.matches(&labels(other)));
        for rule in matching.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (rules != role.rules.clone().unwrap_or_default()).then_some(rules)
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("ClusterRoleAggregator", &context.queues);
    let roles = context.informers.get::<ClusterRole>();
    roles.subscribe({
        // Any role may be part of any other. There are few that are aggregated.
        let (queue, roles) = (queue.clone(), roles.clone());
        move |_: &Event<ClusterRole>| {
            for role in roles.store().list() {
                if role.aggregation_rule.is_some() {
                    queue.add(key_of(&*role));
                }
            }
        }
    });
    if !unless_stopped(&context, roles.synced()).await {
        return;
    }
    let name = "clusterrole-aggregation-controller";
    run_workers(name, &queue, WORKERS, &context.stop, |key| sync(&context.client, &roles, key))
        .await;
}

async fn sync(
    client: &Client,
    roles: &Informer<ClusterRole>,
    name: String,
) -> Result<(), kube::Error> {
    let Some(role) = roles.store().get(&name) else { return Ok(()) };
    let Some(rules) = rules(&role, &roles.store().list()) else { return Ok(()) };
    let api: Api<ClusterRole> = Api::all(client.clone());
    let patch = json!({
        "metadata": {"uid": role.metadata.uid, "resourceVersion": role.metadata.resource_version},
        "rules": rules,
    });
    // one that was changed meanwhile comes again
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    unless_replaced(patched).map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;

    fn role(name: &str, labels: Value, verbs: &[&str], selectors: Value) -> Arc<ClusterRole> {
        let rules: Vec<Value> =
            verbs.iter().map(|verb| json!({"verbs": [verb], "resources": ["pods"]})).collect();
        let mut role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        if !selectors.is_null() {
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        Arc::new(from_value(role).unwrap())
    }

    fn verbs(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Option<Vec<String>> {
        rules(role, roles).map(|rules| rules.into_iter().flat_map(|rule| rule.verbs).collect())
    }

    #[test]
    fn aggregated_role_has_the_rules_of_those_it_selects() {
        let none = Value::Null;
        let selector = json!([{"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "1"}}]);
        let all = role("all", json!({"a": "1"}), &["old"], selector.clone());
        let roles = [
            role("z", json!({"a": "1"}), &["watch", "get"], none.clone()),
            role("c", json!({"a": "1"}), &["get"], none.clone()),
            role("d", json!({"b": "1"}), &["list", "get"], none.clone()),
            role("e", json!({"c": "1"}), &["delete"], none.clone()),
            all.clone(),
        ];
        assert_eq!(verbs(&all, &roles).unwrap(), ["get", "watch", "list"]);
        let done = role("all", json!({}), &["get", "watch", "list"], selector);
        assert_eq!(verbs(&done, &roles), None);
        assert_eq!(verbs(&roles[0], &roles), None, "it is not aggregated");
        assert_eq!(verbs(&all, &[]).unwrap(), [""; 0], "nothing is left to it");
        let odd = json!([{"matchExpressions": [{"key": "a", "operator": "Odd"}]}]);
        assert_eq!(verbs(&role("odd", json!({}), &["get"], odd), &roles), None);
    }
}
