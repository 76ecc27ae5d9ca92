//! The worker of one pod: its state and its sync loop.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::allocation::Decision;
use crate::terminator::{Order, Termination};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::SignedDuration;
use longshore_pod::backoff::{Backoff, RESTART_BASE};
use longshore_pod::observed::ObservedPod;
use longshore_pod::plan::BackoffKey;
use longshore_pod::probes::ProbeResults;
use longshore_pod::spec::describe;
use longshore_pod::status::{self, Verdict};
use longshore_pod::{Timestamp, spec};
use longshore_runtime::Present;
use longshore_volumes::PodMounts;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::act::StepContext;
use super::admit::AdmissionState;
use super::data::Data;
use super::end::grace;
use super::resize::Resizing;
use super::startup_limiter::StartupSlot;
use super::steps::{Outcome, Steps};
use super::stopwatch::Stopwatch;
use super::{Phase, Why, WorkerContext};
use crate::admission::Reservation;

/// Backoff of failed steps.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(200);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(10);
/// An observed state that is incomplete for this long causes an event.
const PARTIAL_LIMIT: SignedDuration = SignedDuration::from_secs(5);

pub(super) struct Task {
    pub(super) context: Arc<WorkerContext>,
    pub(super) order: watch::Receiver<Order>,
    pub(super) observed: watch::Receiver<Arc<ObservedPod>>,
    pub(super) probes: watch::Receiver<Arc<ProbeResults>>,
    /// The decision about its resize.
    pub(super) decision: watch::Receiver<Decision>,
    /// The pod as desired by its source.
    pub(super) desired: Arc<Pod>,
    /// The pod as it may run: with its allocated resources.
    pub(super) pod: Arc<Pod>,
    pub(super) phase: Phase,
    /// Why the node terminates the pod, if it does.
    pub(super) verdict: Option<Verdict>,
    /// Its reservation on the node, until nothing of it runs.
    pub(super) reservation: Option<Reservation>,
    /// State of its admission.
    pub(super) admission_state: AdmissionState,
    /// Whether it was rejected.
    pub(super) refused: bool,
    /// The last reported status.
    pub(super) last_status: PodStatus,
    pub(super) steps: Steps,
    /// Held by the container that is being started.
    pub(super) start_lock: Arc<Mutex<()>>,
    /// Held while the pod is being started.
    pub(super) slot: Arc<StartupSlot>,
    pub(super) restarts: Backoff<BackoffKey>,
    /// Backoff of failures: of containers by name, of the pod by "".
    pub(super) retries: Backoff<String>,
    /// When a failure of the whole pod is retried.
    pub(super) retry_at: Option<Timestamp>,
    /// The current failure of the whole pod.
    pub(super) pod_error: Option<String>,
    /// Why containers are waiting, by name.
    pub(super) waiting: HashMap<String, Wait>,
    pub(super) mounts: Option<Arc<PodMounts>>,
    /// Whether the last attempt to mount the volumes failed.
    pub(super) mount_failed: bool,
    /// Images that were pulled and not used yet, by container name.
    pub(super) images: HashMap<String, Present>,
    /// The sandbox for which `SandboxChanged` was recorded last.
    pub(super) lost_sandbox: String,
    /// Sandboxes that were stopped and have released their resources.
    pub(super) stopped: HashSet<String>,
    /// The resize in progress, if any.
    pub(super) resizing: Option<Resizing>,
    /// Whether its reservation may exceed its resources.
    pub(super) was_resized: bool,
    /// Number of resizes that were started.
    pub(super) grants: u64,
    /// End of the grace period of the pod, once it terminates.
    pub(super) deadline: watch::Sender<Option<Instant>>,
    /// Since when the observed state is incomplete, and whether an event was recorded for that.
    partial_since: Option<(Timestamp, bool)>,
    /// State of the data in the volumes.
    pub(super) data: Data,
    pub(super) stopwatch: Stopwatch,
}

/// Waiting state of a container.
pub(super) struct Wait {
    pub(super) reason: String,
    pub(super) message: String,
    /// When it is retried, unless that follows from the restart backoff.
    pub(super) until: Option<Timestamp>,
}

