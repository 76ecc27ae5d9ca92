//! Annotations of deployments and their replica sets: revisions, and sizes.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::plan::Limits;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.rollback-to";
/// Of kubectl.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Those that are not copied between a deployment and its replica sets.
const OWN: [&str; 6] =
    [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO];
/// The longest history of revisions, in characters.
const MAX_HISTORY: usize = 2000;

/// The value of an annotation.
fn value<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Sets an annotation; whether that is a change.
pub(super) fn set(metadata: &mut ObjectMeta, name: &str, value: &str) -> bool {
    let annotations = metadata.annotations.get_or_insert_default();
    let changes = annotations.get(name).map(String::as_str) != Some(value);
    if changes {
        annotations.insert(name.to_owned(), value.to_owned());
    }
    changes
}

/// The revision of an object; 0 if it has none, and nothing if it is no number.
pub(super) fn revision(metadata: &ObjectMeta) -> Option<i64> {
    value(metadata, REVISION).map_or(Some(0), |text| text.parse().ok())
}

/// The highest revision.
pub(super) fn max_revision<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i64 {
    let revisions = sets.into_iter().filter_map(|set| revision(&set.metadata));
    revisions.max().unwrap_or_default().max(0)
}

/// The highest revision but one, to which a rollback without a revision leads.
pub(super) fn last_revision<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i64 {
    let mut revisions: Vec<_> =
        sets.into_iter().filter_map(|set| revision(&set.metadata)).collect();
    revisions.sort_unstable();
    revisions.iter().rev().nth(1).copied().unwrap_or_default()
}

/// The number of replicas of the deployment that the replica set was scaled for.
pub(super) fn desired_replicas(set: &ReplicaSet) -> Option<isize> {
    size(&set.metadata, DESIRED_REPLICAS)
}

/// The most replicas of the deployment then, with surge.
pub(super) fn max_replicas(set: &ReplicaSet) -> Option<isize> {
    size(&set.metadata, MAX_REPLICAS)
}

fn size(metadata: &ObjectMeta, name: &str) -> Option<isize> {
    let number: u32 = value(metadata, name)?.parse().ok()?;
    i32::try_from(number).ok().and_then(|number| isize::try_from(number).ok())
}

/// Notes the size of the deployment; whether that is a change.
pub(super) fn set_sizes(metadata: &mut ObjectMeta, limits: Limits) -> bool {
    let desired = set(metadata, DESIRED_REPLICAS, &limits.replicas.to_string());
    set(metadata, MAX_REPLICAS, &limits.most().to_string()) || desired
}

/// Gives the deployment's annotations and a revision to its new replica set; whether that is a
/// change. A revision that it had before becomes part of its history.
pub(super) fn annotate_new(deployment: &Deployment, new: &mut ObjectMeta, next: i64) -> bool {
    let mut changed = false;
    for (name, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN.contains(&name.as_str()) {
            changed |= set(new, name, value);
        }
    }
    let before = value(new, REVISION).map(str::to_owned);
    let known = match before.as_deref().unwrap_or_default() {
        "" => 0,
        text => match text.parse() {
            Ok(known) => known,
            // what others wrote stays
            Err(_) => return false,
        },
    };
    if known < next {
        set(new, REVISION, &next.to_string());
        changed = true;
        if let Some(before) = before {
            let history = value(new, REVISION_HISTORY).unwrap_or_default();
            if let Some(history) = extended(history, &before) {
                set(new, REVISION_HISTORY, &history);
            }
        }
    }
    changed
}

/// A history with one more revision, without the oldest ones if it gets too long.
fn extended(history: &str, revision: &str) -> Option<String> {
    let mut history = history;
    while !history.is_empty() {
        let longer = format!("{history},{revision}");
        if longer.len() <= MAX_HISTORY {
            return Some(longer);
        }
        history = history.split_once(',').map_or("", |(_, rest)| rest);
    }
    (revision.len() <= MAX_HISTORY).then(|| revision.to_owned())
}

/// The annotations of a deployment that is rolled back to a replica set.
pub(super) fn rolled_back(deployment: &ObjectMeta, to: &ObjectMeta) -> BTreeMap<String, String> {
    let own = |name: &String| OWN.contains(&name.as_str());
    let kept = deployment.annotations.iter().flatten().filter(|(name, _)| own(name));
    let copied = to.annotations.iter().flatten().filter(|(name, _)| !own(name));
    kept.chain(copied).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The revision that a client of the old API wants to roll back to; 0 is the last one.
pub(super) fn rollback_to(deployment: &Deployment) -> Option<i64> {
    value(&deployment.metadata, ROLLBACK_TO)?.parse().ok()
}
