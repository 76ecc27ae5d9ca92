//! What ReplicaSets and ReplicationControllers have in common.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
    ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::status::{Condition, Status};
use crate::workload::{Namespaced, count};

/// A kind with a number of replicas of one template.
pub(super) trait Replicated: Namespaced {
    /// The selector of its pods.
    fn selector(&self) -> Option<LabelSelector>;
    /// The number of pods that it asks for.
    fn replicas(&self) -> isize;
    /// How long a pod is ready before it is available.
    fn min_ready_seconds(&self) -> isize;
    /// The template of its pods.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Its status.
    fn status(&self) -> Status;
    /// Replaces its status.
    fn set_status(&mut self, status: Status);
}

/// What both kinds have in their specs, under the same names.
macro_rules! of_spec {
    () => {
        fn replicas(&self) -> isize {
            self.spec.as_ref().map_or(0, |spec| count(Some(spec.replicas.unwrap_or(1))))
        }

        fn min_ready_seconds(&self) -> isize {
            count(self.spec.as_ref().and_then(|spec| spec.min_ready_seconds))
        }

        fn template(&self) -> Option<&PodTemplateSpec> {
            self.spec.as_ref()?.template.as_ref()
        }
    };
}

/// The conditions of both kinds have the same fields.
macro_rules! condition {
    ($kind:ident) => {
        impl From<$kind> for Condition {
            fn from(condition: $kind) -> Self {
                Self {
                    kind: condition.type_,
                    status: condition.status,
                    since: condition.last_transition_time,
                    reason: condition.reason,
                    message: condition.message,
                }
            }
        }

        impl From<Condition> for $kind {
            fn from(condition: Condition) -> Self {
                Self {
                    type_: condition.kind,
                    status: condition.status,
                    last_transition_time: condition.since,
                    reason: condition.reason,
                    message: condition.message,
                }
            }
        }
    };
}

condition!(ReplicaSetCondition);
condition!(ReplicationControllerCondition);

impl Replicated for ReplicaSet {
    fn selector(&self) -> Option<LabelSelector> {
        self.spec.as_ref().map(|spec| spec.selector.clone())
    }

    of_spec!();

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            terminating: status.terminating_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.into_iter().flatten().map(Condition::from).collect(),
        }
    }

    fn set_status(&mut self, status: Status) {
        let conditions: Vec<_> = status.conditions.into_iter().map(Into::into).collect();
        self.status = Some(ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            terminating_replicas: status.terminating,
            observed_generation: status.observed_generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        });
    }
}

impl Replicated for ReplicationController {
    fn selector(&self) -> Option<LabelSelector> {
        let labels = self.spec.as_ref()?.selector.clone()?;
        Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() })
    }

    of_spec!();

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            terminating: None,
            observed_generation: status.observed_generation,
            conditions: status.conditions.into_iter().flatten().map(Condition::from).collect(),
        }
    }

    fn set_status(&mut self, status: Status) {
        let conditions: Vec<_> = status.conditions.into_iter().map(Into::into).collect();
        self.status = Some(ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: Some(status.fully_labeled),
            ready_replicas: Some(status.ready),
            available_replicas: Some(status.available),
            observed_generation: status.observed_generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        });
    }
}
