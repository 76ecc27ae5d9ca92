//! Container garbage collection: every minute, and under disk pressure.

mod logs;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, PodStatus};
use longshore_base::clock;
use longshore_cri::Runtime;
use longshore_pod::status::is_final;
use longshore_pod::{observed, spec};
use parking_lot::{Mutex, MutexGuard};
use tracing::{debug, info, warn};

pub(super) use plan::Policy;

use super::{Error, blocking, disk};
use crate::status::StatusWriter;
use longshore_client::events::{EventType, Recorder};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_runtime as runtime;
use longshore_telemetry::{Kind, within};
use plan::{PodState, Removal, Subject, plan};

/// Collection interval.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of parallel removals.
const PARALLEL: usize = 8;
/// Grace period of a container in an unknown state.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of errors that are reported.
const MAX_REPORTED: usize = 10;
/// Reasons of pods that were terminated to reclaim resources.
const EVICTED: [&str; 2] = ["Evicted", "Preempting"];

/// Inputs of the collector.
pub(super) struct Parts {
    /// The runtime.
    pub(super) cri: Runtime,
    /// Observed pods.
    pub(super) observer: Observer,
    /// Desired pods.
    pub(super) desired: Desired,
    /// Reported pod statuses.
    pub(super) status: StatusWriter,
    /// Events.
    pub(super) recorder: Recorder,
    /// Reference of the node for events.
    pub(super) node: ObjectReference,
    /// Retention policy.
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
    /// Ids that are being removed: runtimes refuse concurrent removals.
    removing: Mutex<HashSet<String>>,
}

/// Purpose of a collection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Periodic collection.
    Policy,
    /// Disk pressure: age and logs of terminated pods are no reason to keep containers.
    Room,
}

impl Containers {
    /// A collector that works with these parts, once [`run`](Self::run) or
    /// [`delete_dead_containers`](Self::delete_dead_containers) is called.
    pub(super) fn new(parts: Parts) -> Self {
        Self { shared: Arc::new(Shared { parts, removing: Mutex::default() }) }
    }

