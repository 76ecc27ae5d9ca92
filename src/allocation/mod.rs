//! Allocated and actuated resources of pods, in checkpoints of upstream's format, so that a node can be
//! switched between the two. Resizes are decided here: workers read the allocated pod, and are notified
//! of changes.
//!
//! Current limitations: the resize of a critical pod preempts no others.

mod checkpoint;
mod metrics;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use longshore_metrics::Registry;
use longshore_pod::resize::{self, Pending, PodResources, Rank, Rules};
use longshore_pod::spec::{self, Gates};
use longshore_pod::{Timestamp, status};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admission::{Admission, Freed};

use checkpoint::Checkpoint;
pub use checkpoint::Error;
use longshore_client::events::PodEventRecorder;
use longshore_podstate::desired::Desired;
pub(crate) use metrics::{InProgress, Metrics};

/// Checkpoint files in the root directory, as upstream's.
const ALLOCATED: &str = "allocated_pods_state";
const ACTUATED: &str = "actuated_pods_state";
/// Interval of retries of deferred resizes.
const RETRY: Duration = Duration::from_secs(180);

/// The decision about a pod's resize.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The pending resize.
    pub pending: Option<Pending>,
    /// Number of accepted resizes.
    pub grants: u64,
    /// Generation of the last accepted resize.
    pub generation: Option<i64>,
}

/// Triggers of retries.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    Time,
    Freed(Freed),
    Added,
    Changed,
}

impl Trigger {
    fn label(self) -> &'static str {
        match self {
            Self::Time => "periodic_retry",
            Self::Freed(Freed::ByEnd) => "pod_terminated",
            Self::Freed(Freed::ByResize) => "pod_resized",
            Self::Added => "pods_added",
            Self::Changed => "pod_updated",
        }
    }
}

/// Inputs of decisions.
pub struct Parts {
    /// The desired pods.
    pub desired: Desired,
    /// Events of pods.
    pub pod_events: PodEventRecorder,
    /// Pod admission.
    pub admission: Admission,
    /// Properties of the node that forbid a resize.
    pub rules: Rules,
    /// The feature gates in force.
    pub gates: Gates,
}

/// Handle to the allocated resources. Cheap to clone.
#[derive(Clone)]
pub struct Allocation {
    shared: Arc<Shared>,
}

struct Shared {
    parts: Parts,
    metrics: Metrics,
    /// Allocated resources.
    allocated: Checkpoint,
    /// Actuated resources.
    actuated: Checkpoint,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    decisions: HashMap<String, watch::Sender<Decision>>,
    /// Pods with a deferred resize, by UID, and since when.
    queue: Vec<(String, Timestamp)>,
}

impl Allocation {
    /// Restores the checkpoints. Registers the metrics of resizes with `registry`.
    pub fn open(root_dir: &Path, parts: Parts, registry: &Registry) -> Result<Self, Error> {
        let shared = Shared {
            parts,
            metrics: Metrics::new(registry),
            allocated: Checkpoint::open(root_dir.join(ALLOCATED))?,
            actuated: Checkpoint::open(root_dir.join(ACTUATED))?,
            state: Mutex::default(),
        };
        let shared = Arc::new(shared);
        metrics::register(registry, Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Metrics of resizes.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Writes the checkpoints and retries deferred resizes. Never ends.
    pub async fn run(self) {
        let Shared { allocated, actuated, parts, .. } = &*self.shared;
        let decide = async {
            if parts.desired.synced().wait_for(|synced| *synced).await.is_err() {
                return;
            }
            // Pods that were removed while the daemon was down.
            for checkpoint in [allocated, actuated] {
                checkpoint.retain(|uid| parts.desired.has(uid));
            }
            let mut released = parts.admission.released();
            let mut trigger = Trigger::Time;
            loop {
                self.retry(&mut self.state(), trigger);
                trigger = match timeout(RETRY, released.changed()).await {
                    Ok(_) => Trigger::Freed(*released.borrow_and_update()),
                    Err(_) => Trigger::Time,
                };
            }
        };
        // None of them returns.
        tokio::select! {
            () = allocated.keep() => {}
            () = actuated.keep() => {}
            () = decide => {}
        }
    }

    /// Writes pending changes of the checkpoints.
    pub async fn flush(&self) {
        self.shared.allocated.write().await;
        self.shared.actuated.write().await;
    }

    /// Decisions about the pod with that UID.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Decision> {
        self.state().decisions.entry(uid.to_owned()).or_default().subscribe()
    }

    /// The pod with its allocated resources.
    pub fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let given = self.shared.allocated.get(spec::uid(pod));
        let allocated = given.and_then(|given| resize::allocated(pod, &given, self.gates()));
        allocated.map_or_else(|| pod.clone(), Arc::new)
    }

