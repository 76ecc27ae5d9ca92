//! The one writer of pod status to the apiserver.
//!
//! Workers tell the latest status of their pod and go on. Statuses told while one is being written
//! are coalesced into the newest; a write that fails is tried again until it is acknowledged or the
//! pod is gone. A pod that has come to its end is deleted only after its last status was taken.

mod patch;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use longshore_pod::spec;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::desired::Desired;

/// Writes under way at once.
const PARALLEL: usize = 8;
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// A write that takes longer is given up and tried again.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// The latest status of one pod.
#[derive(Debug)]
struct Entry {
    pod: Arc<Pod>,
    wanted: PodStatus,
    /// What the apiserver has taken, as far as known, and of which object.
    written: PodStatus,
    written_uid: String,
    /// The pod's end is complete: delete its object once the status is taken.
    finish: bool,
    queued: bool,
    writing: bool,
    failures: u32,
}

/// Handle by which workers tell. Cheap to clone. Nothing is written until [`run`](Self::run) runs.
#[derive(Clone, Debug, Default)]
pub struct StatusWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    queue: VecDeque<String>,
    retries: Vec<(Instant, String)>,
}

/// What one write is to do.
struct Job {
    uid: String,
    pod: Arc<Pod>,
    wanted: PodStatus,
    written: PodStatus,
    object_uid: String,
    finish: bool,
}

enum Outcome {
    Taken,
    Gone,
    Failed,
}

impl StatusWriter {
    /// The pod's status is now this one.
    pub fn tell(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.put(pod, status, false);
    }

    /// The pod's last status is this one; its object may go once it is taken.
    pub fn finish(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.put(pod, status, true);
    }

    /// The status that was told last.
    pub fn latest(&self, uid: &str) -> Option<PodStatus> {
        self.state().entries.get(uid).map(|entry| entry.wanted.clone())
    }

    /// Nobody cares for the pod any more.
    pub fn forget(&self, uid: &str) {
        self.state().entries.remove(uid);
    }

    /// Something that a write depends on has changed, such as the mirror of a static pod.
    pub fn poke(&self, uid: &str) {
        let mut state = self.state();
        state.enqueue(uid);
        drop(state);
        self.shared.work.notify_one();
    }

