//! Keeps the data in a pod's volumes as its sources are: only what changed is looked at, and only
//! when it changes.

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

/// Pauses after a refresh that failed, as upstream's.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(500);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(122);

/// What is said of a container whose environment names what is not there.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// How it stands with the data in the volumes.
pub(super) struct Data {
    /// Tells what changes.
    pub(super) changes: Changes,
    /// What changed and is not in the volumes yet.
    stale: Changed,
    retries: Backoff<()>,
    /// When a refresh that failed is tried again.
    pub(super) retry_at: Option<Timestamp>,
}

impl Data {
    /// That of a pod, whose references are known from now on.
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
    /// The pod's source has it otherwise: volumes may tell its containers of that.
    pub(super) fn note_change(&mut self, newer: &Pod) {
        let (old, new) = (&self.asked.metadata, &newer.metadata);
        if old.labels != new.labels
            || old.annotations != new.annotations
            || self.asked.spec != newer.spec
        {
            self.changed(Changed::pod());
        }
        let mounts = self.mounts.take();
        self.mounts = mounts.filter(|mounts| has_all(mounts, newer));
    }

    /// The volumes of the pod stand, as far as they were asked for when that was begun.
    pub(super) fn mounted(&mut self, mounts: Arc<PodMounts>) {
        self.mounts = Some(mounts).filter(|mounts| has_all(mounts, &self.pod));
        self.mount_failed = false;
    }

    /// Something that the pod refers to changed. What it was waited for is tried again at once.
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

    /// Begin to write anew what changed, if the volumes stand.
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
        self.steps.begin(Subject::Data, |recall| step_context.refresh(changed, recall));
    }

    /// Take in what came of it.
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

/// Whether all stand that the pod uses: an ephemeral container may be the first to use one.
fn has_all(mounts: &PodMounts, pod: &Pod) -> bool {
    used(pod).all(|volume| mounts.contains_key(&volume.name))
}
