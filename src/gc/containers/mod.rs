//! The executor of container garbage collection: each minute, and when eviction asks for it.

mod logs;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, PodStatus};
use k8s_openapi::jiff::Timestamp;
use longshore_cri::Runtime;
use longshore_pod::status::is_final;
use longshore_pod::{observed, spec};
use tracing::{debug, info, warn};

pub(super) use plan::Policy;

use super::{Error, blocking, disk};
use crate::status::StatusWriter;
use longshore_client::events::{EventType, Recorder};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_runtime as runtime;
use plan::{Fate, Removal, Subject, plan};

/// How often dead containers are collected.
const PERIOD: Duration = Duration::from_secs(60);
/// Removals under way at once, so that one that hangs holds up no other, and 10,000 are no burst.
const PARALLEL: usize = 8;
/// What a container in an unknown state gets to stop.
const GRACE: Duration = Duration::from_secs(2);
/// Errors that one round tells of.
const TOLD: usize = 10;
/// Reasons of pods that the node ended to get back what they held.
const EVICTED: [&str; 2] = ["Evicted", "Preempting"];

/// What the collector works with.
pub(super) struct Parts {
    /// The runtime.
    pub(super) cri: Runtime,
    /// What runs.
    pub(super) observer: Observer,
    /// What should run.
    pub(super) desired: Desired,
    /// What was told of pods.
    pub(super) status: StatusWriter,
    /// Events.
    pub(super) recorder: Recorder,
    /// The node, as events name it.
    pub(super) node: ObjectReference,
    /// How many dead containers are kept.
    pub(super) policy: Policy,
    /// The daemon's directory.
    pub(super) root_dir: PathBuf,
    /// Where the logs of pods are.
    pub(super) pod_logs_dir: PathBuf,
}

/// Collects dead containers, sandboxes and logs. Cheap to clone.
#[derive(Clone)]
pub struct Containers {
    shared: Arc<Shared>,
}

struct Shared {
    parts: Parts,
    /// What is being removed, by id: runtimes refuse to remove a thing twice at once.
    claimed: Mutex<HashSet<String>>,
}

/// What a round is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The policy.
    Policy,
    /// Room on a full disk: neither age nor the logs of what has ended are a reason to keep it.
    Room,
}

impl Containers {
    /// A collector that works with these parts, once [`run`](Self::run) or
    /// [`delete_dead_containers`](Self::delete_dead_containers) is called.
    pub(super) fn new(parts: Parts) -> Self {
        Self { shared: Arc::new(Shared { parts, claimed: Mutex::default() }) }
    }

