//! The pool of pod workers: dispatches updates to them, and finds orphaned pods.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::SignedDuration;
use longshore_base::panics::Panicked;
use longshore_client::events::PodEventRecorder;
use longshore_devices::Devices;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec::{self, Gates};
use longshore_podstate::desired::{Change, Desired, MirrorHold};
use longshore_podstate::observe::Observer;
use longshore_runtime::probes::Probes;
use longshore_runtime::{PodRuntime, Settings};
use longshore_volumes::Volumes;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::limiter::Limiter;
use super::metrics::Metrics;
use super::supervisor::{Start, Supervisor, WorkerEvent};
use super::task::Task;
use crate::admission::Admission;
use crate::allocation::Allocation;
use crate::registration::RuntimeHealth;
use crate::status::StatusWriter;
use crate::terminator::{Order, PodTerminator};

/// Interval of the heartbeat of the sync loop.
const BEAT: Duration = Duration::from_secs(10);

/// Delays before a container that has failed is started again: the first, which doubles, and the
/// longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelays {
    /// The first.
    pub base: SignedDuration,
    /// The longest.
    pub max: SignedDuration,
}

/// Shared context of the pod workers.
pub struct WorkerContext {
    /// Pods in the container runtime.
    pub runtime: PodRuntime,
    /// Observed state of the runtime.
    pub observer: Observer,
    /// Writer of pod statuses.
    pub status: StatusWriter,
    /// Results of probes.
    pub probes: Probes,
    /// The volumes of pods.
    pub volumes: Volumes,
    /// The claims of pods for devices.
    pub claims: longshore_dra::Manager,
    /// Events.
    pub pod_events: PodEventRecorder,
    /// The node's settings.
    pub settings: Arc<Settings>,
    /// Secrets and config maps.
    pub objects: longshore_client::objects::Objects,
    /// Status of the runtime.
    pub runtime_health: watch::Receiver<RuntimeHealth>,
    /// Delays before a container is started again.
    pub restart_delays: RestartDelays,
    /// How often a pod that does not change is looked at again.
    pub resync_period: k8s_openapi::jiff::SignedDuration,
    /// The feature gates in force.
    pub gates: Gates,
    /// Limit of parallel pod starts.
    pub startup_limiter: Limiter,
    /// Limit of parallel container stops.
    pub stop_limiter: Limiter,
    /// Allocated resources.
    pub allocation: Allocation,
    /// Garbage collection of containers.
    pub garbage: crate::gc::Containers,
    /// Pod admission.
    pub admission: Admission,
    /// The device manager.
    pub devices: Devices,
    /// Metrics of workers.
    pub metrics: Metrics,
    /// Makes the spans of workers.
    pub tracer: longshore_telemetry::Tracer,
}

/// The workers.
pub struct Pool {
    context: Arc<WorkerContext>,
    desired: Desired,
    workers: PodTerminator,
    /// Pods that wait for the termination of an earlier one, by UID.
    waiting: HashMap<String, Arc<Pod>>,
    /// Mirror pods that stay until the worker of that UID has ended.
    holds: HashMap<String, Vec<MirrorHold>>,
    supervisor: Supervisor,
    /// Whether directories of orphaned pods have been cleaned up.
    swept: bool,
    pulse: watch::Sender<Instant>,
}

impl Pool {
    /// A pool without workers; `workers` is its handle.
    pub fn new(context: Arc<WorkerContext>, desired: Desired, workers: PodTerminator) -> Self {
        Self {
            context,
            desired,
            workers,
            waiting: HashMap::new(),
            holds: HashMap::new(),
            supervisor: Supervisor::new(),
            swept: false,
            pulse: watch::Sender::new(Instant::now()),
        }
    }

    /// The handle by which other tasks terminate pods.
    pub fn terminator(&self) -> PodTerminator {
        self.workers.clone()
    }

    /// Time of the last iteration of the sync loop, for health checks.
    pub fn pulse(&self) -> watch::Receiver<Instant> {
        self.pulse.subscribe()
    }

