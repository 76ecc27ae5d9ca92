//! The volumes of a pod, and updates of the data in them when their sources change.

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
use super::act::Volumes;
use super::failures::Failures;
use super::state::PodState;
use super::steps::Subject;
use super::sync::Syncing;

/// Backoff after a failed update, as upstream's.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(500);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(122);

/// The volumes of a pod that should run, and the data in them.
pub(super) struct PodVolumes {
    /// What is mounted, once everything is.
    mounts: Option<Arc<PodMounts>>,
    /// Whether the last attempt to mount them failed.
    mount_failed: bool,
    /// Changes of the sources.
    changes: Changes,
    /// Changes that are not in the volumes yet.
    stale: Changed,
    retries: Backoff<()>,
    /// When a failed update is retried.
    retry_at: Option<Timestamp>,
}

impl PodVolumes {
    /// Registers the references of a pod.
    pub(super) fn new(context: &WorkerContext, pod: &Pod) -> Self {
        Self {
            mounts: None,
            mount_failed: false,
            changes: context.objects.register(pod),
            stale: Changed::default(),
            retries: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
        }
    }

    /// What is mounted, once everything is.
    pub(super) fn mounts(&self) -> Option<&Arc<PodMounts>> {
        self.mounts.as_ref()
    }

    /// When they are mounted, relative to the creation of a sandbox.
    pub(super) fn order(&self) -> Volumes {
        match (&self.mounts, self.mount_failed) {
            (Some(mounts), _) => Volumes::Ready(mounts.clone()),
            (None, false) => Volumes::Alongside,
            (None, true) => Volumes::First,
        }
    }

    /// The volumes that were requested when the step began are mounted.
    pub(super) fn mounted(&mut self, mounts: Arc<PodMounts>, pod: &Pod) {
        self.mounts = Some(mounts).filter(|mounts| has_all(mounts, pod));
        self.mount_failed = false;
    }

    /// A step failed for that reason.
    pub(super) fn note_failure(&mut self, reason: &str) {
        self.mount_failed |= matches!(reason, "FailedMount" | "FailedMapVolume");
    }

    /// Until an object that the pod refers to has changed. Cancel safe.
    pub(super) async fn source_changed(&self) -> Changed {
        self.changes.next().await
    }

    /// An object that the pod refers to has changed. What waits for it is retried at once.
    pub(super) fn changed(&mut self, changed: Changed, failures: &mut Failures) {
        self.stale.add(changed);
        self.retry_at = None;
        if self.mount_failed {
            failures.retry_pod();
        }
        failures.retry_config_errors();
    }

    /// When a failed update is retried, if that is later than `now`.
    pub(super) fn retry_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.retry_at.filter(|at| *at > now)
    }
}

impl Syncing {
    /// The pod was changed in its source, which downward API volumes may show.
    pub(super) fn note_change(&mut self, state: &mut PodState, newer: &Pod) {
        let (old, new) = (&state.desired.metadata, &newer.metadata);
        if old.labels != new.labels
            || old.annotations != new.annotations
            || state.desired.spec != newer.spec
        {
            self.volumes.changed(Changed::pod(), &mut state.failures);
        }
        let mounts = self.volumes.mounts.take();
        self.volumes.mounts = mounts.filter(|mounts| has_all(mounts, newer));
    }

    /// Starts the update of changed data, if the volumes are mounted.
    pub(super) fn refresh(&mut self, state: &mut PodState, now: Timestamp) {
        let busy = [Subject::Data, Subject::Volumes, Subject::Pod];
        let volumes = &mut self.volumes;
        if volumes.mounts.is_none()
            || volumes.stale.is_nothing()
            || volumes.retry_at(now).is_some()
            || busy.iter().any(|subject| state.steps.is_busy(subject))
        {
            return;
        }
        let (changed, step_context) = (std::mem::take(&mut volumes.stale), state.step_context());
        state
            .steps
            .begin(Subject::Data, |cancellation| step_context.refresh(changed, cancellation));
    }

    /// Handles the result of an update.
    pub(super) fn refreshed(
        &mut self,
        state: &PodState,
        left: Changed,
        error: Option<String>,
        now: Timestamp,
    ) {
        let volumes = &mut self.volumes;
        volumes.stale.add(left);
        let Some(message) = error else {
            volumes.retries.retain(|()| false);
            return;
        };
        debug!(pod = describe(&state.pod), message, "volumes not refreshed");
        state.context.pod_events.pod(&state.pod, true, "FailedMount", &message);
        volumes.retries.next(&(), now, now);
        let delay = volumes.retries.delay(&());
        volumes.retry_at = Some(now.checked_add(delay).unwrap_or(Timestamp::MAX));
    }
}

/// Whether all volumes that the pod uses are mounted: an ephemeral container may be the first to use one.
fn has_all(mounts: &PodMounts, pod: &Pod) -> bool {
    used(pod).all(|volume| mounts.contains_key(&volume.name))
}