    /// Collects periodically, once pod sources and runtime are synced. Never ends.
    pub async fn run(self) {
        let parts = &self.shared.parts;
        let (mut synced, mut relisted) = (parts.desired.synced(), parts.observer.relisted());
        // The daemon stops.
        if synced.wait_for(|synced| *synced).await.is_err()
            || relisted.wait_for(Option::is_some).await.is_err()
        {
            return;
        }
        loop {
            let span = parts.cri.tracer().span("Containers/GarbageCollect", Kind::Internal);
            let collected = within(span.context(), self.collect(Purpose::Policy)).await;
            drop(span);
            if let Err(error) = collected {
                warn!(%error, "container garbage collection failed");
                let node = parts.node.clone();
                let text = error.to_string();
                parts.recorder.event(node, EventType::Warning, "ContainerGCFailed", &text);
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Removes the containers of terminated pods, and those of others beyond the policy, whatever
    /// their age. Returns the bytes that were freed on the file systems. May take long.
    ///
    /// # Errors
    /// [`Error::Left`] if some removals failed.
    pub async fn delete_dead_containers(&self) -> Result<u64, Error> {
        info!("attempting to delete unused containers");
        let Parts { cri, root_dir, pod_logs_dir, .. } = &self.shared.parts;
        let mut paths = vec![root_dir.clone(), pod_logs_dir.clone()];
        paths.extend(disk::image_filesystem(cri).await.ok());
        let before = disk::available(paths.clone()).await;
        self.collect(Purpose::Room).await?;
        Ok(disk::available(paths).await.saturating_sub(before))
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

    /// Removes containers beyond the policy of one pod, after a container was started. Errors are
    /// reported by the next periodic collection.
    pub async fn tidy(&self, uid: &str) {
        let parts = &self.shared.parts;
        let subject = parts.observer.pod(uid).and_then(|pod| self.subject(pod, Purpose::Policy));
        self.remove_all(subject.as_slice(), &Policy { total: None, ..parts.policy }).await;
    }

    /// Removes containers and sandboxes beyond the policy; returns errors.
    async fn remove_all(&self, pods: &[Subject], policy: &Policy) -> Vec<String> {
        let (runs, sandboxes): (Vec<_>, Vec<_>) = plan(pods, policy, clock::now())
            .into_iter()
            .partition(|removal| matches!(removal, Removal::Run(..)));
        if !runs.is_empty() || !sandboxes.is_empty() {
            debug!(
                containers = runs.len(),
                sandboxes = sandboxes.len(),
                "removing dead containers and sandboxes"
            );
        }
        let failed = Failures::default();
        for_each(runs, |removal| self.remove(removal, &failed)).await;
        for_each(sandboxes, |removal| self.remove(removal, &failed)).await;
        failed.errors()
    }

    /// A desired pod; `None` for others. Containers of others are not touched; those of orphaned pods are
    /// removed by their workers.
    fn subject(&self, pod: Arc<observed::ObservedPod>, purpose: Purpose) -> Option<Subject> {
        let state = match pod_state(&self.shared.parts, &pod.uid)? {
            state if pod.is_active() && state != PodState::Active => PodState::Active,
            PodState::Terminated if purpose == Purpose::Room => PodState::Removable,
            state => state,
        };
        Some(Subject { pod, state })
    }

    /// Removes one object. The observed state is updated by the next relist.
    async fn remove(&self, removal: Removal<'_>, failed: &Failures) {
        let cri = &self.shared.parts.cri;
        let (what, id, sandbox) = match removal {
            Removal::Run(_, run) => ("container", &run.id, &run.sandbox_id),
            Removal::Sandbox(_, sandbox) => ("sandbox", &sandbox.id, &sandbox.id),
        };
        let Some(_guard) = RemovalGuard::new(&self.shared.removing, id) else {
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
            let is_wanted = |uid: &str| match pod_state(&shared.parts, uid) {
                // Its worker cleans up while there is something of the pod.
                None => observer.pod(uid).is_some_and(|pod| !pod.is_gone()),
                Some(state) => {
                    state != PodState::Removable || observer.pod(uid).is_some_and(|p| !p.is_gone())
                }
            };
            let removed = logs::remove_dirs(pod_logs_dir, is_wanted);
            // During log rotation, the file does not exist for a moment.
            let is_alive = |id: &str| {
                observer.container(id).is_some_and(|container| container.finished_at().is_none())
            };
            logs::remove_links(logs::LINKS.as_ref(), pod_logs_dir, is_alive);
            removed
        });
        removed.await.unwrap_or(Ok(()))
    }
}

/// `None` for a pod that is not desired.
fn pod_state(parts: &Parts, uid: &str) -> Option<PodState> {
    let pod = parts.desired.pod(uid)?;
    let status = parts.status.latest(spec::uid(&pod)).or_else(|| pod.status.clone());
    let PodStatus { phase, reason, .. } = status.unwrap_or_default();
    let was_evicted = reason.is_some_and(|reason| EVICTED.contains(&reason.as_str()));
    Some(match () {
        () if !phase.is_some_and(|phase| is_final(&phase)) => PodState::Active,
        () if was_evicted || pod.metadata.deletion_timestamp.is_some() => PodState::Removable,
        () => PodState::Terminated,
    })
}

async fn for_each<'a, F: Future<Output = ()>>(
    removals: Vec<Removal<'a>>,
    remove: impl Fn(Removal<'a>) -> F,
) {
    futures::stream::iter(removals).for_each_concurrent(PARALLEL, remove).await;
}

/// Exclusive right to remove an object, until dropped.
struct RemovalGuard<'a> {
    removing: &'a Mutex<HashSet<String>>,
    id: &'a str,
}

impl<'a> RemovalGuard<'a> {
    /// `None` if it is being removed already.
    fn new(removing: &'a Mutex<HashSet<String>>, id: &'a str) -> Option<Self> {
        let mut ids = removing.lock();
        ids.insert(id.to_owned()).then(|| Self { removing, id })
    }
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.removing.lock().remove(self.id);
    }
}

/// Failed removals of a collection.
#[derive(Default)]
struct Failures(Mutex<Failed>);

#[derive(Default)]
struct Failed {
    /// The first errors.
    errors: Vec<String>,
    others: usize,
    /// Sandboxes with remaining containers.
    sandboxes: HashSet<String>,
}

impl Failures {
    fn note(&self, sandbox: &str, error: String) {
        warn!(error, "cannot remove garbage");
        self.keep(sandbox);
        let mut failed = self.lock();
        match failed.errors.len() < MAX_REPORTED {
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
        let Failed { mut errors, others, .. } = self.0.into_inner();
        errors.extend((others > 0).then(|| format!("and {others} more")));
        errors
    }

    fn lock(&self) -> MutexGuard<'_, Failed> {
        self.0.lock()
    }
}