    /// Runs until `stop` is cancelled. Containers go on running then.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>, stop: CancellationToken) {
        let mut relisted = self.context.observer.relisted();
        let mut health = self.context.runtime_health.clone();
        // Nothing may be started before the first relist, nor reported before the runtime's name is
        // known, which is a part of the containers' ids.
        let first = async {
            relisted.wait_for(Option::is_some).await?;
            health.wait_for(|health| health.runtime_name().is_some()).await.map(drop)
        };
        tokio::select! {
            first = first => if first.is_err() { return },
            () = stop.cancelled() => return,
        }
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = beats.tick() => {
                    self.pulse.send_replace(Instant::now());
                }
                () = stop.cancelled() => break,
                change = changes.recv() => match change {
                    Some(change) => self.order(change),
                    None => break,
                },
                event = self.supervisor.next() => match event {
                    WorkerEvent::Ended(uid) => self.ended(&uid),
                    WorkerEvent::Panicked(uid, panicked) => self.panicked(&uid, &panicked),
                    WorkerEvent::Due(start) => self.start(start),
                },
                alive = relisted.changed() => {
                    if alive.is_err() {
                        break;
                    }
                    self.find_orphans().await;
                }
            }
        }
        self.supervisor.shutdown().await;
    }

    fn order(&mut self, change: Change) {
        match change {
            Change::Set(pod) => self.set(pod),
            Change::Gone { pod, hold } => {
                let uid = spec::uid(&pod);
                self.waiting.remove(uid);
                match self.workers.workers().get(uid) {
                    Some(worker) => {
                        self.context.admission.leave(uid);
                        worker.send_modify(|order| (order.gone, order.readded) = (true, false));
                        self.holds.entry(uid.to_owned()).or_default().extend(hold);
                    }
                    None => self.context.status.forget(uid),
                }
            }
            Change::Mirror { uid } => self.context.status.requeue(&uid),
        }
    }

    fn set(&mut self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod).to_owned();
        let mut workers = self.workers.workers();
        if must_wait(&pod, workers.values().map(|worker| worker.borrow())) {
            if let Some(same) = workers.get(&uid) {
                same.send_modify(|order| order.readded = true);
            }
            self.waiting.insert(uid, pod);
            return;
        }
        match workers.get(&uid) {
            Some(worker) => worker.send_modify(|order| order.pod = pod),
            None => {
                let order = watch::Sender::new(Order::new(pod));
                workers.insert(uid.clone(), order);
                drop(workers);
                self.start(Start { uid, is_orphan: false });
            }
        }
    }

    /// Starts the worker of a pod.
    fn start(&mut self, start: Start) {
        let order = self.workers.workers().get(&start.uid).map(watch::Sender::subscribe);
        let Some(order) = order else { return };
        let (context, is_orphan) = (self.context.clone(), start.is_orphan);
        self.supervisor.start(start, || {
            let mut task = Task::new(context, order);
            if !is_orphan {
                // Here, so that pods are admitted in order.
                task.admit();
            }
            async move { if is_orphan { task.run_orphan().await } else { task.run().await } }
        });
    }

    /// The resources of the pod stay: the next worker takes them over.
    fn panicked(&self, uid: &str, panicked: &Panicked) {
        let pod = self.workers.workers().get(uid).map(|order| order.borrow().pod.clone());
        let Some(pod) = pod else { return };
        let (name, namespace) = (spec::name(&pod), spec::namespace(&pod));
        error!(pod = name, namespace, uid, "panic in a pod worker");
        let message = format!("error syncing pod: {panicked}");
        self.context.pod_events.pod(&pod, true, "FailedSync", &message);
    }

    /// A worker has finished: starts the next for the same pod, if it was added again meanwhile, or
    /// for the next static pod of that name.
    fn ended(&mut self, uid: &str) {
        self.holds.remove(uid);
        let Some(ended) = self.workers.workers().remove(uid) else { return };
        let ended = ended.borrow().pod.clone();
        let next = self.waiting.iter().find(|(waiting, pod)| {
            *waiting == uid || spec::is_static(pod) && is_namesake(pod, &ended)
        });
        if let Some(next) = next.map(|(uid, _)| uid.clone())
            && let Some(pod) = self.waiting.remove(&next)
        {
            if next == uid {
                self.context.metrics.pod_restarted(&pod);
            }
            self.set(pod);
        }
    }

    /// Removes orphaned pods: those that run or have directories, and are not desired.
    async fn find_orphans(&mut self) {
        if !*self.desired.synced().borrow() {
            return;
        }
        for observed in self.context.observer.all() {
            self.remove_orphan(&observed);
        }
        if !self.swept {
            self.swept = true;
            match self.context.volumes.pods_on_disk().await {
                Ok(uids) => {
                    let of = |uid| ObservedPod { uid, ..ObservedPod::default() };
                    let found = uids.into_iter().filter(|uid| self.remove_orphan(&of(uid.clone())));
                    let found = found.count();
                    self.context.metrics.set_orphans_cleaned(Some(found));
                }
                Err(error) => {
                    self.context.metrics.set_orphans_cleaned(None);
                    error!(%error, "cannot read pod directories");
                }
            }
        }
    }

    /// Returns whether the pod is an orphan, whose removal is started then.
    fn remove_orphan(&mut self, observed: &ObservedPod) -> bool {
        let uid = &observed.uid;
        let mut workers = self.workers.workers();
        if workers.contains_key(uid) || self.desired.has(uid) {
            return false;
        }
        let (pod, namespace) = (&observed.name, &observed.namespace);
        info!(pod, namespace, uid, "removing orphaned pod");
        let pod = Arc::new(orphan(observed));
        let order = watch::Sender::new(Order { gone: true, ..Order::new(pod) });
        workers.insert(uid.clone(), order);
        drop(workers);
        self.start(Start { uid: uid.clone(), is_orphan: true });
        true
    }
}

