//! The one owner of what the probes of containers have found: a task a probe, and each pod's results
//! as a watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use longshore_pod::observed::ObservedPod;
use longshore_pod::probes::ProbeResults;
use tokio::sync::watch;

use crate::handlers::Handlers;
use crate::runtime::Announcer;

/// Handle to the probes of all pods. Cheap to clone.
#[derive(Clone)]
pub struct Probes {
    #[allow(dead_code)]
    handlers: Handlers,
    #[allow(dead_code)]
    announcer: Announcer,
    pods: Arc<Mutex<HashMap<String, watch::Sender<Arc<ProbeResults>>>>>,
}

impl Probes {
    /// Nothing is probed yet.
    pub fn new(handlers: Handlers, announcer: Announcer) -> Self {
        Self { handlers, announcer, pods: Arc::default() }
    }

    /// What the probes of a pod have found, and every change to it.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<ProbeResults>> {
        self.pods().entry(uid.to_owned()).or_default().subscribe()
    }

    /// Probe the containers of the pod that run, and no others any more. A run that `told` shows as
    /// started and ready is taken for that until its probes say otherwise, if it is older than the
    /// daemon.
    pub fn follow(&self, _pod: &Arc<Pod>, _observed: &ObservedPod, _told: &PodStatus) {}

    /// The pod comes to its end: nothing of it is to be restarted any more, so only its readiness
    /// is still looked at.
    pub fn wind_down(&self, _uid: &str) {}

    /// Stop all probes of the pod and forget what they have found.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Arc<ProbeResults>>>> {
        // No code panics while it holds the lock.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
