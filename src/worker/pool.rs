//! The pool: hands each pod's orders to its worker, and finds what runs and should not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::Order;
use super::task::Task;
use crate::desired::{Change, Desired};
use crate::observe::Observer;
use crate::probes::Probes;
use crate::runtime::{Announcer, PodRuntime, Settings};
use crate::status::StatusWriter;
use crate::volumes::Volumes;

/// How often the pool shows that it turns.
const BEAT: Duration = Duration::from_secs(10);

/// What every worker works with.
pub struct Tools {
    /// The hands.
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
    pub announcer: Announcer,
    /// The node's settings.
    pub settings: Arc<Settings>,
    /// Secrets and config maps.
    pub objects: crate::objects::Objects,
    /// The runtime's name, as in `containerd://id`.
    pub runtime_name: String,
    /// Longest delay before a container is started again.
    pub max_restart_delay: k8s_openapi::jiff::SignedDuration,
}

/// The workers.
pub struct Pool {
    tools: Arc<Tools>,
    desired: Desired,
    workers: HashMap<String, watch::Sender<Order>>,
    /// Pods that wait for an earlier one of the same name to come to its end.
    waiting: HashMap<(String, String), Arc<Pod>>,
    tasks: JoinSet<String>,
    /// Whether directories that earlier daemons left have been looked for.
    swept: bool,
    pulse: watch::Sender<Instant>,
}

impl Pool {
    /// A pool without workers.
    pub fn new(tools: Arc<Tools>, desired: Desired) -> Self {
        Self {
            tools,
            desired,
            workers: HashMap::new(),
            waiting: HashMap::new(),
            tasks: JoinSet::new(),
            swept: false,
            pulse: watch::Sender::new(Instant::now()),
        }
    }

    /// When the pool turned last, for those who watch over it.
    pub fn pulse(&self) -> watch::Receiver<Instant> {
        self.pulse.subscribe()
    }

    /// Work until told to stop. Containers go on running then.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>, stop: CancellationToken) {
        let mut relisted = self.tools.observer.relisted();
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
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => match ended {
                    Ok(uid) => self.ended(&uid),
                    Err(error) => error!(%error, "a worker ended early"),
                },
                alive = relisted.changed() => {
                    if alive.is_err() {
                        break;
                    }
                    self.find_orphans().await;
                }
            }
        }
        self.tasks.shutdown().await;
    }

    fn order(&mut self, change: Change) {
        match change {
            Change::Set(pod) => self.set(pod),
            Change::Gone(pod) => {
                self.waiting.retain(|_, waiting| spec::uid(waiting) != spec::uid(&pod));
                match self.workers.get(spec::uid(&pod)) {
                    Some(worker) => {
                        worker.send_modify(|order| order.gone = true);
                    }
                    None => self.tools.status.forget(spec::uid(&pod)),
                }
            }
            Change::Mirror { uid } => self.tools.status.poke(&uid),
        }
    }

    fn set(&mut self, pod: Arc<Pod>) {
        let name = (spec::namespace(&pod).to_owned(), spec::name(&pod).to_owned());
        let uid = spec::uid(&pod);
        // A worker that leaves nothing of a pod is not called back: the pod begins anew after it.
        let leaving = self.workers.get(uid).is_some_and(|worker| worker.borrow().gone);
        // Static pods of one name share ports, files and a mirror: they take turns.
        let taken = spec::is_static(&pod)
            && self.workers.iter().any(|(other, worker)| {
                let order = worker.borrow();
                let same_name =
                    spec::name(&order.pod) == name.1 && spec::namespace(&order.pod) == name.0;
                same_name && other != uid
            });
        if leaving || taken {
            self.waiting.insert(name, pod);
            return;
        }
        match self.workers.entry(uid.to_owned()) {
            Entry::Occupied(worker) => {
                worker.get().send_modify(|order| order.pod = pod);
            }
            Entry::Vacant(vacant) => {
                let (orders, order) = watch::channel(Order { pod, gone: false });
                vacant.insert(orders);
                self.tasks.spawn(Task::new(self.tools.clone(), order).run());
            }
        }
    }

    fn ended(&mut self, uid: &str) {
        let order = self.workers.remove(uid);
        let Some(order) = order.map(|orders| orders.borrow().clone()) else { return };
        let name = (spec::namespace(&order.pod).to_owned(), spec::name(&order.pod).to_owned());
        if let Some(next) = self.waiting.remove(&name) {
            self.set(next);
        }
    }

    /// What is left of a pod, on disk or running, that should not be there, is stopped and removed.
    async fn find_orphans(&mut self) {
        if !*self.desired.synced().borrow() {
            return;
        }
        for observed in self.tools.observer.all() {
            self.remove_orphan(&observed);
        }
        if !self.swept {
            self.swept = true;
            match self.tools.volumes.pods_on_disk().await {
                Ok(uids) => uids.into_iter().for_each(|uid| {
                    self.remove_orphan(&ObservedPod { uid, ..ObservedPod::default() })
                }),
                Err(error) => error!(%error, "directories of pods cannot be read"),
            }
        }
    }

    fn remove_orphan(&mut self, observed: &ObservedPod) {
        let uid = &observed.uid;
        if self.workers.contains_key(uid) || self.desired.pod(uid).is_some() {
            return;
        }
        info!(
            pod = observed.name,
            namespace = observed.namespace,
            uid,
            "pod is there and should not be"
        );
        let (orders, order) = watch::channel(Order { pod: Arc::new(orphan(observed)), gone: true });
        self.workers.insert(uid.clone(), orders);
        self.tasks.spawn(Task::new(self.tools.clone(), order).run());
    }
}

/// As much of a pod as its containers tell.
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
