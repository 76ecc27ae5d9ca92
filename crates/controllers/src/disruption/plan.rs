//! PURE: how many pods of a budget may be disrupted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;

use crate::workload::{Rounding, count, is_ready, name_of, namespace_of, number, scaled};

/// How long a pod whose eviction was allowed may take to be deleted, in seconds.
const DELETION_TIMEOUT: i64 = 120;

/// The message about a pod that several budgets are for, of these names.
pub(super) fn several(pod: &Pod, mut budgets: Vec<String>) -> Option<String> {
    budgets.sort();
    let first = budgets.first().filter(|_| budgets.len() > 1)?;
    Some(format!(
        "Pod {:?}/{:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily.",
        namespace_of(pod),
        name_of(pod)
    ))
}

/// A selector as Go prints it in messages.
pub(super) fn printed(selector: &LabelSelector) -> String {
    let labels: String = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| format!("{key}: {value},"))
        .collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|one| {
            let values = one.values.as_deref().unwrap_or_default().join(" ");
            let (key, operator) = (&one.key, &one.operator);
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// The numbers that a budget needs of the pods' owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    /// The pods that there should be.
    pub(super) pods: isize,
    /// The least of them that must be healthy.
    pub(super) healthy: isize,
}

/// Whether the replicas of the pods' owners matter, rather than the pods that there are.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// The expected numbers; `scale` is the sum of the replicas of the owners. The error says what is
/// wrong with the budget.
pub(super) fn expected(
    budget: &PodDisruptionBudget,
    pods: usize,
    scale: isize,
) -> Result<Expected, String> {
    let spec = budget.spec.clone().unwrap_or_default();
    let share = |value: &IntOrString| {
        scaled(Some(value), scale, Rounding::Up)
            .ok_or_else(|| format!("invalid value for IntOrString: {value:?}"))
    };
    if let Some(most) = &spec.max_unavailable {
        let healthy = scale.saturating_sub(share(most)?).max(0);
        return Ok(Expected { pods: scale, healthy });
    }
    match &spec.min_available {
        Some(IntOrString::Int(least)) => Ok(Expected {
            pods: isize::try_from(pods).unwrap_or(isize::MAX),
            healthy: count(Some(*least)),
        }),
        Some(percent) => Ok(Expected { pods: scale, healthy: share(percent)? }),
        None => Ok(Expected { pods: 0, healthy: 0 }),
    }
}

/// The outcome for a budget.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) status: PodDisruptionBudgetStatus,
    /// Pods that were to be evicted and were not, for too long.
    pub(super) not_deleted: Vec<Arc<Pod>>,
    /// When an allowed eviction is too old, if one is not done.
    pub(super) recheck: Option<Timestamp>,
}

/// The status of a budget with these pods.
pub(super) fn plan(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    expected: Expected,
    now: Timestamp,
) -> Outcome {
    let old = budget.status.clone().unwrap_or_default();
    let mut disrupted: BTreeMap<String, Time> = BTreeMap::new();
    let mut not_deleted = Vec::new();
    let mut recheck: Option<Timestamp> = None;
    let mut healthy = 0_usize;
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let since = old.disrupted_pods.as_ref().and_then(|pods| pods.get(name_of(&**pod)));
        match since {
            Some(since) => {
                let due = since.0.as_second().saturating_add(DELETION_TIMEOUT);
                if due < now.as_second() {
                    not_deleted.push(pod.clone());
                    healthy += usize::from(is_ready(pod));
                } else {
                    let due = Timestamp::from_second(due).unwrap_or(now);
                    recheck = Some(recheck.map_or(due, |earliest| earliest.min(due)));
                    disrupted.insert(name_of(&**pod).to_owned(), since.clone());
                }
            }
            None => healthy += usize::from(is_ready(pod)),
        }
    }
    let healthy = isize::try_from(healthy).unwrap_or(isize::MAX);
    let allowed = match expected.pods {
        0 => 0,
        _ => healthy.saturating_sub(expected.healthy).max(0),
    };
    let (status, reason) = match allowed > 0 {
        true => ("True", "SufficientPods"),
        false => ("False", "InsufficientPods"),
    };
    let mut new = PodDisruptionBudgetStatus {
        current_healthy: Some(number(healthy)),
        desired_healthy: Some(number(expected.healthy)),
        expected_pods: Some(number(expected.pods)),
        disruptions_allowed: Some(number(allowed)),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: old.conditions,
    };
    set_condition(&mut new, status, reason, "", now);
    Outcome { status: new, not_deleted, recheck }
}

/// The status of a budget that cannot be computed: nothing may be disrupted.
pub(super) fn failed(
    budget: &PodDisruptionBudget,
    why: &str,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    // The API wants the other numbers too.
    status.current_healthy.get_or_insert(0);
    status.desired_healthy.get_or_insert(0);
    status.expected_pods.get_or_insert(0);
    set_condition(&mut status, "False", "SyncFailed", why, now);
    status
}

fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let old = conditions.iter().find(|condition| condition.type_ == "DisruptionAllowed");
    let since = match old {
        Some(old) if old.status == value => old.last_transition_time.clone(),
        _ => Time(now),
    };
    let new = Condition {
        type_: "DisruptionAllowed".into(),
        status: value.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: status.observed_generation,
        last_transition_time: since,
    };
    conditions.retain(|condition| condition.type_ != "DisruptionAllowed");
    conditions.push(new);
}