    /// Collect each minute, as soon as it is known what runs and what should. Never ends.
    pub async fn run(self) {
        let parts = &self.shared.parts;
        let (mut synced, mut relisted) = (parts.desired.synced(), parts.observer.relisted());
        // Nobody is left to collect for once either of them is gone.
        if synced.wait_for(|synced| *synced).await.is_err()
            || relisted.wait_for(Option::is_some).await.is_err()
        {
            return;
        }
        loop {
            if let Err(error) = self.collect(Purpose::Policy).await {
                warn!(%error, "container garbage collection failed");
                let node = parts.node.clone();
                let text = error.to_string();
                parts.recorder.event(node, EventType::Warning, "ContainerGCFailed", &text);
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Remove the containers of pods that have ended, and what the policy does not keep of others,
    /// whatever their age. Gives the bytes that came free, as the file systems show it; takes as
    /// long as the runtime does, so it is not for a room's own loop.
    ///
    /// # Errors
    /// [`Error::Left`] if some would not go; the others are gone.
    pub async fn delete_dead_containers(&self) -> Result<u64, Error> {
        info!("attempting to delete unused containers");
        let Parts { cri, root_dir, pod_logs_dir, .. } = &self.shared.parts;
        let mut places = vec![root_dir.clone(), pod_logs_dir.clone()];
        places.extend(disk::image_filesystem(cri).await.ok());
        let before = disk::available(places.clone()).await;
        self.collect(Purpose::Room).await?;
        Ok(disk::available(places).await.saturating_sub(before))
    }

    async fn collect(&self, purpose: Purpose) -> Result<(), Error> {
        let parts = &self.shared.parts;
        if !*parts.desired.synced().borrow() || parts.observer.relisted().borrow().is_none() {
            return Err(Error::Early);
        }
        let mut policy = parts.policy;
        if purpose == Purpose::Room {
            policy.min_age = Duration::ZERO;
        }
        let pods = parts.observer.all().into_iter();
        let subjects: Vec<Subject> = pods.filter_map(|pod| self.subject(pod, purpose)).collect();
        let mut errors = self.remove_all(&subjects, &policy).await;
        errors.extend(self.remove_logs().await.err().map(|error| error.to_string()));
        if errors.is_empty() { Ok(()) } else { Err(Error::Left(errors)) }
    }

    /// Remove what the policy does not keep of one pod, as when it has got a new run: its worker
    /// does not wait a minute for that. What stays is told by the next round.
    pub async fn tidy(&self, uid: &str) {
        let parts = &self.shared.parts;
        let subject = parts.observer.pod(uid).and_then(|pod| self.subject(pod, Purpose::Policy));
        self.remove_all(subject.as_slice(), &Policy { total: None, ..parts.policy }).await;
    }

    /// Remove what the policy does not keep of these pods; gives what went wrong.
    async fn remove_all(&self, pods: &[Subject], policy: &Policy) -> Vec<String> {
        let (runs, sandboxes): (Vec<_>, Vec<_>) = plan(pods, policy, Timestamp::now())
            .into_iter()
            .partition(|removal| matches!(removal, Removal::Run(..)));
        if !runs.is_empty() || !sandboxes.is_empty() {
            debug!(containers = runs.len(), sandboxes = sandboxes.len(), "dead, and not kept");
        }
        let failed = Failures::default();
        for_each(runs, |removal| self.remove(removal, &failed)).await;
        for_each(sandboxes, |removal| self.remove(removal, &failed)).await;
        failed.errors()
    }

    /// A pod that this node should run; `None` for others. What others made is not touched; what is
    /// left of pods that are gone is the pool's to remove.
    fn subject(&self, pod: Arc<observed::ObservedPod>, purpose: Purpose) -> Option<Subject> {
        let fate = match fate(&self.shared.parts, &pod.uid)? {
            fate if pod.is_active() && fate != Fate::Lives => Fate::Lives,
            Fate::Ended if purpose == Purpose::Room => Fate::Spent,
            fate => fate,
        };
        Some(Subject { pod, fate })
    }

    /// The next relist tells the observer, of all of them together.
    async fn remove(&self, removal: Removal<'_>, failed: &Failures) {
        let cri = &self.shared.parts.cri;
        let (what, id, sandbox) = match removal {
            Removal::Run(_, run) => ("container", &run.id, &run.sandbox_id),
            Removal::Sandbox(_, sandbox) => ("sandbox", &sandbox.id, &sandbox.id),
        };
        let Some(_claim) = Claim::new(&self.shared.claimed, id) else {
            return failed.keep(sandbox);
        };
        let removed = async {
            match removal {
                Removal::Run(pod, run) => {
                    if run.may_run() {
                        runtime::stop_run(cri, &run.id, GRACE).await?;
                    }
                    debug!(pod = pod.name, container = run.name, id = run.id, "removing container");
                    runtime::remove_run(cri, pod, run).await
                }
                Removal::Sandbox(_, sandbox) if failed.keeps(&sandbox.id) => Ok(()),
                Removal::Sandbox(pod, sandbox) => {
                    debug!(pod = pod.name, id = sandbox.id, "removing sandbox");
                    runtime::discard_sandbox(cri, &sandbox.id).await
                }
            }
        };
        let removed: Result<(), runtime::Error> = removed.await;
        if let Err(error) = removed {
            failed.note(sandbox, format!("failed to remove {what} {id:?}: {error}"));
        }
    }

    async fn remove_logs(&self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let removed = blocking(move || {
            let Parts { observer, pod_logs_dir, .. } = &shared.parts;
            let is_wanted = |uid: &str| match fate(&shared.parts, uid) {
                // Its worker clears up behind itself, as long as there is something of the pod.
                None => observer.pod(uid).is_some_and(|pod| !pod.is_gone()),
                Some(fate) => {
                    fate != Fate::Spent || observer.pod(uid).is_some_and(|p| !p.is_gone())
                }
            };
            let removed = logs::remove_dirs(pod_logs_dir, is_wanted);
            // While a log is rotated, there is none for a moment.
            let is_alive = |id: &str| {
                observer.container(id).is_some_and(|container| container.finished_at().is_none())
            };
            logs::remove_links(logs::LINKS.as_ref(), pod_logs_dir, is_alive);
            removed
        });
        removed.await.unwrap_or(Ok(()))
    }
}

/// `None` for one that should not run at all.
fn fate(parts: &Parts, uid: &str) -> Option<Fate> {
    let pod = parts.desired.pod(uid)?;
    let told = parts.status.latest(spec::uid(&pod)).or_else(|| pod.status.clone());
    let PodStatus { phase, reason, .. } = told.unwrap_or_default();
    let was_evicted = reason.is_some_and(|reason| EVICTED.contains(&reason.as_str()));
    Some(match () {
        () if !phase.is_some_and(|phase| is_final(&phase)) => Fate::Lives,
        () if was_evicted || pod.metadata.deletion_timestamp.is_some() => Fate::Spent,
        () => Fate::Ended,
    })
}

async fn for_each<'a, F: Future<Output = ()>>(
    removals: Vec<Removal<'a>>,
    remove: impl Fn(Removal<'a>) -> F,
) {
    futures::stream::iter(removals).for_each_concurrent(PARALLEL, remove).await;
}

/// The right to remove a thing, until it is dropped.
struct Claim<'a> {
    claimed: &'a Mutex<HashSet<String>>,
    id: &'a str,
}

impl<'a> Claim<'a> {
    /// `None` if somebody else has it.
    fn new(claimed: &'a Mutex<HashSet<String>>, id: &'a str) -> Option<Self> {
        let mut ids = claimed.lock().unwrap_or_else(PoisonError::into_inner);
        ids.insert(id.to_owned()).then(|| Self { claimed, id })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}

/// What did not go in a round.
#[derive(Default)]
struct Failures(Mutex<Failed>);

#[derive(Default)]
struct Failed {
    /// The first few.
    errors: Vec<String>,
    others: usize,
    /// Sandboxes of which something is left.
    sandboxes: HashSet<String>,
}

impl Failures {
    fn note(&self, sandbox: &str, error: String) {
        warn!(error, "garbage is not collected");
        self.keep(sandbox);
        let mut failed = self.lock();
        match failed.errors.len() < TOLD {
            true => failed.errors.push(error),
            false => failed.others += 1,
        }
    }

    fn keep(&self, sandbox: &str) {
        self.lock().sandboxes.insert(sandbox.to_owned());
    }

    fn keeps(&self, sandbox: &str) -> bool {
        self.lock().sandboxes.contains(sandbox)
    }

    fn errors(self) -> Vec<String> {
        let Failed { mut errors, others, .. } =
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        errors.extend((others > 0).then(|| format!("and {others} more")));
        errors
    }

    fn lock(&self) -> MutexGuard<'_, Failed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
