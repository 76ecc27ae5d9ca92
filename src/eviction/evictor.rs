//! Evicts pods, and waits for their termination.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_client::events::PodEventRecorder;
use longshore_pod::eviction::REASON;
use longshore_pod::spec::{self, describe};
use longshore_pod::status::Verdict;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use parking_lot::Mutex;
use tokio::time::timeout;
use tracing::{info, warn};

use super::Metrics;
use crate::terminator::{PodTerminator, Termination, released};

/// Grace period of a hard eviction.
pub(super) const IMMEDIATE: Duration = Duration::from_secs(1);
/// How long a pod may take to release its resources after its grace period.
const CLEAN_UP: Duration = Duration::from_secs(30);

/// Request to evict a pod.
pub(super) struct EvictionRequest {
    /// Eviction signal, the label of the metrics.
    pub(super) signal: &'static str,
    pub(super) message: String,
    /// Annotations of the event.
    pub(super) annotations: BTreeMap<String, String>,
    /// Grace period; `None`: the pod's own.
    pub(super) grace: Option<Duration>,
    /// Whether the pod gets the condition `DisruptionTarget`.
    pub(super) disruption: bool,
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Evictor {
    shared: Arc<Shared>,
}

struct Shared {
    desired: Desired,
    observer: Observer,
    terminator: PodTerminator,
    pod_events: PodEventRecorder,
    pods_dir: PathBuf,
    /// Pods that are being evicted, by UID, and their grace periods.
    evicting: Mutex<HashMap<String, Option<Duration>>>,
    metrics: Metrics,
}

impl Evictor {
    pub(super) fn new(
        desired: Desired,
        observer: Observer,
        terminator: PodTerminator,
        pod_events: PodEventRecorder,
        root_dir: &Path,
        metrics: Metrics,
    ) -> Self {
        let (pods_dir, evicting) = (root_dir.join("pods"), Mutex::default());
        let shared =
            Shared { desired, observer, terminator, pod_events, pods_dir, evicting, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Pods with running containers.
    pub(super) fn active(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.shared.desired.pods();
        let mut evicting = self.shared.evicting.lock();
        if !evicting.is_empty() {
            evicting.retain(|uid, _| pods.iter().any(|pod| spec::uid(pod) == uid));
        }
        drop(evicting);
        let observer = &self.shared.observer;
        pods.retain(|pod| observer.pod(spec::uid(pod)).is_some_and(|seen| seen.is_active()));
        pods
    }

    /// Evicts the pod, unless it is critical. An eviction in progress is only updated with a shorter
    /// grace period.
    pub(super) fn evict(&self, pod: &Pod, request: EvictionRequest) -> bool {
        if spec::is_critical(pod) {
            warn!(pod = describe(pod), "cannot evict a critical pod");
            return false;
        }
        let EvictionRequest { signal, message, annotations, grace, disruption } = request;
        let uid = spec::uid(pod);
        let mut evicting = self.shared.evicting.lock();
        let is_sooner = |known: &Option<Duration>| match (known, grace) {
            (Some(known), Some(grace)) => grace < *known,
            (known, _) => known.is_none() && grace.is_some(),
        };
        if evicting.get(uid).is_some_and(|known| !is_sooner(known)) {
            return false;
        }
        let mut verdict = Verdict::failed(REASON, message.clone());
        verdict.disruption = disruption.then(|| message.clone());
        if !self.shared.terminator.terminate(uid, Termination { verdict, grace }) {
            return false;
        }
        if evicting.insert(uid.to_owned(), grace).is_none() {
            self.shared.metrics.evicted(signal);
        }
        drop(evicting);
        info!(pod = describe(pod), ?grace, message, "pod is evicted");
        self.shared.pod_events.pod_warning_with(pod, REASON, &message, annotations);
        true
    }

    /// Waits until the pod has released its resources, with a timeout.
    pub(super) async fn ended(&self, pod: &Pod, grace: Option<Duration>) {
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let own = time::seconds(own.filter(|own| *own >= 0).unwrap_or(30));
        let uid = spec::uid(pod);
        let ending = released(&self.shared.observer, &self.shared.pods_dir, uid);
        match timeout(grace.unwrap_or(own).saturating_add(CLEAN_UP), ending).await {
            Ok(()) => info!(pod = describe(pod), "evicted pod has terminated"),
            Err(_) => warn!(pod = describe(pod), "timeout waiting for an evicted pod to terminate"),
        }
    }
}