impl Task {
    pub(super) fn new(context: Arc<WorkerContext>, order: watch::Receiver<Order>) -> Self {
        let pod = order.borrow().pod.clone();
        let observed = context.observer.subscribe(spec::uid(&pod));
        let probes = context.probes.subscribe(spec::uid(&pod));
        let restarts = Backoff::new(RESTART_BASE, context.max_restart_delay);
        let decision = context.allocation.subscribe(spec::uid(&pod));
        let last_status = pod.status.clone().unwrap_or_default();
        let resizing = status::resize_status(&last_status).1;
        let resizing =
            resizing.map(|reported| Resizing::new(reported, context.allocation.metrics()));
        Self {
            decision,
            desired: pod.clone(),
            pod: context.allocation.allocated(&pod),
            was_resized: resizing.is_some(),
            resizing,
            grants: 0,
            order,
            observed,
            probes,
            phase: Phase::Syncing,
            verdict: None,
            reservation: None,
            admission_state: AdmissionState::Known,
            refused: false,
            last_status,
            steps: Steps::default(),
            start_lock: Arc::default(),
            slot: context.startup_limiter.slot(),
            restarts,
            retries: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
            pod_error: None,
            waiting: HashMap::new(),
            mounts: None,
            mount_failed: false,
            images: HashMap::new(),
            lost_sandbox: String::new(),
            stopped: HashSet::new(),
            deadline: watch::Sender::new(None),
            partial_since: None,
            data: Data::of(&context, &pod),
            stopwatch: context.metrics.stopwatch(),
            context,
        }
    }

    /// Runs the worker of an orphan, whose spec is restored from its containers.
    pub(super) async fn run_orphan(mut self) {
        let observed = self.observed.borrow().clone();
        self.stopwatch.is_orphan();
        self.pod = Arc::new(self.context.runtime.restore(&self.pod, &observed).await);
        self.desired = self.pod.clone();
        self.run().await;
    }

    /// Runs until nothing of the pod is left.
    pub(super) async fn run(mut self) {
        self.context.objects.register(&self.pod);
        self.stopwatch.begin(&self.pod, !matches!(self.admission_state, AdmissionState::Known));
        self.wait_for_admission().await;
        loop {
            let ordered = self.order.has_changed().unwrap_or(false);
            let end = self.take_order();
            self.stopwatch.turn(&self.order.borrow(), self.phase, ordered);
            let wake_at = match (self.phase, end) {
                (Phase::Syncing, Some((grace, why))) => {
                    self.begin_termination(grace, why);
                    continue;
                }
                (Phase::Syncing, None) => self.sync(),
                (Phase::Terminating { .. }, end) => {
                    self.shorten_grace(end);
                    self.terminate()
                }
                (Phase::Terminated, _) => {
                    self.clean_up().await;
                    return;
                }
            };
            if let Some(wake_at) = wake_at {
                if self.steps.is_empty() {
                    self.stopwatch.idle();
                }
                self.wait(wake_at).await;
            }
        }
    }

    /// Applies the newest update. Returns grace period and reason if it terminates the pod.
    pub(super) fn take_order(&mut self) -> Option<(Duration, Why)> {
        let order = self.order.borrow_and_update().clone();
        if !Arc::ptr_eq(&order.pod, &self.desired) && !order.gone {
            self.context.objects.register(&order.pod);
            self.note_change(&order.pod);
            self.update_pod(order.pod);
        }
        let mut allowed = grace(&self.pod);
        if let Some(end) = order.termination {
            self.verdict.get_or_insert(end.verdict);
            if let Some(own) = end.grace {
                let deletion = self.pod.metadata.deletion_grace_period_seconds;
                allowed = if deletion.is_some() { allowed.min(own) } else { own };
            }
        }
        let last_phase = self.last_status.phase.as_deref().unwrap_or_default();
        let final_in_api = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let why = match () {
            () if order.gone => Why::Gone,
            () if self.pod.metadata.deletion_timestamp.is_some() => Why::Deleted,
            () if status::is_final(last_phase)
                || status::is_final(final_in_api.unwrap_or_default()) =>
            {
                Why::Completed
            }
            () if self.verdict.is_some() => Why::Decided,
            () => return None,
        };
        Some((allowed, why))
    }

