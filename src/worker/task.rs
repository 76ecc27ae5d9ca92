//! The worker of one pod: what it knows, and its turns.

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
use super::data::Data;
use super::end::grace;
use super::entry::Entry;
use super::resize::Resizing;
use super::startup_limiter::StartupSlot;
use super::steps::{Outcome, Steps};
use super::stopwatch::Stopwatch;
use super::{Phase, Why, WorkerContext};
use crate::admission::Reservation;

/// Pauses after a step that failed.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(200);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(10);
/// What the runtime has of the pod and has not shown for this long is worth an event.
const UNSEEN: SignedDuration = SignedDuration::from_secs(5);

pub(super) struct Task {
    pub(super) context: Arc<WorkerContext>,
    pub(super) order: watch::Receiver<Order>,
    pub(super) observed: watch::Receiver<Arc<ObservedPod>>,
    pub(super) probes: watch::Receiver<Arc<ProbeResults>>,
    /// What is decided about its resize.
    pub(super) decision: watch::Receiver<Decision>,
    /// The pod as its source has it.
    pub(super) asked: Arc<Pod>,
    /// The pod as it may run: with the resources that it was given.
    pub(super) pod: Arc<Pod>,
    pub(super) phase: Phase,
    /// Why the pod was ended by the node, if it was.
    pub(super) verdict: Option<Verdict>,
    /// What it holds on the node, until nothing of it runs any more.
    pub(super) seat: Option<Reservation>,
    /// How it stands with its coming in.
    pub(super) entry: Entry,
    /// Whether it was not even let in.
    pub(super) refused: bool,
    /// The status told last.
    pub(super) told: PodStatus,
    pub(super) steps: Steps,
    /// Held by the container that is being started.
    pub(super) turn: Arc<Mutex<()>>,
    /// Held while the pod is in the making.
    pub(super) place: Arc<StartupSlot>,
    pub(super) restarts: Backoff<BackoffKey>,
    /// Pauses after failures: of a container by its name, of the pod as a whole by "".
    pub(super) retries: Backoff<String>,
    /// When what failed for the pod as a whole is tried again.
    pub(super) retry_at: Option<Timestamp>,
    /// What failed for the pod as a whole last, while it does.
    pub(super) trouble: Option<String>,
    /// Why containers do not run, by name.
    pub(super) waiting: HashMap<String, Wait>,
    pub(super) mounts: Option<Arc<PodMounts>>,
    /// Whether the volumes could not be mounted when that was tried last.
    pub(super) mount_failed: bool,
    /// Images that were fetched and not used yet, by the name of their container.
    pub(super) images: HashMap<String, Present>,
    /// The sandbox whose loss was told last.
    pub(super) lost_sandbox: String,
    /// Sandboxes that are known to have given back what they held.
    pub(super) stopped: HashSet<String>,
    /// The resize under way, if one is.
    pub(super) resizing: Option<Resizing>,
    /// Whether its seat may be larger than what it has.
    pub(super) was_resized: bool,
    /// How many resizes were begun.
    pub(super) grants: u64,
    /// When the grace of the pod as a whole is over, once it ends.
    pub(super) deadline: watch::Sender<Option<Instant>>,
    /// Since when the runtime does not show all that it has of the pod, and whether that was told.
    unseen: Option<(Timestamp, bool)>,
    /// What the volumes' data is made of, and how it stands with it.
    pub(super) data: Data,
    pub(super) stopwatch: Stopwatch,
}

/// A container's wait.
pub(super) struct Wait {
    pub(super) reason: String,
    pub(super) message: String,
    /// Until when it is not tried again, if it is not the restart delay that says so.
    pub(super) until: Option<Timestamp>,
}

impl Task {
    pub(super) fn new(context: Arc<WorkerContext>, order: watch::Receiver<Order>) -> Self {
        let pod = order.borrow().pod.clone();
        let observed = context.observer.subscribe(spec::uid(&pod));
        let probes = context.probes.subscribe(spec::uid(&pod));
        let restarts = Backoff::new(RESTART_BASE, context.max_restart_delay);
        let decision = context.allocation.subscribe(spec::uid(&pod));
        let told = pod.status.clone().unwrap_or_default();
        let resizing = status::resize_told(&told).1;
        let resizing = resizing.map(|told| Resizing::new(told, context.allocation.metrics()));
        Self {
            decision,
            asked: pod.clone(),
            pod: context.allocation.allocated(&pod),
            was_resized: resizing.is_some(),
            resizing,
            grants: 0,
            order,
            observed,
            probes,
            phase: Phase::Syncing,
            verdict: None,
            seat: None,
            entry: Entry::Known,
            refused: false,
            told,
            steps: Steps::default(),
            turn: Arc::default(),
            place: context.startup_limiter.place(),
            restarts,
            retries: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
            trouble: None,
            waiting: HashMap::new(),
            mounts: None,
            mount_failed: false,
            images: HashMap::new(),
            lost_sandbox: String::new(),
            stopped: HashSet::new(),
            deadline: watch::Sender::new(None),
            unseen: None,
            data: Data::of(&context, &pod),
            stopwatch: context.metrics.stopwatch(),
            context,
        }
    }