    fn put(&self, pod: &Arc<Pod>, status: PodStatus, finish: bool) {
        let uid = spec::uid(pod);
        let mut state = self.state();
        let entry = state.entries.entry(uid.to_owned()).or_insert_with(|| Entry {
            pod: pod.clone(),
            wanted: status.clone(),
            written: pod.status.clone().unwrap_or_default(),
            written_uid: uid.to_owned(),
            finish: false,
            queued: false,
            writing: false,
            failures: 0,
        });
        entry.pod = pod.clone();
        entry.wanted = status;
        entry.finish |= finish;
        if !finish && entry.is_written() {
            return;
        }
        state.enqueue(uid);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Write until told to stop, and then what is left for as long as the caller waits.
    pub async fn run(self, client: kube::Client, desired: Desired, stop: CancellationToken) {
        let mut writes = JoinSet::new();
        loop {
            let retry_at = self.start_writes(&client, &desired, &mut writes);
            if stop.is_cancelled() && writes.is_empty() {
                return;
            }
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(done) = writes.join_next(), if !writes.is_empty() => {
                    match done {
                        Ok((job, outcome)) => self.wrote(job, outcome),
                        Err(error) => warn!(%error, "a status write ended early"),
                    }
                }
                () = self.shared.work.notified() => {}
                () = retry => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }

    /// Start as many writes as may run. Tells when the next retry is due.
    fn start_writes(
        &self,
        client: &kube::Client,
        desired: &Desired,
        writes: &mut JoinSet<(Job, Outcome)>,
    ) -> Option<Instant> {
        let mut state = self.state();
        let now = Instant::now();
        let retries = std::mem::take(&mut state.retries);
        for (at, uid) in retries {
            match at <= now {
                true => state.enqueue(&uid),
                false => state.retries.push((at, uid)),
            }
        }
        while writes.len() < PARALLEL {
            let Some(uid) = state.queue.pop_front() else { break };
            let Some(entry) = state.entries.get_mut(&uid) else { continue };
            entry.queued = false;
            if entry.writing {
                continue; // looked at again when that write is done
            }
            // The status of a static pod goes to its mirror.
            let object_uid = match spec::is_static(&entry.pod) {
                false => uid.clone(),
                true => match desired.mirror_uid(&entry.pod) {
                    Some(mirror) => mirror,
                    None => continue, // poked when it comes
                },
            };
            if entry.written_uid != object_uid {
                entry.written = PodStatus::default();
                entry.written_uid.clone_from(&object_uid);
            }
            if entry.is_written() && !entry.finish {
                continue;
            }
            entry.writing = true;
            let job = Job {
                uid,
                pod: entry.pod.clone(),
                wanted: entry.wanted.clone(),
                written: entry.written.clone(),
                object_uid,
                finish: entry.finish,
            };
            let client = client.clone();
            writes.spawn(async move {
                let outcome = write(client, &job).await;
                (job, outcome)
            });
        }
        state.retries.iter().map(|(at, _)| *at).min()
    }

    fn wrote(&self, job: Job, outcome: Outcome) {
        let mut state = self.state();
        let State { entries, retries, .. } = &mut *state;
        let Some(entry) = entries.get_mut(&job.uid) else { return };
        entry.writing = false;
        match outcome {
            Outcome::Gone => {
                // The object is not there (any more): a later one is another pod.
                entries.remove(&job.uid);
                return;
            }
            Outcome::Failed => {
                let wait = RETRY_BASE.saturating_mul(1 << entry.failures.min(8)).min(RETRY_MAX);
                entry.failures += 1;
                retries.push((Instant::now() + wait, job.uid));
                return;
            }
            Outcome::Taken => {
                entry.failures = 0;
                entry.written = job.wanted;
            }
        }
        if entry.finish != job.finish || !entry.is_written() {
            state.enqueue(&job.uid);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enqueue(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if entry.queued || entry.writing {
            return; // a write under way looks for news when it is done
        }
        entry.queued = true;
        match entry.finish {
            // Others wait for an end: a name, a claim, a drain.
            true => self.queue.push_front(uid.to_owned()),
            false => self.queue.push_back(uid.to_owned()),
        }
    }
}

impl Entry {
    fn is_written(&self) -> bool {
        self.written == self.wanted
    }
}

async fn write(client: kube::Client, job: &Job) -> Outcome {
    match tokio::time::timeout(WRITE_DEADLINE, write_once(client, job)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            warn!(pod = spec::name(&job.pod), uid = job.uid, %error, "status not written, trying again");
            Outcome::Failed
        }
        Err(_) => {
            warn!(
                pod = spec::name(&job.pod),
                uid = job.uid,
                "status not written in time, trying again"
            );
            Outcome::Failed
        }
    }
}

async fn write_once(client: kube::Client, job: &Job) -> Result<Outcome, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, spec::namespace(&job.pod));
    let name = spec::name(&job.pod);
    if let Some(body) = patch::between(&job.object_uid, &job.written, &job.wanted) {
        match pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(body)).await {
            Ok(_) => debug!(pod = name, uid = job.uid, phase = job.wanted.phase, "status written"),
            Err(error) => return gone_or(&pods, job, error).await,
        }
    }
    if job.finish && !spec::is_static(&job.pod) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(job.object_uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match pods.delete(name, &params).await {
            Ok(_) => debug!(pod = name, uid = job.uid, "pod deleted"),
            Err(error) => return gone_or(&pods, job, error).await,
        }
    }
    Ok(Outcome::Taken)
}

/// A refusal because the object is another one by now, or none, is as good as written: there is
/// nobody left to tell.
async fn gone_or(pods: &Api<Pod>, job: &Job, error: kube::Error) -> Result<Outcome, kube::Error> {
    let refused =
        matches!(&error, kube::Error::Api(status) if [404, 409, 422].contains(&status.code));
    if !refused {
        return Err(error);
    }
    let there = pods.get_opt(spec::name(&job.pod)).await?;
    match there.is_some_and(|pod| spec::uid(&pod) == job.object_uid) {
        true => Err(error),
        false => Ok(Outcome::Gone),
    }
}
