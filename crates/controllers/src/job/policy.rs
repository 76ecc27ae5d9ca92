//! What failed and succeeded pods mean for a Job.

use k8s_openapi::api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::indexes::Indexes;
use crate::workload::{name_of, namespace_of, phase};

/// What a failed pod means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It counts towards the limit.
    Count,
    /// It does not count.
    Ignore,
    /// Its index has failed.
    FailIndex,
    /// The Job has failed, with this message.
    FailJob(String),
}

impl Failure {
    /// Whether it counts towards the limit.
    pub(super) fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// Whether a terminating pod counts as failed only when it has ended.
pub(super) fn only_replaces_failed(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| {
        spec.pod_replacement_policy.as_deref() == Some("Failed")
            || spec.pod_failure_policy.is_some()
    })
}

/// Whether a pod of the Job counts as failed.
pub(super) fn is_failed(pod: &Pod, job: &Job) -> bool {
    let phase = phase(pod);
    phase == "Failed"
        || (!only_replaces_failed(job)
            && pod.metadata.deletion_timestamp.is_some()
            && phase != "Succeeded")
}

/// What the first rule says that a failed pod matches; without one it counts.
pub(super) fn failure_of(pod: &Pod, job: &Job) -> Failure {
    rule_of(pod, job).map_or(Failure::Count, |(_, failure)| failure)
}

/// The action of the first rule that a failed pod matches, and what it means.
pub(super) fn rule_of<'a>(pod: &Pod, job: &'a Job) -> Option<(&'a str, Failure)> {
    let policy = job.spec.as_ref()?.pod_failure_policy.as_ref()?;
    policy.rules.iter().enumerate().find_map(|(index, rule)| {
        let matched = matched(pod, rule)?;
        let failure = match rule.action.as_str() {
            "Ignore" => Failure::Ignore,
            "FailIndex" => Failure::FailIndex,
            "Count" => Failure::Count,
            "FailJob" => {
                Failure::FailJob(format!("{matched} matching FailJob rule at index {index}"))
            }
            _ => return None,
        };
        Some((rule.action.as_str(), failure))
    })
}

/// What of the pod a rule matches, for the message.
fn matched(pod: &Pod, rule: &PodFailurePolicyRule) -> Option<String> {
    let status = pod.status.as_ref()?;
    let name = format!("{}/{}", namespace_of(pod), name_of(pod));
    if let Some(codes) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().flatten();
        let inits = status.init_container_statuses.iter().flatten();
        let (container, code) = containers.chain(inits).find_map(|one| exit_code(one, codes))?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let patterns = rule.on_pod_conditions.as_ref()?;
    let condition = status.conditions.iter().flatten().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == condition.type_
                && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })?;
    Some(format!("Pod {name} has condition {}", condition.type_))
}

fn exit_code<'a>(
    status: &'a ContainerStatus,
    rule: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
    let is_meant = rule.container_name.as_ref().is_none_or(|name| *name == status.name);
    let is_listed = rule.values.contains(&code);
    let is_matched = match rule.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        _ => false,
    };
    (is_meant && code != 0 && is_matched).then_some((&status.name, code))
}

/// The message if a rule of the success policy is met.
pub(super) fn success(
    policy: Option<&SuccessPolicy>,
    completions: usize,
    succeeded: &Indexes,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let is_met = |rule: &k8s_openapi::api::batch::v1::SuccessPolicyRule| {
        let count = rule.succeeded_count.and_then(|count| usize::try_from(count).ok());
        match &rule.succeeded_indexes {
            Some(indexes) => {
                let required = Indexes::parse(indexes, completions);
                let common = required.common(succeeded);
                !required.is_empty()
                    && (common == required.total() || count.is_some_and(|count| common >= count))
            }
            None => count.is_some_and(|count| succeeded.total() >= count),
        }
    };
    let index = policy?.rules.iter().position(is_met)?;
    Some(format!("Matched rules at index {index}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn failure(rules: Value, status: Value) -> Failure {
        let job =
            json!({"metadata": {}, "spec": {"template": {}, "podFailurePolicy": {"rules": rules}}});
        let pod = json!({"metadata": {"name": "p", "namespace": "x"}, "status": status});
        failure_of(&serde_json::from_value(pod).unwrap(), &serde_json::from_value(job).unwrap())
    }

    #[test]
    fn pod_failure_policy_takes_the_first_rule_that_matches() {
        let ended = |code: i32| {
            json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": {"exitCode": code}}}]})
        };
        let codes = |action: &str, operator: &str, values: &[i32]| json!({"action": action, "onExitCodes": {"operator": operator, "values": values}});
        let disrupted = json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let condition = json!({"action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        for (rules, status, expected) in [
            (json!([]), ended(3), Failure::Count),
            (json!([codes("Ignore", "In", &[3])]), ended(3), Failure::Ignore),
            (json!([codes("Ignore", "In", &[3])]), ended(4), Failure::Count),
            (json!([codes("FailIndex", "NotIn", &[3])]), ended(4), Failure::FailIndex),
            (json!([codes("FailIndex", "NotIn", &[3])]), ended(0), Failure::Count),
            (json!([condition]), disrupted, Failure::Ignore),
            (
                json!([codes("Count", "In", &[9]), codes("FailJob", "In", &[3])]),
                ended(3),
                Failure::FailJob(
                    "Container c for pod x/p failed with exit code 3 matching FailJob rule at index 1"
                        .into(),
                ),
            ),
        ] {
            assert_eq!(failure(rules.clone(), status), expected, "{rules}");
        }
    }

    #[test]
    fn success_policy_names_the_rule() {
        let policy = |rules: Value| serde_json::from_value(json!({ "rules": rules })).unwrap();
        let done = Indexes::parse("0,2-4", 10);
        for (rules, expected) in [
            (json!([{"succeededIndexes": "0,2"}]), Some(0)),
            (json!([{"succeededIndexes": "0-2"}]), None),
            (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), Some(0)),
            (json!([{"succeededCount": 5}, {"succeededCount": 4}]), Some(1)),
        ] {
            let message = success(Some(&policy(rules.clone())), 10, &done);
            let expected = expected.map(|index: usize| format!("Matched rules at index {index}"));
            assert_eq!(message, expected, "{rules}");
        }
        assert_eq!(success(None, 10, &done), None);
    }
}
