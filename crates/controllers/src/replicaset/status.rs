//! The status of a set of replicas.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::kind::Replicated;
use crate::workload::{is_available, is_ready, now as current_time, number};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The status, as both kinds have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Status {
    pub(super) replicas: i32,
    pub(super) fully_labeled: i32,
    pub(super) ready: i32,
    pub(super) available: i32,
    /// Of ReplicaSets alone.
    pub(super) terminating: Option<i32>,
    pub(super) observed_generation: Option<i64>,
    pub(super) conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) since: Option<Time>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

/// Why pods could not be created or deleted.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Status {
    /// Whether the object has another status, or one of another generation.
    pub(super) fn differs_from(&self, owner: &impl Replicated) -> bool {
        *self != owner.status()
    }

    /// Writes the status into the object; it is that of the generation that was observed.
    pub(super) fn store_in(&self, owner: &mut impl Replicated) {
        owner.set_status(self.clone());
    }
}

/// The status of an object with these pods.
pub(super) fn calculate<K: Replicated>(
    owner: &K,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<Failure>,
    now: Timestamp,
) -> Status {
    let known = owner.status();
    let template =
        owner.template().and_then(|template| template.metadata.as_ref()?.labels.as_ref());
    let is_labeled = |pod: &&Arc<Pod>| {
        template.into_iter().flatten().all(|(key, value)| {
            pod.metadata.labels.as_ref().is_some_and(|labels| labels.get(key) == Some(value))
        })
    };
    let min_ready = owner.min_ready_seconds();
    let mut conditions = known.conditions;
    let failed = conditions.iter().any(|condition| condition.kind == REPLICA_FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.kind != REPLICA_FAILURE),
        Some(_) if failed => {}
        Some(failure) => conditions.push(Condition {
            kind: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            since: Some(current_time()),
            reason: Some(failure.reason.to_owned()),
            message: Some(failure.message),
        }),
    }
    let is_replica_set = <K as k8s_openapi::Resource>::KIND == "ReplicaSet";
    Status {
        replicas: number(active.len()),
        fully_labeled: number(active.iter().filter(is_labeled).count()),
        ready: number(active.iter().filter(|pod| is_ready(pod)).count()),
        available: number(active.iter().filter(|pod| is_available(pod, min_ready, now)).count()),
        terminating: is_replica_set.then(|| number(terminating)),
        observed_generation: owner.metadata().generation,
        conditions,
    }
}
