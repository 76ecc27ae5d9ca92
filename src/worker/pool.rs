//! The pool: step_context each pod's orders to its worker, and finds what runs and should not.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_base::panics::Panicked;
use longshore_client::events::PodEventRecorder;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec::{self, Gates};
use longshore_podstate::desired::{Change, Desired};
use longshore_podstate::observe::Observer;
use longshore_runtime::probes::Probes;
use longshore_runtime::{PodRuntime, Settings};
use longshore_volumes::Volumes;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::metrics::Metrics;
use super::startup_limiter::StartupLimiter;
use super::supervisor::{Happened, Start, Supervisor};
use super::task::Task;
use crate::admission::Admission;
use crate::allocation::Allocation;
use crate::status::StatusWriter;
use crate::terminator::{Order, PodTerminator};

/// How often the pool shows that it turns.
const BEAT: Duration = Duration::from_secs(10);

/// What every worker works with.
pub struct WorkerContext {
    /// The step_context.
    pub runtime: PodRuntime,
    /// The eyes.
    pub observer: Observer,
    /// The mouth.
    pub status: StatusWriter,
    /// What the probes of containers find.
    pub probes: Probes,
    /// The volumes of pods.
    pub volumes: Volumes,
    /// Events.
    pub pod_events: PodEventRecorder,
    /// The node's settings.
    pub settings: Arc<Settings>,
    /// Secrets and config maps.
    pub objects: longshore_client::objects::Objects,
    /// The runtime's name, as in `containerd://id`.
    pub runtime_name: String,
    /// Longest delay before a container is started again.
    pub max_restart_delay: k8s_openapi::jiff::SignedDuration,
    /// The feature gates in force.
    pub gates: Gates,
    /// How many pods are in the making at once.
    pub startup_limiter: StartupLimiter,
    /// What pods have been given.
    pub allocation: Allocation,
    /// What removes runs that are not kept.
    pub garbage: crate::gc::Containers,
    /// What decides whether a pod is taken in.
    pub admission: Admission,
    /// What is counted.
    pub metrics: Metrics,
}

/// The workers.
pub struct Pool {
    context: Arc<WorkerContext>,
    desired: Desired,
    workers: PodTerminator,
    /// Pods that wait for an earlier one to come to its end, by UID.
    waiting: HashMap<String, Arc<Pod>>,
    supervisor: Supervisor,
    /// Whether directories that earlier daemons left have been looked for.
    swept: bool,
    pulse: watch::Sender<Instant>,
}

impl Pool {
    /// A pool without workers, that will be reached by `workers`.
    pub fn new(context: Arc<WorkerContext>, desired: Desired, workers: PodTerminator) -> Self {
        Self {
            context,
            desired,
            workers,
            waiting: HashMap::new(),
            supervisor: Supervisor::new(),
            swept: false,
            pulse: watch::Sender::new(Instant::now()),
        }
    }

    /// The handle by which other rooms end pods.
    pub fn terminator(&self) -> PodTerminator {
        self.workers.clone()
    }

    /// When the pool turned last, for those who watch over it.
    pub fn pulse(&self) -> watch::Receiver<Instant> {
        self.pulse.subscribe()
    }

    /// Work until told to stop. Containers go on running then.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>, stop: CancellationToken) {
        let mut relisted = self.context.observer.relisted();
        // Nothing may be started before it is known what runs already.
        tokio::select! {
            first = relisted.wait_for(Option::is_some) => if first.is_err() { return },
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
                happened = self.supervisor.next() => match happened {
                    Happened::Ended(uid) => self.ended(&uid),
                    Happened::Panicked(uid, panicked) => self.panicked(&uid, &panicked),
                    Happened::Due(start) => self.start(start),
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
            Change::Gone(pod) => {
                let uid = spec::uid(&pod);
                self.waiting.remove(uid);
                match self.workers.workers().get(uid) {
                    Some(worker) => worker.send_modify(|order| order.gone = true),
                    None => self.context.status.forget(uid),
                }
            }
            Change::Mirror { uid } => self.context.status.poke(&uid),
        }
    }

