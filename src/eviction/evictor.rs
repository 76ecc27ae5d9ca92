//! Brings pods to their end for the node's sake, and waits until that has come.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_client::events::PodEventRecorder;
use longshore_pod::eviction::REASON;
use longshore_pod::spec::{self, describe};
use longshore_pod::status::Verdict;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::Metrics;
use crate::terminator::{PodTerminator, Termination};

/// Grace of a pod that has to go at once.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);
/// How long a pod may take to give back what it has, once its grace is over.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// How often it is asked whether its volumes are gone.
const POLL: Duration = Duration::from_millis(100);

/// Why a pod has to go.
pub(super) struct Sentence {
    /// What showed it, by the name under which it is counted.
    pub(super) signal: &'static str,
    pub(super) message: String,
    /// For the event.
    pub(super) annotations: BTreeMap<String, String>,
    /// How long its containers may take; `None`: as long as the pod itself allows.
    pub(super) grace: Option<Duration>,
    /// Whether it is no fault of the pod's own.
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
    /// Pods that were told to go, by UID, and the grace that they were given.
    told: Mutex<HashMap<String, Option<Duration>>>,
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
        let (pods_dir, told) = (root_dir.join("pods"), Mutex::default());
        let shared = Shared { desired, observer, terminator, pod_events, pods_dir, told, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Pods of which something runs.
    pub(super) fn active(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.shared.desired.pods();
        // No code panics while it holds the lock.
        let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.is_empty() {
            told.retain(|uid, _| pods.iter().any(|pod| spec::uid(pod) == uid));
        }
        drop(told);
        let observer = &self.shared.observer;
        pods.retain(|pod| observer.pod(spec::uid(pod)).is_some_and(|seen| seen.is_active()));
        pods
    }

    /// Tell the pod to go. A critical one stays, and one that was told already is told again only
    /// to hurry.
    pub(super) fn evict(&self, pod: &Pod, sentence: Sentence) -> bool {
        if spec::is_critical(pod) {
            warn!(pod = describe(pod), "the pod is critical and stays");
            return false;
        }
        let Sentence { signal, message, annotations, grace, disruption } = sentence;
        let uid = spec::uid(pod);
        let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sooner = |known: &Option<Duration>| match (known, grace) {
            (Some(known), Some(grace)) => grace < *known,
            (known, _) => known.is_none() && grace.is_some(),
        };
        if told.get(uid).is_some_and(|known| !is_sooner(known)) {
            return false;
        }
        let mut verdict = Verdict::failed(REASON, message.clone());
        verdict.disruption = disruption.then(|| message.clone());
        if !self.shared.terminator.terminate(uid, Termination { verdict, grace }) {
            return false;
        }
        if told.insert(uid.to_owned(), grace).is_none() {
            self.shared.metrics.evicted(signal);
        }
        drop(told);
        info!(pod = describe(pod), ?grace, message, "pod is evicted");
        self.shared.pod_events.pod_warning_with(pod, REASON, &message, annotations);
        true
    }

    /// Until the pod has given back what it had, or has had time enough to do so.
    pub(super) async fn ended(&self, pod: &Pod, grace: Option<Duration>) {
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let own = time::seconds(own.filter(|own| *own >= 0).unwrap_or(30));
        let uid = spec::uid(pod);
        let ending = async {
            let mut seen = self.shared.observer.subscribe(uid);
            let _ = seen.wait_for(|pod| !pod.is_active()).await; // or the daemon stops
            let volumes = self.shared.pods_dir.join(uid).join("volumes");
            while tokio::fs::try_exists(&volumes).await.unwrap_or(false) {
                sleep(POLL).await;
            }
        };
        match timeout(grace.unwrap_or(own).saturating_add(CLEAN_UP), ending).await {
            Ok(()) => info!(pod = describe(pod), "the pod has given back what it had"),
            Err(_) => warn!(pod = describe(pod), "the pod has not given back what it had in time"),
        }
    }
}