    /// The actuated resources of the pod.
    pub fn actuated(&self, uid: &str) -> Arc<PodResources> {
        self.shared.actuated.get(uid).unwrap_or_default()
    }

    /// Allocates the resources of an admitted pod, unless some are allocated already.
    pub fn allocate(&self, pod: &Arc<Pod>) {
        let (Some(pod_spec), uid) = (&pod.spec, spec::uid(pod)) else { return };
        let Shared { allocated, actuated, .. } = &*self.shared;
        if allocated.get(uid).is_none() {
            allocated.set(uid, PodResources::requested(pod_spec, self.gates()));
        }
        let allocated = self.allocated(pod);
        if let Some(given) = &allocated.spec {
            // Containers without actuated resources run with the allocated ones.
            let mut all = PodResources::in_force(given, self.gates());
            let known = self.actuated(uid);
            all.containers.extend(known.containers.clone());
            all.pod = known.pod.clone().or(all.pod);
            if all != *known {
                actuated.set(uid, all);
            }
        }
        let mut state = self.state();
        if !Arc::ptr_eq(&allocated, pod) {
            state.decision(uid).send_modify(|decision| decision.pending = pending_of(pod));
        }
        self.update_queue(&mut state, pod, Trigger::Added);
    }

    /// Handles an update of an allocated pod.
    pub fn review(&self, before: &Pod, pod: &Arc<Pod>) {
        if self.shared.allocated.get(spec::uid(pod)).is_some() {
            self.shared.metrics.requested(before, pod);
            self.update_queue(&mut self.state(), pod, Trigger::Changed);
        }
        let parts = &self.shared.parts;
        if let Some(why) = parts.admission.refusal_of_update(before, pod) {
            parts.pod_events.pod(pod, true, "FailedNodeDeclaredFeaturesCheck", &why);
        }
    }

    fn update_queue(&self, state: &mut State, pod: &Arc<Pod>, trigger: Trigger) {
        let uid = spec::uid(pod);
        state.queue.retain(|(waiting, _)| waiting != uid);
        if Arc::ptr_eq(&self.allocated(pod), pod) {
            // A pending resize was reverted.
            state.decision(uid).send_if_modified(|decision| decision.pending.take().is_some());
            return;
        }
        let since = pending_since(pod).unwrap_or_else(Timestamp::now);
        state.queue.push((uid.to_owned(), since));
        self.retry(state, trigger);
    }

    /// A container is created with these resources. A change is in the checkpoint before this returns,
    /// so that it is not taken for a pending resize after a crash.
    pub async fn container_made(&self, pod: &Pod, container: &Container) {
        let Some(pod_spec) = &pod.spec else { return };
        let resources = resize::effective(pod_spec, container, self.gates());
        let checkpoint = &self.shared.actuated;
        if self.note_container(pod, &container.name, resources) {
            checkpoint.written().await;
        }
    }

    /// A running container was resized.
    pub fn container_resized(&self, pod: &Pod, name: &str) {
        let Some(pod_spec) = &pod.spec else { return };
        let container = spec::containers(pod_spec).find(|(_, container)| container.name == name);
        let Some((_, container)) = container else { return };
        let resources = resize::effective(pod_spec, container, self.gates());
        self.note_container(pod, name, resources);
    }

    /// Returns whether other resources were known.
    fn note_container(&self, pod: &Pod, name: &str, resources: ResourceRequirements) -> bool {
        let uid = spec::uid(pod);
        let mut all = (*self.actuated(uid)).clone();
        let before = all.containers.insert(name.to_owned(), resources);
        let changed = before != all.containers.get(name).cloned();
        if changed && self.shared.allocated.get(uid).is_some() {
            self.shared.actuated.set(uid, all);
        }
        changed && before.is_some()
    }

    /// The pod-level resources were actuated.
    pub fn pod_resized(&self, pod: &Pod) {
        let uid = spec::uid(pod);
        let own = pod.spec.as_ref().and_then(|spec| spec.resources.clone());
        let known = self.actuated(uid);
        let own = own.filter(|_| self.gates().resize_pods);
        if known.pod != own && self.shared.allocated.get(uid).is_some() {
            let all = PodResources { pod: own, ..(*known).clone() };
            self.shared.actuated.set(uid, all);
        }
    }

