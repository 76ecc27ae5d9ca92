//! The status of a deployment and its conditions.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::plan::{Limits, Sets, actual};
use crate::workload::{count, name_of, now as current_time, number};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const PAUSED: &str = "DeploymentPaused";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";

/// The seconds without progress after which a rollout has failed, if there is such a limit.
pub(super) fn progress_deadline(deployment: &Deployment) -> Option<i64> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| seconds.into())
}

/// The condition of a type.
pub(super) fn condition<'a>(
    status: &'a DeploymentStatus,
    kind: &str,
) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Sets a condition, unless it has that status and reason already.
pub(super) fn set_condition(
    status: &mut DeploymentStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
) {
    let now = current_time();
    let known = condition(status, kind);
    if known.is_some_and(|known| known.status == value && known.reason.as_deref() == Some(reason)) {
        return;
    }
    let since = known.filter(|known| known.status == value);
    let since = since.and_then(|known| known.last_transition_time.clone());
    let new = DeploymentCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        last_update_time: Some(now.clone()),
        last_transition_time: since.or(Some(now)),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    };
    replace(status, new);
}

fn replace(status: &mut DeploymentStatus, new: DeploymentCondition) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != new.type_);
    conditions.push(new);
}

fn remove_condition(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
}

/// The status, with the condition of its availability.
pub(super) fn calculate(deployment: &Deployment, sets: &Sets) -> DeploymentStatus {
    let known = deployment.status.clone().unwrap_or_default();
    let limits = Limits::of(deployment);
    let available = sets.available();
    let sum = |value: fn(&ReplicaSet) -> isize| sets.all().map(|set| value(set)).sum::<isize>();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: counted(sum(actual)),
        updated_replicas: counted(sets.new.as_deref().map_or(0, actual)),
        ready_replicas: counted(sum(|set| {
            count(set.status.as_ref().and_then(|it| it.ready_replicas))
        })),
        available_replicas: counted(available),
        unavailable_replicas: counted((sets.desired() - available).max(0)),
        terminating_replicas: terminating(sets),
        collision_count: known.collision_count,
        conditions: known.conditions,
    };
    if available >= limits.least_available() {
        let message = "Deployment has minimum availability.";
        set_condition(&mut status, AVAILABLE, "True", "MinimumReplicasAvailable", message);
    } else {
        let message = "Deployment does not have minimum availability.";
        set_condition(&mut status, AVAILABLE, "False", "MinimumReplicasUnavailable", message);
    }
    status
}

/// A number that the API leaves out when it is 0.
fn counted(count: isize) -> Option<i32> {
    (count != 0).then(|| number(count))
}

/// The number of terminating pods, if all replica sets say theirs.
fn terminating(sets: &Sets) -> Option<i32> {
    let mut total: i32 = 0;
    for set in sets.all() {
        let status = set.status.as_ref();
        match status.and_then(|status| status.terminating_replicas) {
            Some(terminating) => total = total.saturating_add(terminating),
            // new, and not synced yet
            None if status.and_then(|it| it.observed_generation).unwrap_or_default() == 0 => {}
            None => return None,
        }
    }
    Some(total)
}

/// Whether all pods are of the current template, and available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let replicas = Limits::of(deployment).replicas;
    let observed = status.observed_generation.unwrap_or_default();
    count(status.updated_replicas) == replicas
        && count(status.replicas) == replicas
        && count(status.available_replicas) == replicas
        && observed >= deployment.metadata.generation.unwrap_or_default()
}

fn is_progressing(before: &DeploymentStatus, status: &DeploymentStatus) -> bool {
    let old = |it: &DeploymentStatus| count(it.replicas) - count(it.updated_replicas);
    count(status.updated_replicas) > count(before.updated_replicas)
        || old(status) < old(before)
        || count(status.ready_replicas) > count(before.ready_replicas)
        || count(status.available_replicas) > count(before.available_replicas)
}

fn is_timed_out(status: &DeploymentStatus, deadline: i64, now: Timestamp) -> bool {
    let Some(known) = condition(status, PROGRESSING) else { return false };
    match known.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => known
            .last_update_time
            .as_ref()
            .is_some_and(|since| now.duration_since(since.0) > SignedDuration::from_secs(deadline)),
    }
}

/// The status during a rollout, with the condition of its progress.
pub(super) fn of_rollout(deployment: &Deployment, sets: &Sets, now: Timestamp) -> DeploymentStatus {
    let mut status = calculate(deployment, sets);
    let before = deployment.status.clone().unwrap_or_default();
    let name = match &sets.new {
        Some(new) => format!("ReplicaSet {:?}", name_of(&**new)),
        None => format!("Deployment {:?}", name_of(deployment)),
    };
    match progress_deadline(deployment) {
        None => remove_condition(&mut status, PROGRESSING),
        Some(deadline) => {
            let known = condition(&before, PROGRESSING);
            let was_complete = status.replicas == status.updated_replicas
                && known.is_some_and(|it| it.reason.as_deref() == Some(NEW_SET_AVAILABLE));
            if was_complete {
                // until the next rollout
            } else if is_complete(deployment, &status) {
                let message = format!("{name} has successfully progressed.");
                set_condition(&mut status, PROGRESSING, "True", NEW_SET_AVAILABLE, &message);
            } else if is_progressing(&before, &status) {
                let since = known.filter(|known| known.status == "True");
                let since = since.and_then(|known| known.last_transition_time.clone());
                let now = current_time();
                let progress = DeploymentCondition {
                    type_: PROGRESSING.to_owned(),
                    status: "True".to_owned(),
                    last_update_time: Some(now.clone()),
                    last_transition_time: since.or(Some(now)),
                    reason: Some("ReplicaSetUpdated".to_owned()),
                    message: Some(format!("{name} is progressing.")),
                };
                replace(&mut status, progress);
            } else if is_timed_out(&status, deadline, now) {
                let message = format!("{name} has timed out progressing.");
                set_condition(&mut status, PROGRESSING, "False", TIMED_OUT, &message);
            }
        }
    }
    let failure = sets.new.iter().chain(sets.all()).find_map(|set| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE)
    });
    match failure {
        None => remove_condition(&mut status, REPLICA_FAILURE),
        Some(failure) => {
            let (reason, message) = (failure.reason.clone(), failure.message.clone());
            let known = condition(&status, REPLICA_FAILURE);
            if known.is_none_or(|it| it.status != failure.status || it.reason != reason) {
                let new = DeploymentCondition {
                    type_: REPLICA_FAILURE.to_owned(),
                    status: failure.status.clone(),
                    last_update_time: failure.last_transition_time.clone(),
                    last_transition_time: failure.last_transition_time.clone(),
                    reason,
                    message,
                };
                replace(&mut status, new);
            }
        }
    }
    status
}

/// When a rollout that makes no progress is to be looked at again.
pub(super) fn next_check(deployment: &Deployment, now: Timestamp) -> Option<Duration> {
    let deadline = progress_deadline(deployment)?;
    let status = deployment.status.as_ref()?;
    let known = condition(status, PROGRESSING)?;
    if is_complete(deployment, status) || known.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let passed = now.duration_since(known.last_update_time.as_ref()?.0);
    let left = SignedDuration::from_secs(deadline).checked_sub(passed)?;
    // a little later, so that the deadline is over then
    Some(Duration::try_from(left).unwrap_or_default().saturating_add(Duration::from_secs(1)))
}
