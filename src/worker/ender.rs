//! How other rooms bring a pod to its end, and how the pool reaches its workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{End, Order};

/// Handle by which a pod is ended. Cheap to clone; never waits.
#[derive(Clone, Debug, Default)]
pub struct Ender {
    workers: Arc<Mutex<HashMap<String, watch::Sender<Order>>>>,
}

impl Ender {
    /// End the pod with that UID. The first reason that is given stands; a shorter grace counts
    /// also later. Tells whether the pod has a worker that hears it.
    pub fn end(&self, uid: &str, end: End) -> bool {
        let workers = self.workers();
        let Some(worker) = workers.get(uid) else { return false };
        worker.send_modify(|order| match &mut order.end {
            None => order.end = Some(end),
            Some(known) => {
                known.grace = [known.grace, end.grace].into_iter().flatten().min();
            }
        });
        true
    }

    /// A worker of nobody's, for tests: gives what it was asked for.
    #[cfg(test)]
    pub(crate) fn listen(&self, uid: &str) -> impl Fn() -> Option<End> + use<> {
        let (orders, order) = watch::channel(Order { pod: Arc::default(), gone: false, end: None });
        self.workers().insert(uid.to_owned(), orders);
        move || order.borrow().end.clone()
    }

    /// The workers by the UID of their pod.
    pub(super) fn workers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Order>>> {
        // No code panics while it holds the lock.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use longshore_pod::status::Verdict;

    use super::*;

    #[test]
    fn the_first_reason_stands_and_the_shortest_grace() {
        let ender = Ender::default();
        let end = |reason: &str, grace: Option<u64>| End {
            verdict: Verdict::failed(reason, ""),
            grace: grace.map(Duration::from_secs),
        };
        assert!(!ender.end("u", end("Evicted", None)), "nobody hears it");
        let order = ender.listen("u");
        for (asked, expected) in [(None, None), (Some(9), Some(9)), (Some(30), Some(9))] {
            let reason = if asked.is_none() { "Evicted" } else { "Terminated" };
            assert!(ender.end("u", end(reason, asked)));
            assert_eq!(order(), Some(end("Evicted", expected)));
        }
    }
}