    /// Releases the resources of the pod.
    pub fn release(&self, uid: &str) {
        let mut state = self.state();
        state.decisions.remove(uid);
        state.queue.retain(|(waiting, _)| waiting != uid);
        self.shared.allocated.remove(uid);
        self.shared.actuated.remove(uid);
    }

    /// Retries deferred resizes in order of priority.
    fn retry(&self, state: &mut State, trigger: Trigger) {
        // Other pods are not known before.
        if state.queue.is_empty() || !*self.shared.parts.desired.synced().borrow() {
            return;
        }
        let desired = &self.shared.parts.desired;
        let waiting = std::mem::take(&mut state.queue).into_iter();
        let mut waiting: Vec<(Rank, Arc<Pod>, Timestamp)> = waiting
            .filter_map(|(uid, since)| {
                let pod = desired.pod(&uid)?;
                Some((Rank::new(&pod, &self.allocated(&pod), Some(since)), pod, since))
            })
            .collect();
        waiting.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        for (_, pod, since) in waiting {
            if self.decide(state, &pod, trigger) {
                state.queue.push((spec::uid(&pod).to_owned(), since));
            }
        }
    }

    /// Returns whether the resize is deferred.
    fn decide(&self, state: &mut State, pod: &Arc<Pod>, trigger: Trigger) -> bool {
        let (Some(pod_spec), uid) = (&pod.spec, spec::uid(pod)) else { return false };
        let allocated = self.allocated(pod);
        let generation = pod.metadata.generation;
        let decision = state.decision(uid);
        let refusal = match () {
            () if Arc::ptr_eq(&allocated, pod) => {
                decision.send_if_modified(|decision| decision.pending.take().is_some());
                return false;
            }
            () => resize::infeasible(pod, &allocated, self.shared.parts.rules)
                .map(|why| {
                    self.shared.metrics.infeasible.with([why.detail()]).inc();
                    ("Infeasible".to_owned(), why.to_string())
                })
                .or_else(|| {
                    let refused = self.shared.parts.admission.resize(pod).err();
                    refused.map(|verdict| (verdict.reason, verdict.message))
                }),
        };
        let Some((reason, message)) = refusal else {
            self.shared.allocated.set(uid, PodResources::requested(pod_spec, self.gates()));
            let waited =
                decision.borrow().pending.as_ref().is_some_and(|before| !before.infeasible);
            if waited {
                self.shared.metrics.accepted.with([trigger.label()]).inc();
            }
            decision.send_modify(|decision| {
                decision.pending = None;
                decision.grants = decision.grants.saturating_add(1);
                decision.generation = generation;
            });
            let text = resize::message("started", pod, generation, "");
            self.shared.parts.pod_events.pod(pod, false, "ResizeStarted", &text);
            return false;
        };
        let infeasible = reason == "Infeasible";
        let pending = Pending { infeasible, message, generation };
        let text = resize::message(&reason, pod, generation, &pending.message);
        let is_new = decision.borrow().pending.as_ref().is_none_or(|before| {
            (before.infeasible, before.generation) != (infeasible, generation)
        });
        decision.send_if_modified(|decision| {
            let changed = decision.pending.as_ref() != Some(&pending);
            decision.pending = Some(pending);
            changed
        });
        if is_new {
            let reason = if infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
            self.shared.parts.pod_events.pod(pod, true, reason, &text);
        }
        !infeasible
    }

    fn gates(&self) -> Gates {
        self.shared.parts.gates
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Number of infeasible or deferred resizes.
    fn pending(&self, infeasible: bool) -> usize {
        let state = self.state();
        let pending = |decision: &watch::Sender<Decision>| {
            decision.borrow().pending.as_ref().is_some_and(|one| one.infeasible == infeasible)
        };
        state.decisions.values().filter(|decision| pending(decision)).count()
    }
}

impl State {
    fn decision(&mut self, uid: &str) -> &watch::Sender<Decision> {
        self.decisions.entry(uid.to_owned()).or_default()
    }
}

/// The pending resize that an earlier daemon reported.
fn pending_of(pod: &Pod) -> Option<Pending> {
    status::resize_status(pod.status.as_ref()?).0
}

fn pending_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let pending = conditions.iter().find(|condition| condition.type_ == "PodResizePending")?;
    Some(pending.last_transition_time.as_ref()?.0)
}

#[cfg(test)]
mod tests;
