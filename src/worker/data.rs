//! Updates the data in a pod's volumes when their sources change.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use longshore_client::objects::{Changed, Changes};
use longshore_pod::Timestamp;
use longshore_pod::backoff::Backoff;
use longshore_pod::spec::describe;
use longshore_volumes::{PodMounts, used};
use tracing::debug;

use super::WorkerContext;
use super::steps::Subject;
use super::task::Task;

/// Backoff after a failed update, as upstream's.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(500);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(122);

/// Waiting reason of a container whose environment refers to missing objects.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// State of the data in the volumes.
pub(super) struct Data {
    /// Changes of the sources.
    pub(super) changes: Changes,
    /// Changes that are not in the volumes yet.
    stale: Changed,
    retries: Backoff<()>,
    /// When a failed update is retried.
    pub(super) retry_at: Option<Timestamp>,
}

impl Data {
    /// Registers the references of a pod.
    pub(super) fn of(context: &WorkerContext, pod: &Pod) -> Self {
        Self {
            changes: context.objects.register(pod),
            stale: Changed::default(),
            retries: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
        }
    }
}

impl Task {
    /// The pod was changed in its source, which downward API volumes may show.
    pub(super) fn note_change(&mut self, newer: &Pod) {
        let (old, new) = (&self.desired.metadata, &newer.metadata);
        if old.labels != new.labels
            || old.annotations != new.annotations
            || self.desired.spec != newer.spec
        {
            self.changed(Changed::pod());
        }
        let mounts = self.mounts.take();
        self.mounts = mounts.filter(|mounts| has_all(mounts, newer));
    }

    /// The volumes that were requested when the step began are mounted.
    pub(super) fn mounted(&mut self, mounts: Arc<PodMounts>) {
        self.mounts = Some(mounts).filter(|mounts| has_all(mounts, &self.pod));
        self.mount_failed = false;
    }

    /// An object that the pod refers to has changed. What waits for it is retried at once.
    pub(super) fn changed(&mut self, changed: Changed) {
        self.data.stale.add(changed);
        self.data.retry_at = None;
        if self.mount_failed {
            self.retry_at = None;
        }
        for wait in self.waiting.values_mut().filter(|wait| wait.reason == CONFIG_ERROR) {
            wait.until = None;
        }
    }

    /// Starts the update of changed data, if the volumes are mounted.
    pub(super) fn refresh(&mut self, now: Timestamp) {
        let waits = self.data.retry_at.is_some_and(|at| at > now);
        let busy = [Subject::Data, Subject::Volumes, Subject::Pod];
        if self.mounts.is_none()
            || self.data.stale.is_nothing()
            || waits
            || busy.iter().any(|subject| self.steps.is_busy(subject))
        {
            return;
        }
        let (changed, step_context) = (std::mem::take(&mut self.data.stale), self.step_context());
        self.steps.begin(Subject::Data, |cancellation| step_context.refresh(changed, cancellation));
    }

    /// Handles the result of an update.
    pub(super) fn refreshed(&mut self, left: Changed, error: Option<String>, now: Timestamp) {
        self.data.stale.add(left);
        let Some(message) = error else {
            self.data.retries.retain(|()| false);
            return;
        };
        debug!(pod = describe(&self.pod), message, "volumes not refreshed");
        self.context.pod_events.pod(&self.pod, true, "FailedMount", &message);
        self.data.retries.next(&(), now, now);
        let delay = self.data.retries.delay(&());
        self.data.retry_at = Some(now.checked_add(delay).unwrap_or(Timestamp::MAX));
    }
}

/// Whether all volumes that the pod uses are mounted: an ephemeral container may be the first to use one.
fn has_all(mounts: &PodMounts, pod: &Pod) -> bool {
    used(pod).all(|volume| mounts.contains_key(&volume.name))
}
