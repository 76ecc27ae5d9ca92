//! Termination of pods by admission, eviction and the shutdown of the node: a [`PodTerminator`] sends to
//! the pod workers. The pool adds and removes workers, and sends them updates of their pods.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::status::Verdict;
use longshore_podstate::observe::Observer;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::sleep;

/// Poll interval for the removal of volumes.
const POLL: Duration = Duration::from_millis(100);

/// A decision of the node to terminate a pod: eviction, preemption, shutdown, deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Reason and message of its final status.
    pub verdict: Verdict,
    /// Grace period, if not the pod's own.
    pub grace: Option<Duration>,
}

/// The desired state of a pod worker.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) pod: Arc<Pod>,
    /// The pod was removed from its source.
    pub(crate) gone: bool,
    /// It was added again after that: what the runtime has of it is left to its next worker.
    pub(crate) readded: bool,
    /// The pod is to be terminated for this reason.
    pub(crate) termination: Option<Termination>,
}

impl Order {
    /// The pod should run.
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        Self { pod, gone: false, readded: false, termination: None }
    }
}

/// Handle by which a pod is terminated. Cheap to clone; never waits.
#[derive(Clone, Debug, Default)]
pub struct PodTerminator {
    workers: Arc<Mutex<HashMap<String, watch::Sender<Order>>>>,
}

impl PodTerminator {
    /// Terminates the pod with that UID. The first reason is kept; a later request can only shorten the
    /// grace period. Returns whether the pod has a worker.
    pub fn terminate(&self, uid: &str, termination: Termination) -> bool {
        let workers = self.workers();
        let Some(worker) = workers.get(uid) else { return false };
        worker.send_modify(|order| match &mut order.termination {
            None => order.termination = Some(termination),
            Some(known) => {
                known.grace = [known.grace, termination.grace].into_iter().flatten().min();
            }
        });
        true
    }

    /// A worker for tests: the closure returns the requested termination.
    #[cfg(test)]
    pub(crate) fn listen(&self, uid: &str) -> impl Fn() -> Option<Termination> + use<> {
        let (orders, order) = watch::channel(Order::new(Arc::default()));
        self.workers().insert(uid.to_owned(), orders);
        move || order.borrow().termination.clone()
    }

    /// The workers by the UID of their pod.
    pub(crate) fn workers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Order>>> {
        self.workers.lock()
    }
}

/// Waits until nothing of a pod runs and its volumes are gone. `pods_dir`: the directory of pods.
pub(crate) async fn released(observer: &Observer, pods_dir: &Path, uid: &str) {
    let mut seen = observer.subscribe(uid);
    let _ = seen.wait_for(|pod| !pod.is_active()).await; // an error: the daemon stops
    let volumes = pods_dir.join(uid).join("volumes");
    while tokio::fs::try_exists(&volumes).await.unwrap_or(false) {
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminator_keeps_first_reason_and_shortest_grace() {
        let terminator = PodTerminator::default();
        let termination = |reason: &str, grace: Option<u64>| Termination {
            verdict: Verdict::failed(reason, ""),
            grace: grace.map(Duration::from_secs),
        };
        assert!(!terminator.terminate("u", termination("Evicted", None)), "no worker");
        let order = terminator.listen("u");
        for (asked, expected) in [(None, None), (Some(9), Some(9)), (Some(30), Some(9))] {
            let reason = if asked.is_none() { "Evicted" } else { "Terminated" };
            assert!(terminator.terminate("u", termination(reason, asked)));
            assert_eq!(order(), Some(termination("Evicted", expected)));
        }
    }
}
