//! Limits how many pods are started, and how many containers are stopped, in parallel. A container
//! runtime starts a hundred pods at once no sooner than a few at a time: its work on each grows with the
//! number of requests, and all pods become ready late. A pod acquires a slot before its sandbox is
//! created, and releases it once its first container runs. If a hundred containers are stopped at once,
//! all networks are released at the end, which plugins do one after the other, while the CPU is idle.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Slots per CPU; containerd was fastest with this number.
const PER_CPU: usize = 4;
/// Time after which a slot is released: a pod that takes longer to start waits for something other than
/// the CPU, or hangs.
const MAX_START: Duration = Duration::from_secs(2);
/// A container that takes longer to stop makes use of its grace period. This bounds, too, how long the
/// stop signals of a node's containers are delayed.
const MAX_STOP: Duration = Duration::from_millis(250);

/// Limit of parallel starts of pods, or stops of containers, on a node.
#[derive(Clone, Debug)]
pub struct Limiter {
    slots: Arc<Semaphore>,
    /// After that time a slot is released.
    max_hold: Duration,
}

impl Limiter {
    /// The limit of starts on this machine.
    pub fn of_starts() -> Self {
        Self::new(default_count(), MAX_START)
    }

    /// The limit of stops on this machine.
    pub fn of_stops() -> Self {
        Self::new(default_count(), MAX_STOP)
    }

    pub(crate) fn new(count: usize, max_hold: Duration) -> Self {
        Self { slots: Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))), max_hold }
    }

    /// The number of free slots.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.slots.available_permits()
    }

    /// A slot, not acquired yet.
    pub(super) fn slot(&self) -> Arc<Slot> {
        Arc::new(Slot { limiter: self.clone(), permit: Mutex::default() })
    }
}

fn default_count() -> usize {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    cpus.saturating_mul(PER_CPU).max(2 * PER_CPU)
}

/// The slot of one start or stop.
#[derive(Debug)]
pub(super) struct Slot {
    limiter: Limiter,
    /// Releases the permit when it ends, at the latest after `max_hold`.
    permit: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Slot {
    /// Waits for a slot, in order of arrival, and acquires it.
    pub(super) async fn acquire(&self) {
        // The semaphore is never closed.
        let Ok(permit) = self.limiter.slots.clone().acquire_owned().await else { return };
        let max_hold = self.limiter.max_hold;
        let held = tokio::spawn(async move {
            sleep(max_hold).await;
            drop(permit);
        });
        self.set_permit(Some(AbortOnDropHandle::new(held)));
    }

    /// Releases the slot.
    pub(super) fn release(&self) {
        self.set_permit(None);
    }

    fn set_permit(&self, held: Option<AbortOnDropHandle<()>>) {
        *self.permit.lock() = held;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn slot_is_free_after_its_release() {
        let limiter = Limiter::new(2, MAX_START);
        let pods = [limiter.slot(), limiter.slot(), limiter.slot(), limiter.slot()];
        pods[0].acquire().await;
        pods[1].acquire().await;
        let mut third = Box::pin(pods[2].acquire());
        let mut fourth = Box::pin(pods[3].acquire());
        assert_eq!(poll!(third.as_mut()), Poll::Pending);
        assert_eq!(poll!(fourth.as_mut()), Poll::Pending);
        pods[0].release();
        pods[0].release();
        third.await;
        assert_eq!(poll!(fourth.as_mut()), Poll::Pending);
        pods[1].release();
        fourth.await;
    }

    #[tokio::test]
    async fn slot_is_released_after_a_timeout_or_a_drop() {
        let limiter = Limiter::new(1, MAX_START);
        let (hangs, ends, next) = (limiter.slot(), limiter.slot(), limiter.slot());
        hangs.acquire().await;
        ends.acquire().await; // after the timeout
        drop(ends);
        next.acquire().await;
    }
}
