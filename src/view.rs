//! The server's view of the daemon: pods with their latest status, logs, and the health of the sync
//! loop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_server::{Host, NodeMetrics, StatsEndpoints};
use tokio::sync::watch;

use crate::status::StatusWriter;

/// Age of the last iteration from which on the sync loop is unhealthy.
const STUCK: Duration = Duration::from_secs(120);

/// Read-only handles for the server.
pub struct View {
    desired: Desired,
    status: StatusWriter,
    observer: Observer,
    pulse: watch::Receiver<Instant>,
    metrics: NodeMetrics,
    stats: StatsEndpoints,
}

impl View {
    /// `pulse` is the time of the last iteration of the sync loop.
    pub fn new(
        desired: Desired,
        status: StatusWriter,
        observer: Observer,
        pulse: watch::Receiver<Instant>,
        metrics: NodeMetrics,
        stats: StatsEndpoints,
    ) -> Self {
        Self { desired, status, observer, pulse, metrics, stats }
    }

    fn with_status(&self, pod: Arc<Pod>) -> Arc<Pod> {
        match self.status.latest(spec::uid(&pod)) {
            Some(status) => Arc::new(Pod { status: Some(status), ..Pod::clone(&pod) }),
            None => pod,
        }
    }
}

impl Host for View {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.desired.pods().into_iter().map(|pod| self.with_status(pod)).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.desired.pod_by_name(namespace, name).map(|pod| self.with_status(pod))
    }

    fn observed(&self, uid: &str) -> Option<Arc<ObservedPod>> {
        self.observer.pod(uid)
    }

    fn observed_pods(&self) -> Vec<Arc<ObservedPod>> {
        self.observer.all()
    }

    fn log_path(&self, container_id: &str) -> Option<PathBuf> {
        let path = self.observer.container(container_id)?.log_path;
        (!path.is_empty()).then(|| path.into())
    }

    fn until_ended(&self, uid: &str, container_id: &str) -> BoxFuture<'static, ()> {
        let (mut pod, id) = (self.observer.subscribe(uid), container_id.to_owned());
        Box::pin(async move {
            let runs = |pod: &ObservedPod| {
                pod.containers.iter().any(|container| container.id == id && container.is_running())
            };
            let _ = pod.wait_for(|pod| !runs(pod)).await; // an error: the daemon stops
        })
    }

    fn metrics(&self) -> &NodeMetrics {
        &self.metrics
    }

    fn healthy(&self) -> Result<(), String> {
        let age = self.pulse.borrow().elapsed();
        let turns = age < STUCK;
        for (check, passed) in [("ping", true), ("log", true), ("syncloop", turns)] {
            self.metrics.healthchecks.checked(check, "healthz", passed);
        }
        match turns {
            true => Ok(()),
            false => Err(format!("the pod workers' loop has not turned for {} s", age.as_secs())),
        }
    }
    fn stats_endpoints(&self) -> Option<StatsEndpoints> {
        Some(self.stats.clone())
    }
}
