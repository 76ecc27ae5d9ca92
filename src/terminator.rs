//! How the parts of the node that decide against a pod (admission, eviction) terminate it: they hold
//! a [`PodTerminator`], the sending side of what the workers receive. The pool of workers adds and
//! removes the workers of pods, and sends them what else they are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::status::Verdict;
use tokio::sync::watch;

/// A decision to terminate a pod for a reason of the node's own: eviction, preemption, shutdown,
/// deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// What its status says, once nothing of it runs any more.
    pub verdict: Verdict,
    /// How long its containers may take, if not as long as the pod itself allows.
    pub grace: Option<Duration>,
}

/// What the worker of a pod is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) pod: Arc<Pod>,
    /// The pod is gone from its source: leave nothing of it.
    pub(crate) gone: bool,
    /// The pod is to terminate, for this reason.
    pub(crate) termination: Option<Termination>,
}

/// Handle by which a pod is terminated. Cheap to clone; never waits.
#[derive(Clone, Debug, Default)]
pub struct PodTerminator {
    workers: Arc<Mutex<HashMap<String, watch::Sender<Order>>>>,
}

impl PodTerminator {
    /// Terminates the pod with that UID. The first reason that is given stands; a shorter grace
    /// counts also later. Returns whether the pod has a worker.
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

    /// A worker for tests: the closure gives the termination that it was asked for.
    #[cfg(test)]
    pub(crate) fn listen(&self, uid: &str) -> impl Fn() -> Option<Termination> + use<> {
        let (orders, order) =
            watch::channel(Order { pod: Arc::default(), gone: false, termination: None });
        self.workers().insert(uid.to_owned(), orders);
        move || order.borrow().termination.clone()
    }

    /// The workers by the UID of their pod.
    pub(crate) fn workers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Order>>> {
        // No code panics while it holds the lock.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_first_reason_stands_and_the_shortest_grace() {
        let terminator = PodTerminator::default();
        let termination = |reason: &str, grace: Option<u64>| Termination {
            verdict: Verdict::failed(reason, ""),
            grace: grace.map(Duration::from_secs),
        };
        assert!(!terminator.terminate("u", termination("Evicted", None)), "nobody hears it");
        let order = terminator.listen("u");
        for (asked, expected) in [(None, None), (Some(9), Some(9)), (Some(30), Some(9))] {
            let reason = if asked.is_none() { "Evicted" } else { "Terminated" };
            assert!(terminator.terminate("u", termination(reason, asked)));
            assert_eq!(order(), Some(termination("Evicted", expected)));
        }
    }
}