    /// The worker of a pod that runs and that nobody wants: its containers tell what it was.
    pub(super) async fn run_orphan(mut self) {
        let observed = self.observed.borrow().clone();
        self.stopwatch.is_orphan();
        self.pod = Arc::new(self.context.runtime.restore(&self.pod, &observed).await);
        self.asked = self.pod.clone();
        self.run().await;
    }

    /// Work until nothing of the pod is left to care for.
    pub(super) async fn run(mut self) {
        self.context.objects.register(&self.pod);
        self.stopwatch.begin(&self.pod, !matches!(self.entry, Entry::Known));
        self.enter().await;
        loop {
            let ordered = self.order.has_changed().unwrap_or(false);
            let end = self.take_order();
            self.stopwatch.turn(&self.order.borrow(), self.phase, ordered);
            let wake_at = match (self.phase, end) {
                (Phase::Syncing, Some((grace, why))) => {
                    self.begin_end(grace, why);
                    continue;
                }
                (Phase::Syncing, None) => self.sync(),
                (Phase::Terminating { .. }, end) => {
                    self.hurry(end);
                    self.terminate()
                }
                (Phase::Terminated, _) => {
                    self.clean_up().await;
                    return;
                }
            };
            if let Some(wake_at) = wake_at {
                if self.steps.is_empty() {
                    self.stopwatch.rest();
                }
                self.wait(wake_at).await;
            }
        }
    }

    /// Take in the newest order. Tells whether it ends the pod: how fast, and why.
    pub(super) fn take_order(&mut self) -> Option<(Duration, Why)> {
        let order = self.order.borrow_and_update().clone();
        if !Arc::ptr_eq(&order.pod, &self.asked) && !order.gone {
            self.context.objects.register(&order.pod);
            self.note_change(&order.pod);
            self.asks(order.pod);
        }
        let mut allowed = grace(&self.pod);
        if let Some(end) = order.termination {
            self.verdict.get_or_insert(end.verdict);
            if let Some(own) = end.grace {
                let deletion = self.pod.metadata.deletion_grace_period_seconds;
                allowed = if deletion.is_some() { allowed.min(own) } else { own };
            }
        }
        let told = self.told.phase.as_deref().unwrap_or_default();
        let final_in_api = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let why = match () {
            () if order.gone => Why::Gone,
            () if self.pod.metadata.deletion_timestamp.is_some() => Why::Deleted,
            () if status::is_final(told) || status::is_final(final_in_api.unwrap_or_default()) => {
                Why::Completed
            }
            () if self.verdict.is_some() => Why::Decided,
            () => return None,
        };
        Some((allowed, why))
    }

    /// Until an order, a change of what runs or of what probes find, the end of a step, or a time:
    /// the one that is given, if any.
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

    /// Take in what came of a step.
    fn done(&mut self, outcome: Outcome) {
        let now = Timestamp::now();
        match outcome {
            Outcome::Done => self.recovered(),
            Outcome::Recalled => {}
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
            // It had no chance to fail by itself, so it does not wait before it starts in the next.
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
                self.trouble = Some(message);
                self.retry_at = Some(self.next_retry("", now));
            }
        }
    }

    /// The pod cannot run on this node, and says so for whoever makes another.
    fn reject(&mut self, reason: &str, message: &str) {
        self.context.pod_events.pod(&self.pod, true, reason, message);
        let verdict = Verdict::failed(reason, format!("Pod was rejected: {message}"));
        self.decide(Termination { verdict, grace: None });
    }

    /// What the pod as a whole needs is there (again).
    fn recovered(&mut self) {
        self.trouble = None;
        self.retries.retain(|failed| !failed.is_empty());
    }

    /// When to try again what failed now.
    pub(super) fn next_retry(&mut self, what: &str, now: Timestamp) -> Timestamp {
        let what = what.to_owned();
        self.retries.next(&what, now, now);
        now.checked_add(self.retries.delay(&what)).unwrap_or(Timestamp::MAX)
    }

    /// The runtime has more of the pod than it shows: half a picture would be told, and acted
    /// upon, as if the rest were lost. Gives the time by which that is worth an event.
    pub(super) fn unseen(&mut self, now: Timestamp) -> Wake {
        let (since, told) = *self.unseen.get_or_insert((now, false));
        let due = since.checked_add(UNSEEN).unwrap_or(Timestamp::MAX);
        if told {
            return Wake(None);
        }
        if now < due {
            return Wake(Some(due));
        }
        self.unseen = Some((since, true));
        let why = self.context.observer.trouble(spec::uid(&self.pod));
        let why = why.as_deref().unwrap_or("the runtime does not answer");
        let message = format!("error determining status: {why}");
        self.context.pod_events.pod(&self.pod, true, "FailedSync", &message);
        Wake(None)
    }

    /// The runtime shows all that it has of the pod.
    pub(super) fn seen(&mut self) {
        self.unseen = None;
    }

    pub(super) fn step_context(&self) -> StepContext {
        let (context, pod) = (self.context.clone(), self.pod.clone());
        StepContext { context, pod, place: self.place.clone() }
    }
}

/// When the next turn is due, if nothing happens before.
pub(super) struct Wake(pub(super) Option<Timestamp>);
