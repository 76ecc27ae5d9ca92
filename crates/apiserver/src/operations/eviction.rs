//! Eviction of pods (`pods/eviction`): a deletion that respects the disruption budget of the pod.

use serde_json::{Value, json};

use super::{Api, DeleteOptions, calling_node, check_namespace};
use crate::admission::node_restriction;
use crate::api_types::Resource;
use crate::kinds::known;
use crate::object;
use crate::registry::Write;
use crate::schema::printed;
use crate::schema::value::{items, text};
use crate::selector::LabelSelector;
use crate::status::{Cause, StatusError};
use crate::user::User;

/// How often a pod that changes meanwhile is tried again.
const ATTEMPTS: usize = 20;
/// The most evictions that the controller of budgets has not seen yet.
const MAX_DISRUPTED: usize = 2000;
/// Seconds after which a budget that is being processed is worth trying again.
const RETRY_AFTER: u32 = 10;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// What a budget says about an eviction.
#[derive(Debug)]
enum Ruling {
    /// The pod may go if it is still as it was: it does not count as healthy.
    Unguarded,
    /// The pod may go if the budget allows one more disruption.
    Guarded,
}

impl Api {
    /// Deletes a pod on behalf of an Eviction.
    pub(crate) async fn evict(
        &self,
        user: &User,
        pods: &'static Resource,
        namespace: &str,
        name: &str,
        eviction: &Value,
        dry_run: bool,
    ) -> Result<(), StatusError> {
        if object::name(eviction) != name {
            return Err(StatusError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        check_namespace(eviction, namespace)?;
        let stages = &eviction["deleteOptions"]["dryRun"];
        let wanted = json!(["All"]);
        if dry_run && items(stages).iter().any(|stage| *stage != "All") {
            let (wanted, given) = (printed(&wanted), printed(stages));
            return Err(StatusError::internal_plain(format!(
                "Non-matching dry-run options in request and content: {wanted} and {given}"
            )));
        }
        let mut options = DeleteOptions::from_value(&eviction["deleteOptions"])?;
        options.dry_run |= dry_run;
        let mut pod = self.registry.get(pods, namespace, name).await?;
        if let Some(node) = calling_node(user) {
            node_restriction::admit_eviction(node, pods, &pod)?;
        }
        for _ in 0..ATTEMPTS {
            if !ignores_budgets(&pod) {
                return self.evict_guarded(user, pods, &pod, &options).await;
            }
            let is_pending =
                text(&pod["status"]["phase"]) == "Pending" && !object::is_deleting(&pod);
            let exact = match is_pending && options.resource_version.is_none() {
                true => options.of_version(&pod),
                false => options.clone(),
            };
            match self.delete_disrupted(user, pods, (namespace, name), &exact).await {
                Err(error) if error.reason == "Conflict" && is_pending => {
                    // What the client itself requires does not come true by trying again.
                    options.check(pods, &pod)?;
                    pod = self.registry.get(pods, namespace, name).await?;
                }
                result => return result,
            }
        }
        Err(StatusError::timeout("couldn't evict the pod due to conflicts"))
    }

    async fn evict_guarded(
        &self,
        user: &User,
        pods: &'static Resource,
        pod: &Value,
        options: &DeleteOptions,
    ) -> Result<(), StatusError> {
        let key = (object::namespace(pod), object::name(pod));
        let budgets = known("policy", "poddisruptionbudgets")?;
        let mut count = 0_usize;
        let first_two = |budget: Value| {
            let is_wanted = count < 2 && covers(&budget, pod);
            count = count.saturating_add(usize::from(is_wanted));
            is_wanted.then_some(budget)
        };
        let matching = self.registry.select(budgets, key.0, first_two).await?;
        let budget = match matching.as_slice() {
            [] => return self.delete_disrupted(user, pods, key, options).await,
            [budget] => budget,
            _ => {
                return Err(StatusError::internal_plain(
                    "This pod has more than one PodDisruptionBudget, which the eviction \
                     subresource does not support.",
                ));
            }
        };
        match ruling(budget, pod) {
            Ruling::Unguarded => {
                let own = options.resource_version.is_none();
                let result = self.delete_disrupted(user, pods, key, &options.of_version(pod)).await;
                match result {
                    Err(error) if error.reason == "Conflict" && own => {
                        Err(being_processed(object::name(budget)))
                    }
                    result => result,
                }
            }
            Ruling::Guarded => {
                let name = object::name(budget);
                self.registry
                    .write(budgets, (key.0, name), None, options.dry_run, |current| {
                        disrupt(budgets, current, key.1).map(Write::Put)
                    })
                    .await?;
                self.delete_disrupted(user, pods, key, options).await
            }
        }
    }

    /// Deletes a pod, with a condition that says why.
    async fn delete_disrupted(
        &self,
        user: &User,
        pods: &'static Resource,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
    ) -> Result<(), StatusError> {
        let mut options = options.clone();
        if !options.dry_run {
            let written = self
                .registry
                .write(pods, (namespace, name), None, false, |current| {
                    options.check(pods, current)?;
                    let mut new = current.clone();
                    add_condition(&mut new);
                    Ok(Write::Put(new))
                })
                .await?;
            if options.resource_version.is_some() {
                options = options.of_version(&written.object);
            }
        }
        self.delete_once(user, pods, (namespace, name), &options, None).await.map(drop)
    }
}

/// Pods that have ended, have not begun or are going already are no disruption.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed" | "Pending")
        || object::is_deleting(pod)
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    !selector.is_null() && LabelSelector::of(selector).is_ok_and(|selector| selector.matches(pod))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = items(&pod["status"]["conditions"]);
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn ruling(budget: &Value, pod: &Value) -> Ruling {
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
    let is_healthy_enough =
        count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0;
    match !is_ready(pod) && (always || is_healthy_enough) {
        true => Ruling::Unguarded,
        false => Ruling::Guarded,
    }
}

fn with_cause(mut error: StatusError, message: String) -> StatusError {
    let cause = Cause { reason: "DisruptionBudget", message, field: String::new() };
    error.details.get_or_insert_default().causes.push(cause);
    error
}

fn being_processed(budget: &str) -> StatusError {
    with_cause(
        StatusError::too_many_requests(REFUSED, RETRY_AFTER),
        format!("The disruption budget {budget} is still being processed by the server."),
    )
}

/// The budget with one disruption less, for this pod; or why it has none.
fn disrupt(budgets: &Resource, budget: &Value, pod: &str) -> Result<Value, StatusError> {
    let name = object::name(budget);
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
    if count("observedGeneration") < generation {
        return Err(being_processed(name));
    }
    let allowed = count("disruptionsAllowed");
    let forbidden = |why| Err(StatusError::forbidden(budgets, name, why));
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed == 0 {
        return Err(with_cause(StatusError::too_many_requests(REFUSED, 0), exhausted(budget)));
    }
    let mut new = budget.clone();
    let left = allowed.saturating_sub(1);
    let observed = status["observedGeneration"].clone();
    let status = object::child_mut(&mut new, "status");
    status.insert("disruptionsAllowed".into(), left.into());
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    disrupted[pod] = object::now().to_string().into();
    if left == 0 {
        set_condition(
            status.entry("conditions").or_insert_with(|| json!([])),
            json!({
                "type": "DisruptionAllowed",
                "status": "False",
                "reason": "InsufficientPods",
                "message": "",
                "observedGeneration": observed,
                "lastTransitionTime": object::now().to_string(),
            }),
        );
    }
    Ok(new)
}

/// Why no disruption is allowed.
fn exhausted(budget: &Value) -> String {
    let (name, status) = (object::name(budget), &budget["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let condition = items(&status["conditions"]).iter().find(|condition| {
        condition["type"] == "DisruptionAllowed" && condition["status"] == "False"
    });
    let (reason, message) =
        condition.map_or(("", ""), |c| (text(&c["reason"]), text(&c["message"])));
    let (desired, current) = (count("desiredHealthy"), count("currentHealthy"));
    match () {
        () if reason == "SyncFailed" && !message.is_empty() => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        ),
        () if current <= desired => format!(
            "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
        ),
        () if !message.is_empty() => format!(
            "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
        ),
        () => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

fn add_condition(pod: &mut Value) {
    let status = object::child_mut(pod, "status");
    set_condition(
        status.entry("conditions").or_insert_with(|| json!([])),
        json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": object::now().to_string(),
        }),
    );
}

/// Puts a condition in place of the one of its type, whose time it keeps where the status is the same.
fn set_condition(conditions: &mut Value, mut condition: Value) {
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    match list.iter_mut().find(|had| had["type"] == condition["type"]) {
        Some(had) => {
            if had["status"] == condition["status"] {
                condition["lastTransitionTime"] = had["lastTransitionTime"].clone();
            }
            *had = condition;
        }
        None => list.push(condition),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kinds::{Deletion, core, strategy};

    fn budget(allowed: i64, current: i64, desired: i64) -> Value {
        json!({
            "metadata": {"name": "web", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {
                "observedGeneration": 1,
                "disruptionsAllowed": allowed,
                "currentHealthy": current,
                "desiredHealthy": desired,
                "expectedPods": 3,
            },
        })
    }

    fn pod(phase: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": "p", "labels": {"app": "web"}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    #[test]
    fn eviction_takes_one_disruption_and_then_none() {
        assert_eq!(strategy(core("pods").unwrap()).deletion, Deletion::Graceful);
        let budgets = known("policy", "poddisruptionbudgets").unwrap();
        let after = disrupt(budgets, &budget(2, 3, 1), "p").unwrap();
        assert_eq!(after["status"]["disruptionsAllowed"], 1);
        assert!(after["status"]["disruptedPods"]["p"].is_string());
        let last = disrupt(budgets, &after, "q").unwrap();
        assert_eq!(last["status"]["disruptionsAllowed"], 0);
        assert_eq!(last["status"]["conditions"][0]["reason"], "InsufficientPods");
        let error = disrupt(budgets, &last, "r").unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (429, REFUSED));
    }

    #[test]
    fn eviction_refusals_name_the_budget() {
        let budgets = known("policy", "poddisruptionbudgets").unwrap();
        let cause = |budget: &Value| {
            let error = disrupt(budgets, budget, "p").unwrap_err();
            let details = error.details.unwrap();
            assert_eq!(details.causes[0].reason, "DisruptionBudget");
            (details.retry_after_seconds, details.causes[0].message.clone())
        };
        assert_eq!(
            cause(&budget(0, 2, 2)),
            (0, "The disruption budget web needs 2 healthy pods and has 2 currently".into())
        );
        let mut behind = budget(1, 3, 2);
        behind["metadata"]["generation"] = 2.into();
        assert_eq!(
            cause(&behind),
            (10, "The disruption budget web is still being processed by the server.".into())
        );
        let negative = disrupt(budgets, &budget(-1, 3, 2), "p").unwrap_err();
        assert_eq!(negative.code, 403);
    }

    #[test]
    fn eviction_of_unhealthy_pods_follows_the_policy() {
        let unguarded =
            |budget: &Value, pod: &Value| matches!(ruling(budget, pod), Ruling::Unguarded);
        let unready = pod("Running", "False");
        assert!(!unguarded(&budget(0, 3, 2), &pod("Running", "True")));
        assert!(unguarded(&budget(0, 2, 2), &unready));
        assert!(!unguarded(&budget(0, 1, 2), &unready));
        let mut always = budget(0, 1, 2);
        always["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow".into();
        assert!(unguarded(&always, &unready));
        for (phase, ignores) in
            [("Pending", true), ("Running", false), ("Succeeded", true), ("Failed", true)]
        {
            assert_eq!(ignores_budgets(&pod(phase, "True")), ignores, "{phase}");
        }
    }

    #[test]
    fn eviction_budgets_without_selector_cover_nothing() {
        let mut all = budget(1, 1, 1);
        assert!(covers(&all, &pod("Running", "True")));
        all["spec"]["selector"] = json!({});
        assert!(covers(&all, &pod("Running", "True")));
        all["spec"]["selector"] = Value::Null;
        assert!(!covers(&all, &pod("Running", "True")));
    }
}
