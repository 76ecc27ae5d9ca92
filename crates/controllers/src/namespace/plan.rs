//! PURE: what the conditions of a terminating namespace say, and how long its pods may still take.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NamespaceCondition, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// What a try to empty a namespace met.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Why discovery is incomplete.
    pub(crate) discovery: Option<String>,
    /// Why resources were not deleted.
    pub(crate) failures: Vec<String>,
    /// The number of objects left, by resource as in `pods.`.
    pub(crate) remaining: BTreeMap<String, usize>,
    /// The number of objects that a finalizer holds.
    pub(crate) finalizers: BTreeMap<String, usize>,
    /// In how many seconds it is worth trying again.
    pub(crate) estimate: i64,
}

impl Outcome {
    /// Counts objects that are left of a resource.
    pub(crate) fn remain<'a>(
        &mut self,
        plural: &str,
        group: &str,
        finalizers: impl Iterator<Item = &'a [String]>,
    ) {
        let mut count = 0_usize;
        for finalizers in finalizers {
            count += 1;
            for finalizer in finalizers {
                let held = self.finalizers.entry(finalizer.clone()).or_default();
                *held += 1;
            }
        }
        if count > 0 {
            self.remaining.insert(format!("{plural}.{group}"), count);
        }
    }

    /// Whether nothing is left, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.discovery.is_none() && self.failures.is_empty() && self.remaining.is_empty()
    }
}

/// A condition's type, its reason and message when all is well, and what is wrong, if anything.
type Entry = (&'static str, (&'static str, &'static str), Option<(&'static str, String)>);

fn entries(outcome: &Outcome) -> [Entry; 5] {
    let join = |counts: &BTreeMap<String, usize>, what: &str| {
        let each = counts.iter().map(|(name, count)| format!("{name} {what} {count}"));
        each.map(|one| format!("{one} resource instances")).collect::<Vec<_>>().join(", ")
    };
    let mut failures = outcome.failures.clone();
    failures.sort();
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            ("ResourcesDiscovered", "All resources successfully discovered"),
            outcome.discovery.clone().map(|message| ("DiscoveryFailed", message)),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            None,
        ),
        (
            "NamespaceDeletionContentFailure",
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            (!failures.is_empty()).then(|| {
                let (count, all) = (failures.len(), failures.join(", "));
                let message =
                    format!("Failed to delete all resource types, {count} remaining: {all}");
                ("ContentDeletionFailed", message)
            }),
        ),
        (
            "NamespaceContentRemaining",
            ("ContentRemoved", "All content successfully removed"),
            (!outcome.remaining.is_empty()).then(|| {
                let all = join(&outcome.remaining, "has");
                ("SomeResourcesRemain", format!("Some resources are remaining: {all}"))
            }),
        ),
        (
            "NamespaceFinalizersRemaining",
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            (!outcome.finalizers.is_empty()).then(|| {
                let all = join(&outcome.finalizers, "in");
                let message =
                    format!("Some content in the namespace has finalizers remaining: {all}");
                ("SomeFinalizersRemain", message)
            }),
        ),
    ]
}

/// The conditions after a try; `None`: they say so already.
pub(crate) fn conditions(
    before: &[NamespaceCondition],
    outcome: &Outcome,
    now: Timestamp,
) -> Option<Vec<NamespaceCondition>> {
    let mut conditions = before.to_vec();
    let mut is_changed = false;
    for (type_, (good_reason, good_message), bad) in entries(outcome) {
        let status = if bad.is_some() { "True" } else { "False" };
        let (reason, message) = bad.unwrap_or_else(|| (good_reason, good_message.to_owned()));
        let new = NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            None => {
                conditions.push(new);
                is_changed = true;
            }
            Some(old) if old.status != new.status => {
                *old = new;
                is_changed = true;
            }
            Some(old) if old.reason != new.reason || old.message != new.message => {
                old.reason = new.reason;
                old.message = new.message;
                is_changed = true;
            }
            Some(_) => {}
        }
    }
    is_changed.then_some(conditions)
}

/// How many seconds the pods of a namespace may take to end, which was deleted at that time.
pub(crate) fn grace(pods: &[Pod], deleted: Timestamp, now: Timestamp) -> i64 {
    let longest = pods
        .iter()
        .filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        })
        .filter_map(|pod| pod.spec.as_ref()?.termination_grace_period_seconds)
        .max()
        .unwrap_or_default();
    let passed = now.as_second().saturating_sub(deleted.as_second());
    if passed >= longest { 0 } else { longest }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Outcome, conditions, grace};

    #[test]
    fn namespace_conditions_say_what_is_left() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut outcome = Outcome::default();
        let held = ["a.io/f".to_owned()];
        outcome.remain("pods", "", [&held[..], &[], &held[..]].into_iter());
        outcome.remain("jobs", "batch", std::iter::empty());
        let made = conditions(&[], &outcome, now).unwrap();
        let texts: Vec<_> = made
            .iter()
            .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
            .collect();
        assert_eq!(
            texts,
            [
                ("NamespaceDeletionDiscoveryFailure", "False"),
                ("NamespaceDeletionGroupVersionParsingFailure", "False"),
                ("NamespaceDeletionContentFailure", "False"),
                ("NamespaceContentRemaining", "True"),
                ("NamespaceFinalizersRemaining", "True"),
            ]
        );
        assert_eq!(
            made[3].message.as_deref(),
            Some("Some resources are remaining: pods. has 3 resource instances")
        );
        assert_eq!(
            made[4].message.as_deref(),
            Some(
                "Some content in the namespace has finalizers remaining: a.io/f in 2 resource instances"
            )
        );
        assert_eq!(conditions(&made, &outcome, now), None);
        let failed = Outcome { failures: vec!["b".into(), "a".into()], ..Outcome::default() };
        let made = conditions(&made, &failed, now).unwrap();
        assert_eq!(
            made[2].message.as_deref(),
            Some("Failed to delete all resource types, 2 remaining: a, b")
        );
        assert_eq!(made[3].reason.as_deref(), Some("ContentRemoved"));
    }

    #[test]
    fn namespace_waits_for_the_longest_grace_period() {
        let pod = |grace: i64, phase: &str| {
            serde_json::from_value(json!({
                "spec": {"containers": [], "terminationGracePeriodSeconds": grace},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let pods = [pod(30, "Running"), pod(300, "Failed"), pod(5, "Running")];
        let deleted = "2026-01-01T00:00:00Z".parse().unwrap();
        for (now, expected) in [("2026-01-01T00:00:10Z", 30), ("2026-01-01T00:00:30Z", 0)] {
            assert_eq!(grace(&pods, deleted, now.parse().unwrap()), expected);
        }
        assert_eq!(grace(&[], deleted, deleted), 0);
    }
}
