//! The one owner of what the probes of containers have found: a task for each probe of each run,
//! and each pod's results as a watch. Workers tell what runs; nobody waits for a probe.
//!
//! Current limitations: probes are not counted for metrics.

mod metrics;
mod tally;
mod task;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::handlers::Handlers;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_client::events::PodEventRecorder;
use longshore_metrics::Registry;
use longshore_pod::Timestamp;
use longshore_pod::observed::{self, ObservedPod, State};
use longshore_pod::probes::{Finding, ProbeKind, ProbeResults};
use longshore_pod::spec::{self, ContainerKind};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::metrics::Metrics;
use self::tally::period;
use self::task::{Subject, Task};

/// Handle to the probes of all pods. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    handlers: Handlers,
    pod_events: PodEventRecorder,
    /// The node's addresses, which pods on its network have.
    host_ips: Arc<[String]>,
    /// When the daemon began to probe.
    began: Timestamp,
    pods: Arc<Mutex<HashMap<String, PodProbes>>>,
    metrics: Metrics,
}

/// The probes of one pod.
#[derive(Default)]
struct PodProbes {
    results: watch::Sender<Arc<ProbeResults>>,
    /// By the runtime's id, each run that has been seen, with the tasks of its probes.
    runs: HashMap<String, Vec<(ProbeKind, AbortOnDropHandle<()>)>>,
    /// Whether the pod comes to its end.
    ends: bool,
}

impl Probes {
    /// Nothing is probed yet. How probes turn out is told to `registry`.
    pub fn new(
        handlers: Handlers,
        pod_events: PodEventRecorder,
        host_ips: &[String],
        registry: &Registry,
    ) -> Self {
        Self {
            metrics: Metrics::new(registry),
            handlers,
            pod_events,
            host_ips: host_ips.into(),
            began: Timestamp::now(),
            pods: Arc::default(),
        }
    }