    fn set(&mut self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod).to_owned();
        let mut workers = self.workers.workers();
        if must_wait(&pod, workers.values().map(|worker| worker.borrow())) {
            self.waiting.insert(uid, pod);
            return;
        }
        match workers.get(&uid) {
            Some(worker) => worker.send_modify(|order| order.pod = pod),
            None => {
                let order = watch::Sender::new(Order { pod, gone: false, termination: None });
                workers.insert(uid.clone(), order);
                drop(workers);
                self.start(Start { uid, is_orphan: false });
            }
        }
    }

    /// Start the worker of a pod that has its order.
    fn start(&mut self, start: Start) {
        let order = self.workers.workers().get(&start.uid).map(watch::Sender::subscribe);
        let Some(order) = order else { return };
        let (context, is_orphan) = (self.context.clone(), start.is_orphan);
        self.supervisor.start(start, || {
            let mut task = Task::new(context, order);
            if !is_orphan {
                // Here, so that pods are taken in in the order in which they come.
                task.admit();
            }
            async move { if is_orphan { task.run_orphan().await } else { task.run().await } }
        });
    }

    /// What the pod has on the node stays: the next worker takes it over.
    fn panicked(&self, uid: &str, panicked: &Panicked) {
        let pod = self.workers.workers().get(uid).map(|order| order.borrow().pod.clone());
        let Some(pod) = pod else { return };
        let (name, namespace) = (spec::name(&pod), spec::namespace(&pod));
        error!(pod = name, namespace, uid, "the worker of a pod was ended by a panic");
        let message = format!("error syncing pod: {panicked}");
        self.context.pod_events.pod(&pod, true, "FailedSync", &message);
    }

    /// A pod has left nothing: it makes way for itself, if it was set again meanwhile, or for the
    /// next static pod of its name.
    fn ended(&mut self, uid: &str) {
        let Some(ended) = self.workers.workers().remove(uid) else { return };
        let ended = ended.borrow().pod.clone();
        let next = self.waiting.iter().find(|(waiting, pod)| {
            *waiting == uid || spec::is_static(pod) && is_namesake(pod, &ended)
        });
        if let Some(next) = next.map(|(uid, _)| uid.clone())
            && let Some(pod) = self.waiting.remove(&next)
        {
            if next == uid {
                self.context.metrics.came_again(&pod);
            }
            self.set(pod);
        }
    }

    /// What is left of a pod, on disk or running, that should not be there, is stopped and removed.
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
                    self.context.metrics.swept(Some(found));
                }
                Err(error) => {
                    self.context.metrics.swept(None);
                    error!(%error, "directories of pods cannot be read");
                }
            }
        }
    }

    /// Tells whether it was one, which is being removed now.
    fn remove_orphan(&mut self, observed: &ObservedPod) -> bool {
        let uid = &observed.uid;
        let mut workers = self.workers.workers();
        if workers.contains_key(uid) || self.desired.has(uid) {
            return false;
        }
        let (pod, namespace) = (&observed.name, &observed.namespace);
        info!(pod, namespace, uid, "pod is there and should not be");
        let pod = Arc::new(orphan(observed));
        let order = watch::Sender::new(Order { pod, gone: true, termination: None });
        workers.insert(uid.clone(), order);
        drop(workers);
        self.start(Start { uid: uid.clone(), is_orphan: true });
        true
    }
}

/// Whether a pod has to wait for another worker's end. A worker that leaves nothing of a pod is
/// not called back: the pod begins anew after it. Static pods of one name share ports, files and a
/// mirror, so they take turns; a pod of the apiserver has nothing to do with them.
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

/// A pod of which only its identity is known.
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
    fn only_what_shares_something_takes_turns() {
        for (new, worker, gone, expected) in [
            (pod("a", "p", "api"), pod("a", "p", "api"), false, false),
            // Set again, while what was there is being removed.
            (pod("a", "p", "api"), pod("a", "p", "api"), true, true),
            // Made again under its name.
            (pod("b", "p", "api"), pod("a", "p", "api"), true, false),
            // A static pod that was edited.
            (pod("b", "p", "file"), pod("a", "p", "file"), false, true),
            (pod("b", "q", "file"), pod("a", "p", "file"), false, false),
            // A pod of the apiserver and a static one share no more than a name.
            (pod("b", "p", "file"), pod("a", "p", "api"), false, false),
            (pod("b", "p", "api"), pod("a", "p", "file"), false, false),
        ] {
            let order = Order { pod: worker.clone(), gone, termination: None };
            let waits = must_wait(&new, std::iter::once(&order));
            assert_eq!(waits, expected, "{new:?} after {worker:?}");
        }
    }
}