/// Whether a pod has to wait for the termination of another worker. The removal of a pod cannot be
/// undone: if the pod is added again, it starts after it. Static pods of the same name share ports,
/// files and a mirror pod, so they run one after the other; pods of the apiserver are independent.
fn must_wait<O: Deref<Target = Order>>(pod: &Pod, workers: impl Iterator<Item = O>) -> bool {
    let mut workers = workers;
    workers.any(|order| match spec::uid(&order.pod) == spec::uid(pod) {
        true => order.gone,
        false => {
            spec::is_static(pod) && spec::is_static(&order.pod) && is_namesake(pod, &order.pod)
        }
    })
}

fn is_namesake(pod: &Pod, other: &Pod) -> bool {
    spec::name(pod) == spec::name(other) && spec::namespace(pod) == spec::namespace(other)
}

/// A pod of which only name, namespace and UID are known.
fn orphan(observed: &ObservedPod) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(observed.name.clone()),
            namespace: Some(observed.namespace.clone()),
            uid: Some(observed.uid.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn pod(uid: &str, name: &str, source: &str) -> Arc<Pod> {
        let annotations = json!({"kubernetes.io/config.source": source});
        let metadata = json!({"name": name, "uid": uid, "annotations": annotations});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn pod_workers_wait_for_static_namesakes_and_removals() {
        for (new, worker, gone, expected) in [
            (pod("a", "p", "api"), pod("a", "p", "api"), false, false),
            // Added again during its removal.
            (pod("a", "p", "api"), pod("a", "p", "api"), true, true),
            // Created again under its name.
            (pod("b", "p", "api"), pod("a", "p", "api"), true, false),
            // A static pod that was edited.
            (pod("b", "p", "file"), pod("a", "p", "file"), false, true),
            (pod("b", "q", "file"), pod("a", "p", "file"), false, false),
            // A pod of the apiserver and a static one share no more than a name.
            (pod("b", "p", "file"), pod("a", "p", "api"), false, false),
            (pod("b", "p", "api"), pod("a", "p", "file"), false, false),
        ] {
            let order = Order { gone, ..Order::new(worker.clone()) };
            let waits = must_wait(&new, std::iter::once(&order));
            assert_eq!(waits, expected, "{new:?} after {worker:?}");
        }
    }
}
