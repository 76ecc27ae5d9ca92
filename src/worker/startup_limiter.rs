//! How many pods are in the making at once. A runtime that is asked to make a hundred does it no
//! sooner than one that is asked to make a few after the other: its work on each grows with what
//! is under way, and every pod is finished last. So a pod takes a place before its sandbox is
//! made, and gives it back once its first container runs.

use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// As many for each CPU as made containerd quickest.
const PER_CPU: usize = 4;
/// A pod that takes longer waits for something else than the runtime's CPU, or hangs, and holds
/// nobody up.
const HELD: Duration = Duration::from_secs(2);

/// The startup_limiter of a node.
#[derive(Clone, Debug)]
pub struct StartupLimiter(Arc<Semaphore>);

impl Default for StartupLimiter {
    fn default() -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(cpus.saturating_mul(PER_CPU).max(2 * PER_CPU))
    }
}

impl StartupLimiter {
    fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))))
    }

    /// The place of a pod, which it has yet to take.
    pub(super) fn place(&self) -> Arc<StartupSlot> {
        Arc::new(StartupSlot { startup_limiter: self.clone(), held: Mutex::default() })
    }
}

/// The place of one pod.
#[derive(Debug)]
pub(super) struct StartupSlot {
    startup_limiter: StartupLimiter,
    /// Gives it back by its end, at the latest in due time.
    held: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl StartupSlot {
    /// Wait for a place, those that came before first, and take it.
    pub(super) async fn take(&self) {
        // Never closed; and to go on without a place would harm nobody.
        let Ok(permit) = self.startup_limiter.0.clone().acquire_owned().await else { return };
        let held = tokio::spawn(async move {
            sleep(HELD).await;
            drop(permit);
        });
        self.hold(Some(AbortOnDropHandle::new(held)));
    }

    /// Let the next one have it.
    pub(super) fn give_back(&self) {
        self.hold(None);
    }

    fn hold(&self, held: Option<AbortOnDropHandle<()>>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_place_is_had_once_another_pod_has_given_it_back() {
        let startup_limiter = StartupLimiter::new(2);
        let pods = [
            startup_limiter.place(),
            startup_limiter.place(),
            startup_limiter.place(),
            startup_limiter.place(),
        ];
        pods[0].take().await;
        pods[1].take().await;
        let mut third = Box::pin(pods[2].take());
        let mut fourth = Box::pin(pods[3].take());
        assert_eq!(poll!(third.as_mut()), Poll::Pending);
        assert_eq!(poll!(fourth.as_mut()), Poll::Pending);
        pods[0].give_back();
        pods[0].give_back();
        third.await;
        assert_eq!(poll!(fourth.as_mut()), Poll::Pending);
        pods[1].give_back();
        fourth.await;
    }

    #[tokio::test]
    async fn one_that_hangs_or_ends_holds_nobody_up() {
        let startup_limiter = StartupLimiter::new(1);
        let (hangs, ends, next) =
            (startup_limiter.place(), startup_limiter.place(), startup_limiter.place());
        hangs.take().await;
        ends.take().await; // in due time
        drop(ends);
        next.take().await;
    }
}
