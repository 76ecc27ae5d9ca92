//! Limits how many pods are started in parallel. A container runtime starts a hundred pods at once no
//! sooner than a few at a time: its work on each grows with the number of requests, and all pods become
//! ready late. A pod acquires a slot before its sandbox is created, and releases it once its first
//! container runs.

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
/// Time after which a slot is released: a pod that takes longer waits for something other than the
/// CPU, or hangs.
const MAX_HOLD: Duration = Duration::from_secs(2);

/// Limit of parallel pod starts on a node.
#[derive(Clone, Debug)]
pub struct StartupLimiter(Arc<Semaphore>);

impl Default for StartupLimiter {
    fn default() -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(cpus.saturating_mul(PER_CPU).max(2 * PER_CPU))
    }
}

impl StartupLimiter {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))))
    }

    /// The number of free slots.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.available_permits()
    }

    /// A slot for a pod, not acquired yet.
    pub(super) fn slot(&self) -> Arc<StartupSlot> {
        Arc::new(StartupSlot { startup_limiter: self.clone(), permit: Mutex::default() })
    }
}

/// The slot of one pod.
#[derive(Debug)]
pub(super) struct StartupSlot {
    startup_limiter: StartupLimiter,
    /// Releases the permit when it ends, at the latest after `MAX_HOLD`.
    permit: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl StartupSlot {
    /// Waits for a slot, in order of arrival, and acquires it.
    pub(super) async fn acquire(&self) {
        // The semaphore is never closed.
        let Ok(permit) = self.startup_limiter.0.clone().acquire_owned().await else { return };
        let held = tokio::spawn(async move {
            sleep(MAX_HOLD).await;
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
    async fn startup_limiter_slot_is_free_after_its_release() {
        let startup_limiter = StartupLimiter::new(2);
        let pods = [
            startup_limiter.slot(),
            startup_limiter.slot(),
            startup_limiter.slot(),
            startup_limiter.slot(),
        ];
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
    async fn startup_limiter_slot_is_released_after_a_timeout_or_a_drop() {
        let startup_limiter = StartupLimiter::new(1);
        let (hangs, ends, next) =
            (startup_limiter.slot(), startup_limiter.slot(), startup_limiter.slot());
        hangs.acquire().await;
        ends.acquire().await; // after the timeout
        drop(ends);
        next.acquire().await;
    }
}
