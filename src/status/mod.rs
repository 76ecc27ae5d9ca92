//! The only writer of pod statuses to the apiserver.
//!
//! Workers set the latest status of their pod without waiting. Statuses set during a write are
//! coalesced; a failed write is retried until it is acknowledged or the pod is deleted; fields that the
//! apiserver rejects as invalid are left out and logged. The object of a terminated pod is deleted
//! after its last status was written.

mod metrics;
mod patch;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use longshore_base::retry::Delays;
use longshore_base::{panics, time};
use longshore_metrics::Registry;
use longshore_pod::spec;
use longshore_pod::status::is_final;
use longshore_pods_api::{PodEvent, PodEvents};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use longshore_podstate::desired::Desired;
use metrics::Metrics;
use write::write;

/// Maximum number of parallel writes.
const PARALLEL: usize = 8;
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The latest status of one pod.
#[derive(Debug)]
struct Entry {
    /// Distinguishes it from an earlier entry of the same UID, as that of a static pod that was
    /// removed and added again.
    id: u64,
    pod: Arc<Pod>,
    wanted: PodStatus,
    /// The status on the apiserver, as far as known, with UID and version of the object.
    written: PodStatus,
    written_uid: String,
    written_version: u64,
    /// The pod has terminated: delete its object after the status is written.
    finish: bool,
    /// Since when the latest status is not written.
    since: Option<Instant>,
    queued: bool,
    writing: bool,
    /// The status changed during a write.
    again: bool,
    retries: Delays,
    /// When a failed write is retried.
    retry_at: Option<Instant>,
}

/// Handle to set statuses. Cheap to clone. Nothing is written until [`run`](Self::run) runs.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Notify,
    metrics: Metrics,
    events: PodEvents,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    next_id: u64,
    queue: VecDeque<String>,
    /// The pods of which listeners know, by UID.
    reported: HashMap<String, Arc<Pod>>,
}

/// One write.
struct Job {
    uid: String,
    entry: u64,
    pod: Arc<Pod>,
    wanted: PodStatus,
    written: PodStatus,
    object_uid: String,
    finish: bool,
}

enum Outcome {
    /// The version of the object after the write, 0 if nothing was written.
    Taken {
        version: u64,
    },
    Gone,
    Failed,
}

/// A writer whose metrics are not registered.
impl Default for StatusWriter {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

impl StatusWriter {
    /// Registers the metrics of the writer.
    pub fn new(registry: &Registry) -> Self {
        let (state, work, metrics) = (Mutex::default(), Notify::default(), Metrics::new(registry));
        let events = PodEvents::default();
        Self { shared: Arc::new(Shared { state, work, metrics, events }) }
    }

    /// Reports of what happens to pods, for the Pods API.
    pub fn events(&self) -> PodEvents {
        self.shared.events.clone()
    }

    /// Sets the latest status of the pod.
    pub fn set_status(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.put(pod, status, false);
    }

    /// Sets the last status of the pod; its object is deleted after it is written.
    pub fn finish(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.put(pod, status, true);
    }

    /// The latest status.
    pub fn latest(&self, uid: &str) -> Option<PodStatus> {
        self.state().entries.get(uid).map(|entry| entry.wanted.clone())
    }

    /// Whether the pod has not come to its end, by its latest status or that of its object.
    pub fn is_active(&self, pod: &Pod) -> bool {
        let state = self.state();
        let latest = state.entries.get(spec::uid(pod)).map(|entry| &entry.wanted);
        let phase = latest.or(pod.status.as_ref()).and_then(|status| status.phase.as_deref());
        !is_final(phase.unwrap_or_default())
    }

    /// Nothing of the pod runs any more, and it holds nothing.
    pub fn ended(&self, uid: &str) {
        self.state().report_end(uid, &self.shared.events);
    }

    /// Removes the pod.
    pub fn forget(&self, uid: &str) {
        let mut state = self.state();
        state.report_end(uid, &self.shared.events);
        state.entries.remove(uid);
        state.queue.retain(|queued| queued != uid);
    }

    /// Retries a write whose inputs have changed, such as the mirror of a static pod.
    pub fn requeue(&self, uid: &str) {
        let mut state = self.state();
        state.enqueue(uid);
        drop(state);
        self.shared.work.notify_one();
    }