    /// Waits for an update, a change of the observed state or of probe results, the result of a step, or
    /// the given time.
    async fn wait(&mut self, wake_at: Wake) {
        let at = |at: Option<Timestamp>| async move {
            match at {
                None => std::future::pending().await,
                Some(at) => {
                    let left = at.duration_since(Timestamp::now());
                    sleep(Duration::try_from(left).unwrap_or_default()).await;
                }
            }
        };
        let syncs = self.phase == Phase::Syncing;
        tokio::select! {
            _ = self.order.changed() => {}
            Ok(()) = self.decision.changed() => {}
            _ = self.observed.changed() => {}
            _ = self.probes.changed() => {}
            outcome = self.steps.next() => self.done(outcome),
            () = at(wake_at.0) => {}
            changed = self.data.changes.next(), if syncs => self.changed(changed),
        }
    }

    /// Handles the result of a step.
    fn done(&mut self, outcome: Outcome) {
        let now = Timestamp::now();
        match outcome {
            Outcome::Done => self.recovered(),
            Outcome::Cancelled => {}
            Outcome::Mounted(mounts) => {
                self.mounted(mounts);
                self.recovered();
            }
            Outcome::Refreshed { left, error } => self.refreshed(left, error, now),
            Outcome::SandboxesStopped(ids) => self.stopped.extend(ids),
            Outcome::Fetched(name, image) => {
                self.images.insert(name, image);
            }
            Outcome::Started(name) => {
                self.waiting.remove(&name);
                self.retries.retain(|failed| *failed != name);
            }
            // It did not fail by itself: no backoff.
            Outcome::SandboxLost(name) => self.restarts.retain(|(failed, _)| *failed != name),
            Outcome::NotStarted(name, error) => {
                let (reason, message) = (error.reason, error.message);
                debug!(pod = describe(&self.pod), name, reason, message, "container not started");
                let until = error.retry_at.unwrap_or_else(|| self.next_retry(&name, now));
                let wait = Wait { reason: reason.to_owned(), message, until: Some(until) };
                self.waiting.insert(name, wait);
            }
            Outcome::Resized(resized) => self.resized(resized, now),
            Outcome::Failed(failure) => {
                let (reason, message) = (failure.reason, failure.message);
                debug!(pod = describe(&self.pod), reason, message, "step failed");
                if let Some(reason) = failure.rejects {
                    return self.reject(reason, &message);
                }
                self.mount_failed |= matches!(reason, "FailedMount" | "FailedMapVolume");
                self.context.pod_events.pod(&self.pod, true, reason, &message);
                self.pod_error = Some(message);
                self.retry_at = Some(self.next_retry("", now));
            }
        }
    }

    /// Rejects a pod that cannot run on this node.
    fn reject(&mut self, reason: &str, message: &str) {
        self.context.pod_events.pod(&self.pod, true, reason, message);
        let verdict = Verdict::failed(reason, format!("Pod was rejected: {message}"));
        self.decide(Termination { verdict, grace: None });
    }

    /// A step for the whole pod succeeded.
    fn recovered(&mut self) {
        self.pod_error = None;
        self.retries.retain(|failed| !failed.is_empty());
    }

    /// When a failure is retried.
    pub(super) fn next_retry(&mut self, what: &str, now: Timestamp) -> Timestamp {
        let what = what.to_owned();
        self.retries.next(&what, now, now);
        now.checked_add(self.retries.delay(&what)).unwrap_or(Timestamp::MAX)
    }

    /// The observed state is incomplete, so it is neither reported nor acted upon. Returns the time at
    /// which an event is due.
    pub(super) fn note_partial(&mut self, now: Timestamp) -> Wake {
        let (since, reported) = *self.partial_since.get_or_insert((now, false));
        let due = since.checked_add(PARTIAL_LIMIT).unwrap_or(Timestamp::MAX);
        if reported {
            return Wake(None);
        }
        if now < due {
            return Wake(Some(due));
        }
        self.partial_since = Some((since, true));
        let why = self.context.observer.last_error(spec::uid(&self.pod));
        let why = why.as_deref().unwrap_or("the runtime does not answer");
        let message = format!("error determining status: {why}");
        self.context.pod_events.pod(&self.pod, true, "FailedSync", &message);
        Wake(None)
    }

    /// The observed state is complete.
    pub(super) fn note_complete(&mut self) {
        self.partial_since = None;
    }

    pub(super) fn step_context(&self) -> StepContext {
        let (context, pod) = (self.context.clone(), self.pod.clone());
        StepContext { context, pod, slot: self.slot.clone() }
    }
}

/// When the next iteration is due, if nothing changes before.
pub(super) struct Wake(pub(super) Option<Timestamp>);
