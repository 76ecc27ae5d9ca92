//! Turns at work that only a few may do at a time. Callers wait in rotation: a caller with many
//! requests gets one turn for each turn of a caller with one, so that it delays nobody but itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::budget::Holder;

/// A number of turns.
#[derive(Debug)]
pub struct Turns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// Who waits, the next one first.
    order: VecDeque<Arc<str>>,
    /// What waits of each of them.
    waiting: HashMap<Arc<str>, VecDeque<oneshot::Sender<Turn>>>,
}

impl Queue {
    fn push(&mut self, name: &Arc<str>, sender: oneshot::Sender<Turn>) {
        let senders = self.waiting.entry(Arc::clone(name)).or_default();
        if senders.is_empty() {
            self.order.push_back(Arc::clone(name));
        }
        senders.push_back(sender);
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
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

impl Turns {
    /// So many turns at a time.
    #[must_use]
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Queue { free: count, ..Queue::default() })))
    }

    /// Waits for a turn. It ends when it is dropped.
    pub async fn take(self: &Arc<Self>, holder: &Holder) -> Turn {
        let waiting = {
            let mut queue = self.queue();
            if queue.free > 0 {
                queue.free -= 1;
                return Turn(Some(Arc::clone(self)));
            }
            let (sender, waiting) = oneshot::channel();
            queue.push(holder.name(), sender);
            waiting
        };
        // the sender is in the queue until it is used
        waiting.await.unwrap_or(Turn(None))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to work, until it is dropped.
#[derive(Debug)]
pub struct Turn(Option<Arc<Turns>>);

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        loop {
            let next = {
                let mut queue = turns.queue();
                let next = queue.pop();
                if next.is_none() {
                    queue.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Self(Some(Arc::clone(&turns)))) {
                Ok(()) => return,
                // that one waits no more
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::budget::Priority;

    fn holder(name: &str) -> Holder {
        Holder::new(name, Priority::Ordinary)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_with_many_requests_delays_itself() {
        let turns = Turns::new(2);
        let work = async |name: &'static str| {
            let _turn = turns.take(&holder(name)).await;
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
        assert!(turns.queue().waiting.is_empty() && turns.queue().order.is_empty());
        assert_eq!(turns.queue().free, 2);
    }

    #[tokio::test]
    async fn who_waits_no_more_gets_no_turn() {
        let turns = Turns::new(1);
        let first = turns.take(&holder("a")).await;
        let wait = |name: &'static str| {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take(&holder(name)).await })
        };
        let (second, third) = (wait("b"), wait("c"));
        tokio::task::yield_now().await;
        second.abort();
        assert!(second.await.is_err());
        drop(first);
        drop(third.await.unwrap());
        // a turn that was given to somebody who did not look is passed on as well
        let held = turns.take(&holder("a")).await;
        let other = holder("b");
        let mut late = Box::pin(turns.take(&other));
        assert!(futures::poll!(&mut late).is_pending());
        drop(held);
        drop(late);
        assert_eq!(turns.queue().free, 1);
    }
}