    fn put(&self, pod: &Arc<Pod>, status: PodStatus, finish: bool) {
        let uid = spec::uid(pod);
        let mut guard = self.state();
        let state = &mut *guard;
        let entry = state.entries.entry(uid.to_owned()).or_insert_with(|| Entry {
            id: post_increment(&mut state.next_id),
            pod: pod.clone(),
            wanted: pod.status.clone().unwrap_or_default(),
            written: pod.status.clone().unwrap_or_default(),
            written_uid: uid.to_owned(),
            written_version: version(pod),
            finish: false,
            since: None,
            queued: false,
            writing: false,
            again: false,
            retries: Delays::doubling(RETRY_BASE, RETRY_MAX),
            retry_at: None,
        });
        let is_new = finish || version(pod) > entry.written_version;
        let older = std::mem::replace(&mut entry.pod, pod.clone());
        let before = std::mem::replace(&mut entry.wanted, status);
        self.shared.metrics.observe(&before, &entry.wanted);
        entry.finish |= finish;
        if entry.finish {
            report_end(&mut state.reported, uid, &self.shared.events);
        } else {
            let has_changed = before != entry.wanted || version(&older) < version(pod);
            let known = state.reported.insert(uid.to_owned(), pod.clone()).is_some();
            if !known || has_changed {
                report(pod, &entry.wanted, known, &self.shared.events);
            }
        }
        if !is_new && entry.is_written() {
            return;
        }
        entry.since.get_or_insert_with(Instant::now);
        state.enqueue(uid);
        drop(guard);
        self.shared.work.notify_one();
    }