/// Whether a status says the same.
pub(super) fn is_same(
    old: Option<&PodDisruptionBudgetStatus>,
    new: &PodDisruptionBudgetStatus,
) -> bool {
    let plain = |status: &PodDisruptionBudgetStatus| {
        let mut status = status.clone();
        status.disrupted_pods = status.disrupted_pods.filter(|pods| !pods.is_empty());
        status
    };
    old.is_some_and(|old| plain(old) == plain(new))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::{Expected, expected, failed, is_same, needs_scale, plan, printed, several};

    #[test]
    fn disruption_names_selectors_and_several_budgets_as_upstream() {
        let selector = serde_json::from_value(json!({
            "matchLabels": {"foo": "bar", "a": "b"},
            "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}],
        }))
        .unwrap();
        assert_eq!(
            printed(&selector),
            "&LabelSelector{MatchLabels:map[string]string{a: b,foo: bar,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}"
        );
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "p"}})).unwrap();
        assert_eq!(several(&pod, vec!["one".into()]), None);
        assert_eq!(
            several(&pod, vec!["two".into(), "one".into()]).as_deref(),
            Some(
                "Pod \"ns\"/\"p\" matches multiple PodDisruptionBudgets.  Chose \"one\" arbitrarily."
            )
        );
    }

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": "ns", "generation": 3},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn pod(name: &str, ready: bool, deleting: bool) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
            },
            "status": {
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    #[test]
    fn disruption_expects_by_numbers_and_percentages() {
        for (spec, pods, scale, wanted) in [
            (json!({"minAvailable": 2}), 3, 0, Some((3, 2))),
            (json!({"minAvailable": "50%"}), 3, 5, Some((5, 3))),
            (json!({"maxUnavailable": 1}), 3, 5, Some((5, 4))),
            (json!({"maxUnavailable": "30%"}), 3, 10, Some((10, 7))),
            (json!({"maxUnavailable": "25%"}), 3, 5, Some((5, 3))),
            (json!({"maxUnavailable": 9}), 3, 5, Some((5, 0))),
            (json!({"maxUnavailable": "odd"}), 3, 5, None),
            (json!({}), 3, 5, Some((0, 0))),
        ] {
            let found = expected(&budget(spec.clone(), Value::Null), pods, scale).ok();
            let wanted = wanted.map(|(pods, healthy)| Expected { pods, healthy });
            assert_eq!(found, wanted, "{spec}");
        }
        assert!(needs_scale(&budget(json!({"maxUnavailable": 1}), Value::Null)));
        assert!(needs_scale(&budget(json!({"minAvailable": "1%"}), Value::Null)));
        assert!(!needs_scale(&budget(json!({"minAvailable": 1}), Value::Null)));
    }

    #[test]
    fn disruption_allows_what_is_healthy_above_the_least() {
        let pods = [
            pod("a", true, false),
            pod("b", true, false),
            pod("c", false, false),
            pod("d", true, true),
        ];
        let allowed = |pods: &[Arc<Pod>], expected| {
            let made = plan(&budget(json!({}), Value::Null), pods, expected, now());
            let status = serde_json::to_value(&made.status).unwrap();
            (
                status["currentHealthy"].as_i64().unwrap(),
                status["disruptionsAllowed"].as_i64().unwrap(),
                status["conditions"][0]["reason"].as_str().unwrap().to_owned(),
            )
        };
        let sufficient = || "SufficientPods".to_owned();
        let insufficient = || "InsufficientPods".to_owned();
        assert_eq!(allowed(&pods, Expected { pods: 4, healthy: 1 }), (2, 1, sufficient()));
        assert_eq!(allowed(&pods, Expected { pods: 4, healthy: 3 }), (2, 0, insufficient()));
        assert_eq!(allowed(&[], Expected { pods: 0, healthy: 0 }), (0, 0, insufficient()));
        assert_eq!(allowed(&pods, Expected { pods: 0, healthy: 0 }), (2, 0, insufficient()));
    }

    #[test]
    fn disruption_counts_evictions_that_are_on_their_way() {
        let status = json!({
            "currentHealthy": 3, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 3,
            "disruptedPods": {"a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:00:00Z",
                "gone": "2026-01-01T00:09:00Z"},
        });
        let pods = [pod("a", true, false), pod("b", true, false), pod("c", true, false)];
        let budget = budget(json!({}), status);
        let made = plan(&budget, &pods, Expected { pods: 3, healthy: 1 }, now());
        assert_eq!(made.status.current_healthy, Some(2), "a is about to go, b was not deleted");
        assert_eq!(made.status.disruptions_allowed, Some(1));
        let kept: Vec<_> = made.status.disrupted_pods.clone().unwrap().into_keys().collect();
        assert_eq!(kept, ["a"]);
        assert_eq!(made.not_deleted, [pods[1].clone()]);
        assert_eq!(made.recheck, Some("2026-01-01T00:11:00Z".parse().unwrap()));
        let mut again = budget.clone();
        again.status = Some(made.status.clone());
        let same = plan(&again, &pods, Expected { pods: 3, healthy: 1 }, now());
        assert!(is_same(again.status.as_ref(), &same.status));
        assert!(!is_same(budget.status.as_ref(), &same.status));
        let failed = failed(&again, "why", now());
        assert_eq!(failed.disruptions_allowed, Some(0));
        assert_eq!(failed.conditions.unwrap()[0].reason, "SyncFailed");
    }
}
