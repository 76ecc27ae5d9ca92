//! Termination of pods by admission and eviction: a [`PodTerminator`] sends to the pod workers. The pool
//! adds and removes workers, and sends them updates of their pods.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::status::Verdict;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

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
    /// The pod is to be terminated for this reason.
    pub(crate) termination: Option<Termination>,
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
        let (orders, order) =
            watch::channel(Order { pod: Arc::default(), gone: false, termination: None });
        self.workers().insert(uid.to_owned(), orders);
        move || order.borrow().termination.clone()
    }

    /// The workers by the UID of their pod.
    pub(crate) fn workers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Order>>> {
        self.workers.lock()
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