    /// Writes statuses until `stop` is cancelled, then the remaining ones.
    pub async fn run(self, client: kube::Client, desired: Desired, stop: CancellationToken) {
        let mut writes = JoinSet::new();
        loop {
            let retry_at = self.start_writes(&client, &desired, &mut writes);
            if stop.is_cancelled() && writes.is_empty() {
                return;
            }
            tokio::select! {
                Some(done) = writes.join_next(), if !writes.is_empty() => {
                    match done {
                        Ok((job, outcome)) => self.handle_result(job, outcome),
                        Err(error) => warn!(%error, "a status write ended early"),
                    }
                }
                () = self.shared.work.notified() => {}
                () = time::until(retry_at) => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }

    /// Starts pending writes. Returns when the next retry is due.
    fn start_writes(
        &self,
        client: &kube::Client,
        desired: &Desired,
        writes: &mut JoinSet<(Job, Outcome)>,
    ) -> Option<Instant> {
        let mut state = self.state();
        let now = Instant::now();
        state.enqueue_due(now);
        while writes.len() < PARALLEL {
            let Some(job) = state.next_job(desired) else { break };
            let client = client.clone();
            writes.spawn(async move {
                let outcome = panics::contain(write(client, &job)).await.unwrap_or(Outcome::Failed);
                (job, outcome)
            });
        }
        state.entries.values().filter_map(|entry| entry.retry_at).min()
    }

    fn handle_result(&self, job: Job, outcome: Outcome) {
        let mut state = self.state();
        let entry = state.entries.get_mut(&job.uid);
        let Some(entry) = entry.filter(|entry| entry.id == job.entry) else { return };
        entry.writing = false;
        let again = std::mem::take(&mut entry.again);
        match outcome {
            // The object was deleted; a later one is another pod.
            Outcome::Gone if !spec::is_static(&entry.pod) => {
                state.entries.remove(&job.uid);
            }
            // A static pod gets another mirror pod.
            Outcome::Gone | Outcome::Failed => {
                entry.retry_at = Some(time::after(entry.retries.next_delay()));
            }
            Outcome::Taken { version } => {
                entry.retries.reset();
                entry.written = job.wanted;
                entry.written_version = entry.written_version.max(version);
                if entry.is_written()
                    && let Some(since) = entry.since.take()
                {
                    self.shared.metrics.durations.took(since.elapsed());
                }
                if again || entry.finish != job.finish || !entry.is_written() {
                    state.enqueue(&job.uid);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

/// Reports a pod with that status to listeners, if there are any.
fn report(pod: &Arc<Pod>, status: &PodStatus, is_known: bool, events: &PodEvents) {
    if events.are_watched() {
        let pod = Arc::new(with_status(pod, status.clone()));
        events.send(match is_known || pod.metadata.deletion_timestamp.is_some() {
            true => PodEvent::Modified(pod),
            false => PodEvent::Added(pod),
        });
    }
}

/// Reports that a pod has ended, once.
fn report_end(reported: &mut HashMap<String, Arc<Pod>>, uid: &str, events: &PodEvents) {
    if let Some(pod) = reported.remove(uid) {
        events.send(PodEvent::Deleted(pod));
    }
}

/// The pod with that status.
pub(crate) fn with_status(pod: &Pod, status: PodStatus) -> Pod {
    Pod { metadata: pod.metadata.clone(), spec: pod.spec.clone(), status: Some(status) }
}

impl State {
    fn report_end(&mut self, uid: &str, events: &PodEvents) {
        report_end(&mut self.reported, uid, events);
    }

    fn enqueue(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.again |= entry.writing;
        if entry.queued || entry.writing || entry.retry_at.is_some() {
            return; // enqueued after the write or at its retry
        }
        entry.queued = true;
        match entry.finish {
            // Deletion of the object has priority.
            true => self.queue.push_front(uid.to_owned()),
            false => self.queue.push_back(uid.to_owned()),
        }
    }

    /// The next write.
    fn next_job(&mut self, desired: &Desired) -> Option<Job> {
        loop {
            let uid = self.queue.pop_front()?;
            let Some(entry) = self.entries.get_mut(&uid) else { continue };
            entry.queued = false;
            // The status of a static pod is written to its mirror pod.
            let object = match spec::is_static(&entry.pod) {
                false => entry.pod.clone(),
                true => match desired.mirror(&entry.pod) {
                    Some(mirror) => mirror,
                    None => continue, // enqueued again when it exists
                },
            };
            entry.update_written(&object);
            if spec::is_static(&entry.pod) {
                keep_times(&mut entry.wanted, &entry.written);
            }
            if entry.is_written() && !entry.finish {
                entry.since = None; // written by another client
                continue;
            }
            entry.writing = true;
            return Some(Job {
                uid,
                entry: entry.id,
                pod: entry.pod.clone(),
                wanted: entry.wanted.clone(),
                written: entry.written.clone(),
                object_uid: entry.written_uid.clone(),
                finish: entry.finish,
            });
        }
    }

    fn enqueue_due(&mut self, now: Instant) {
        let due = self.entries.iter_mut().filter_map(|(uid, entry)| {
            entry.retry_at.take_if(|at| *at <= now).map(|_| uid.clone())
        });
        for uid in due.collect::<Vec<_>>() {
            self.enqueue(&uid);
        }
    }
}

impl Entry {
    fn is_written(&self) -> bool {
        self.written == self.wanted
    }

    /// Others write, too: use the status of the newest version of the object.
    fn update_written(&mut self, object: &Pod) {
        if self.written_uid != spec::uid(object) || self.written_version < version(object) {
            self.written = object.status.clone().unwrap_or_default();
            self.written_uid = spec::uid(object).to_owned();
            self.written_version = version(object);
        }
    }
}

/// Takes over the times of what is as it was reported. A static pod has no status of its own: after a restart of the
/// daemon it has one anew, as if its containers had just become ready, while its mirror pod knows since when they are.
fn keep_times(status: &mut PodStatus, reported: &PodStatus) {
    if reported.start_time.is_some() {
        status.start_time.clone_from(&reported.start_time);
    }
    for condition in status.conditions.iter_mut().flatten() {
        let mut before = reported.conditions.iter().flatten();
        let before = before.find(|c| c.type_ == condition.type_ && c.status == condition.status);
        if let Some(before) = before {
            condition.last_transition_time.clone_from(&before.last_transition_time);
        }
    }
}

fn post_increment(next: &mut u64) -> u64 {
    std::mem::replace(next, next.wrapping_add(1))
}

/// Resource versions of one object are ordered numbers.
fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
