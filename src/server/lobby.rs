//! How many connections a port holds. Those that have not yet shown leave for anything are few, and
//! the oldest of them makes way for a new one: a crowd that only waits keeps nobody out.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The connections of a port.
pub(super) struct Lobby {
    waiting: Mutex<Waiting>,
    most_waiting: usize,
    inside: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    /// By their number, which grows: the first is the oldest.
    connections: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// A connection's place; given back when it is dropped.
pub(super) struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    /// Held from the first request that was let through.
    inside: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Lobby {
    /// Takes `waiting` connections that have shown nothing, and `inside` of the others.
    pub(super) fn new(waiting: usize, inside: usize) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            most_waiting: waiting,
            inside: Arc::new(Semaphore::new(inside)),
        })
    }

    /// A place for a new connection, and a future that ends when it has to make way.
    pub(super) fn enter(self: &Arc<Self>) -> (Seat, impl Future<Output = ()> + Send + use<>) {
        let (sender, told) = oneshot::channel();
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.connections.insert(number, sender);
        if waiting.connections.len() > self.most_waiting
            && let Some((_, oldest)) = waiting.connections.pop_first()
        {
            // one that is gone already has made way
            let _ = oldest.send(());
        }
        let seat = Seat { lobby: Arc::clone(self), number, inside: Mutex::default() };
        let makes_way = async move {
            if told.await.is_err() {
                // it went inside
                pending::<()>().await;
            }
        };
        (seat, makes_way)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The connection has shown leave for something; `false`: there are too many of its kind.
    pub(super) fn go_inside(&self) -> bool {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.is_none() {
            *inside = Arc::clone(&self.lobby.inside).try_acquire_owned().ok();
            if inside.is_some() {
                self.lobby.waiting().connections.remove(&self.number);
            }
        }
        inside.is_some()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.waiting().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_that_waits_makes_way() {
        let lobby = Lobby::new(2, 1);
        let (first, mut first_leaves) = {
            let (seat, leaves) = lobby.enter();
            (seat, Box::pin(leaves))
        };
        let (second, second_leaves) = lobby.enter();
        let mut second_leaves = Box::pin(second_leaves);
        assert!(first.go_inside() && first.go_inside());
        assert!(!second.go_inside(), "one place inside");
        let (_third, third_leaves) = lobby.enter();
        let mut third_leaves = Box::pin(third_leaves);
        assert!(second_leaves.as_mut().now_or_never().is_none());
        let (fourth, _leaves) = lobby.enter();
        assert!(second_leaves.as_mut().now_or_never().is_some());
        assert!(first_leaves.as_mut().now_or_never().is_none(), "who is inside stays");
        drop(fourth);
        let (_fifth, _leaves) = lobby.enter();
        assert!(third_leaves.as_mut().now_or_never().is_none(), "there was a free place");
        drop((first, second));
        assert_eq!(lobby.inside.available_permits(), 1);
        assert_eq!(lobby.waiting().connections.len(), 2);
    }
}
