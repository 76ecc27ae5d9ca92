//! The probe manager: a task for each probe of each running container, and the results of each pod
//! as a watch. Workers pass the observed pods; nothing waits for a probe.

mod metrics;
mod schedule;
mod task;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::HostIps;
use crate::handlers::Handlers;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_base::clock;
use longshore_client::events::PodEventRecorder;
use longshore_metrics::Registry;
use longshore_pod::Timestamp;
use longshore_pod::observed::{self, ObservedPod, State};
use longshore_pod::probes::{ProbeKind, ProbeResult, ProbeResults};
use longshore_pod::spec::{self, ContainerKind};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::metrics::Metrics;
use self::schedule::period;
use self::task::{Subject, Task};

/// Handle to the probes of all pods. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    handlers: Handlers,
    pod_events: PodEventRecorder,
    /// The node's addresses, for pods on its network.
    host_ips: HostIps,
    /// Whether containers that are not ready are probed more often than their period.
    early: bool,
    /// When the daemon started.
    began: Timestamp,
    pods: Arc<Mutex<HashMap<String, PodProbes>>>,
    metrics: Metrics,
}

/// The probes of one pod.
#[derive(Default)]
struct PodProbes {
    results: watch::Sender<Arc<ProbeResults>>,
    /// Observed runs by container id, with the tasks of their probes.
    runs: HashMap<String, Vec<(ProbeKind, AbortOnDropHandle<()>)>>,
    /// Whether the pod is terminating.
    terminating: bool,
}

impl Probes {
    /// A probe manager without probes, whose metrics are registered in `registry`. `early`: containers that
    /// are not ready are probed more often than their period.
    pub fn new(
        handlers: Handlers,
        pod_events: PodEventRecorder,
        host_ips: HostIps,
        early: bool,
        registry: &Registry,
    ) -> Self {
        Self {
            metrics: Metrics::new(registry),
            handlers,
            pod_events,
            host_ips,
            early,
            began: clock::now(),
            pods: Arc::default(),
        }
    }

    /// The probe results of a pod, and their changes.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<ProbeResults>> {
        self.pods().entry(uid.to_owned()).or_default().results.subscribe()
    }

    /// Probe the running containers of the pod, except those in `starting`, whose postStart hooks
    /// have not completed, and stop the probes of all others. A run that is older than the daemon
    /// starts with the results in `last_status`.
    pub fn follow(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        starting: &HashSet<String>,
        last_status: &PodStatus,
    ) {
        let Some(pod_spec) = &pod.spec else { return };
        if !spec::containers(pod_spec).any(|(_, container)| kinds(container).next().is_some()) {
            return;
        }
        let mut pods = self.pods();
        let pod_probes = pods.entry(spec::uid(pod).to_owned()).or_default();
        // A container of unknown state may be running.
        let has_exited =
            |run: &observed::Container| !run.is_running() && run.state != State::Unknown;
        let is_running =
            |id: &str| observed.containers.iter().any(|run| run.id == id && !has_exited(run));
        let before = pod_probes.runs.len();
        pod_probes.runs.retain(|id, _| is_running(id));
        if pod_probes.runs.len() < before {
            pod_probes.results.send_if_modified(|results| {
                Arc::make_mut(results).retain(is_running);
                // Workers know of the end of the run, so they are not notified.
                false
            });
        }
        for run in &observed.containers {
            let State::Running { started_at } = run.state else { continue };
            let Some((kind, container)) = spec::container(pod, &run.name) else { continue };
            let is_probed = matches!(kind, ContainerKind::Regular | ContainerKind::Sidecar);
            if !is_probed || starting.contains(&run.name) || pod_probes.runs.contains_key(&run.id) {
                continue;
            }
            let is_old = started_at < self.began;
            if is_old {
                pod_probes.restore_results(&container, &run.id, last_status);
            }
            let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.id == run.sandbox_id);
            let host_ips = self.host_ips.get();
            let ip = sandbox.map(|sandbox| sandbox.address(&host_ips)).unwrap_or_default();
            let subject = Subject {
                pod: identity(pod),
                kind,
                container: probed_fields(&container),
                id: run.id.clone(),
                ip: ip.to_owned(),
                started_at,
            };
            let tasks = self.start(pod_probes, Arc::new(subject), is_old);
            pod_probes.runs.insert(run.id.clone(), tasks);
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
            ProbeKind::Liveness => !pod.terminating,
            ProbeKind::Startup => {
                !pod.terminating
                    && results.get(&subject.id, ProbeKind::Startup) == ProbeResult::Unknown
            }
        };
        let begin = |(kind, probe): (ProbeKind, &Probe)| {
            let task = Task {
                handlers: self.handlers.clone(),
                pod_events: self.pod_events.clone(),
                results: pod.results.clone(),
                subject: subject.clone(),
                kind,
                early: self.early && kind == ProbeKind::Readiness,
                metrics: self.metrics.clone(),
            };
            // A daemon that starts finds all containers at once; their probes are spread.
            let delay =
                if is_old { period(probe).mul_f64(fastrand::f64()) } else { Duration::ZERO };
            (kind, AbortOnDropHandle::new(tokio::spawn(task.keep_running(delay))))
        };
        kinds(&subject.container).filter(|(kind, _)| is_due(kind)).map(begin).collect()
    }

    /// The pod is terminating: its containers will not be restarted, so only readiness is still
    /// probed.
    pub fn stop_liveness_and_startup(&self, uid: &str) {
        let mut pods = self.pods();
        let pod = pods.entry(uid.to_owned()).or_default();
        pod.terminating = true;
        for tasks in pod.runs.values_mut() {
            tasks.retain(|(kind, _)| *kind == ProbeKind::Readiness);
        }
    }

    /// Stop all probes of the pod and remove their results.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
        self.metrics.forget(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, PodProbes>> {
        self.pods.lock()
    }
}

impl PodProbes {
    /// Set the results that the last status has for this run.
    fn restore_results(&self, container: &Container, id: &str, last_status: &PodStatus) {
        let statuses = [&last_status.container_statuses, &last_status.init_container_statuses];
        let is_it = |status: &&ContainerStatus| {
            let container_id = status.container_id.as_deref().unwrap_or_default();
            status.name == container.name
                && container_id.split_once("://").is_some_and(|(_, it)| it == id)
        };
        let Some(status) = statuses.into_iter().flatten().flatten().find(is_it) else { return };
        let reported = [
            (ProbeKind::Startup, status.started == Some(true), container.startup_probe.is_some()),
            (ProbeKind::Readiness, status.ready, container.readiness_probe.is_some()),
        ];
        self.results.send_if_modified(|results| {
            let results = Arc::make_mut(results);
            let restored =
                reported.into_iter().filter(|(_, holds, has_probe)| *holds && *has_probe);
            restored.fold(false, |changed, (kind, ..)| {
                results.set(id, kind, ProbeResult::Success) || changed
            })
        });
    }
}

/// The probes of a container.
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

/// The metadata of a pod that events need; tasks are long-lived, and pods are large.
fn identity(pod: &Pod) -> Pod {
    let ObjectMeta { name, namespace, uid, resource_version, .. } = pod.metadata.clone();
    let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
    Pod { metadata, ..Pod::default() }
}

/// The fields of a container that its probes need.
fn probed_fields(container: &Container) -> Container {
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
