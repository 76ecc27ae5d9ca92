//! A semaphore with fair queuing: permits are granted to callers in round-robin order, so that a caller
//! with many requests delays only its own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::budget::Holder;

/// A limited number of permits.
#[derive(Debug)]
pub struct FairQueue(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// Callers that wait, in round-robin order.
    order: VecDeque<Arc<str>>,
    /// Waiting requests by caller.
    waiting: HashMap<Arc<str>, VecDeque<oneshot::Sender<Permit>>>,
}

impl Queue {
    fn push(&mut self, name: &Arc<str>, sender: oneshot::Sender<Permit>) {
        let senders = self.waiting.entry(Arc::clone(name)).or_default();
        if senders.is_empty() {
            self.order.push_back(Arc::clone(name));
        }
        senders.push_back(sender);
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Permit>> {
        let name = self.order.pop_front()?;
        let senders = self.waiting.get_mut(&name)?;
        let sender = senders.pop_front();
        match senders.is_empty() {
            true => drop(self.waiting.remove(&name)),
            false => self.order.push_back(name),
        }
        sender
    }
}

impl FairQueue {
    /// With that number of permits.
    #[must_use]
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Queue { free: count, ..Queue::default() })))
    }

    /// Waits for a permit.
    pub async fn take(self: &Arc<Self>, holder: &Holder) -> Permit {
        let waiting = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Permit(Some(Arc::clone(self)));
            }
            let (sender, waiting) = oneshot::channel();
            state.push(holder.name(), sender);
            waiting
        };
        // the sender is in the queue until it is used
        waiting.await.unwrap_or(Permit(None))
    }

    fn state(&self) -> MutexGuard<'_, Queue> {
        self.0.lock()
    }
}

/// A permit, returned when it is dropped.
#[derive(Debug)]
pub struct Permit(Option<Arc<FairQueue>>);

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = queue.state();
                let next = state.pop();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Self(Some(Arc::clone(&queue)))) {
                Ok(()) => return,
                // that request was cancelled
                Err(mut permit) => permit.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::budget::Priority;

    fn holder(name: &str) -> Holder {
        Holder::new(name, Priority::Ordinary)
    }

    #[tokio::test(start_paused = true)]
    async fn fair_queue_is_fair_between_callers() {
        let queue = FairQueue::new(2);
        let work = async |name: &'static str| {
            let _permit = queue.take(&holder(name)).await;
            sleep(Duration::from_secs(1)).await;
        };
        let many = futures::future::join_all((0..100).map(|_| work("many")));
        let one = async {
            sleep(Duration::from_millis(500)).await;
            timeout(Duration::from_secs(3), work("one")).await.is_ok()
        };
        let started = tokio::time::Instant::now();
        let (_, is_in_time) = tokio::join!(many, one);
        assert!(is_in_time);
        assert_eq!(started.elapsed().as_secs(), 51, "two at a time");
        assert!(queue.state().waiting.is_empty() && queue.state().order.is_empty());
        assert_eq!(queue.state().free, 2);
    }

    #[tokio::test]
    async fn fair_queue_skips_cancelled_waiters() {
        let queue = FairQueue::new(1);
        let first = queue.take(&holder("a")).await;
        let wait = |name: &'static str| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.take(&holder(name)).await })
        };
        let (second, third) = (wait("b"), wait("c"));
        tokio::task::yield_now().await;
        second.abort();
        assert!(second.await.is_err());
        drop(first);
        drop(third.await.unwrap());
        // a permit that was granted to a cancelled request is passed on
        let held = queue.take(&holder("a")).await;
        let other = holder("b");
        let mut late = Box::pin(queue.take(&other));
        assert!(futures::poll!(&mut late).is_pending());
        drop(held);
        drop(late);
        assert_eq!(queue.state().free, 1);
    }
}