    /// What the probes of a pod have found, and every change to it.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<ProbeResults>> {
        self.pods().entry(uid.to_owned()).or_default().results.subscribe()
    }

    /// Probe the containers of the pod that run, but for those that are `starting`, whose postStart
    /// hooks are under way, and no others any more. A run that `told` shows as started and ready is
    /// taken for that until its probes say otherwise, if it is older than the daemon.
    pub fn follow(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        starting: &HashSet<String>,
        told: &PodStatus,
    ) {
        let Some(pod_spec) = &pod.spec else { return };
        if !spec::containers(pod_spec).any(|(_, container)| kinds(container).next().is_some()) {
            return;
        }
        let mut pods = self.pods();
        let known = pods.entry(spec::uid(pod).to_owned()).or_default();
        // One whose state is not known may run all the same.
        let is_over = |run: &observed::Container| !run.is_running() && run.state != State::Unknown;
        let is_there =
            |id: &str| observed.containers.iter().any(|run| run.id == id && !is_over(run));
        let before = known.runs.len();
        known.runs.retain(|id, _| is_there(id));
        if known.runs.len() < before {
            known.results.send_if_modified(|results| {
                Arc::make_mut(results).retain(is_there);
                // Who could be told that a run is over has just told it.
                false
            });
        }
        for run in &observed.containers {
            let State::Running { started_at } = run.state else { continue };
            let Some((kind, container)) = spec::container(pod, &run.name) else { continue };
            let is_probed = matches!(kind, ContainerKind::Regular | ContainerKind::Sidecar);
            if !is_probed || starting.contains(&run.name) || known.runs.contains_key(&run.id) {
                continue;
            }
            let is_old = started_at < self.began;
            if is_old {
                known.take_over(&container, &run.id, told);
            }
            let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.id == run.sandbox_id);
            let ip = sandbox.map(|sandbox| sandbox.address(&self.host_ips)).unwrap_or_default();
            let subject = Subject {
                pod: identity(pod),
                kind,
                container: reduced(&container),
                id: run.id.clone(),
                ip: ip.to_owned(),
                started_at,
            };
            let tasks = self.start(known, Arc::new(subject), is_old);
            known.runs.insert(run.id.clone(), tasks);
        }
    }

    fn start(
        &self,
        pod: &PodProbes,
        subject: Arc<Subject>,
        is_old: bool,
    ) -> Vec<(ProbeKind, AbortOnDropHandle<()>)> {
        self.metrics.begin(spec::uid(&subject.pod));
        let results = pod.results.borrow().clone();
        let is_due = |kind: &ProbeKind| match kind {
            ProbeKind::Readiness => true,
            ProbeKind::Liveness => !pod.ends,
            ProbeKind::Startup => {
                !pod.ends && results.get(&subject.id, ProbeKind::Startup) == Finding::Unknown
            }
        };
        let begin = |(kind, probe): (ProbeKind, &Probe)| {
            let task = Task {
                handlers: self.handlers.clone(),
                pod_events: self.pod_events.clone(),
                results: pod.results.clone(),
                subject: subject.clone(),
                kind,
                metrics: self.metrics.clone(),
            };
            // A daemon that starts finds all containers at once; their probes spread out.
            let delay =
                if is_old { jitter(period(probe), &subject.id, kind) } else { Duration::ZERO };
            (kind, AbortOnDropHandle::new(tokio::spawn(task.keep_running(delay))))
        };
        kinds(&subject.container).filter(|(kind, _)| is_due(kind)).map(begin).collect()
    }

    /// The pod comes to its end: nothing of it is to be restarted any more, so only its readiness
    /// is still looked at.
    pub fn wind_down(&self, uid: &str) {
        let mut pods = self.pods();
        let pod = pods.entry(uid.to_owned()).or_default();
        pod.ends = true;
        for tasks in pod.runs.values_mut() {
            tasks.retain(|(kind, _)| *kind == ProbeKind::Readiness);
        }
    }

    /// Stop all probes of the pod and forget what they have found.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
        self.metrics.forget(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, PodProbes>> {
        // No code panics while it holds the lock.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodProbes {
    /// Take for found what an earlier daemon has told of this very run.
    fn take_over(&self, container: &Container, id: &str, told: &PodStatus) {
        let statuses = [&told.container_statuses, &told.init_container_statuses];
        let is_it = |status: &&ContainerStatus| {
            let told = status.container_id.as_deref().unwrap_or_default();
            status.name == container.name && told.split_once("://").is_some_and(|(_, it)| it == id)
        };
        let Some(status) = statuses.into_iter().flatten().flatten().find(is_it) else { return };
        let found = [
            (ProbeKind::Startup, status.started == Some(true), container.startup_probe.is_some()),
            (ProbeKind::Readiness, status.ready, container.readiness_probe.is_some()),
        ];
        self.results.send_if_modified(|results| {
            let results = Arc::make_mut(results);
            let taken = found.into_iter().filter(|(_, told, probed)| *told && *probed);
            taken.fold(false, |news, (kind, ..)| results.set(id, kind, Finding::Success) || news)
        });
    }
}

/// The probes that a container has.
fn kinds(container: &Container) -> impl Iterator<Item = (ProbeKind, &Probe)> {
    let probes = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
    probes.into_iter().filter_map(|kind| Some((kind, probe(container, kind)?)))
}

fn probe(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}

/// As much of a pod as its events need; tasks live long, and pods are large.
fn identity(pod: &Pod) -> Pod {
    let ObjectMeta { name, namespace, uid, resource_version, .. } = pod.metadata.clone();
    let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
    Pod { metadata, ..Pod::default() }
}

/// As much of a container as its probes need.
fn reduced(container: &Container) -> Container {
    Container {
        name: container.name.clone(),
        ports: container.ports.clone(),
        env: container.env.clone(),
        startup_probe: container.startup_probe.clone(),
        readiness_probe: container.readiness_probe.clone(),
        liveness_probe: container.liveness_probe.clone(),
        ..Container::default()
    }
}

/// A random part of the period.
fn jitter(period: Duration, id: &str, kind: ProbeKind) -> Duration {
    let random = RandomState::new().hash_one((id, kind));
    period.mul_f64(random as f64 / u64::MAX as f64)
}
