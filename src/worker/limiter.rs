//! Limits how many pods are started, and how many are stopped, in parallel. A container runtime starts a
//! hundred pods at once no sooner than a few at a time: its work on each grows with the number of
//! requests, and all pods become ready late. A pod acquires a slot before its sandbox is created, and
//! releases it once its first container runs. It acquires one before its first container is stopped,
//! and releases it once its sandbox is: if a hundred containers are stopped at once, all networks are
//! released at the end, which plugins do one after the other, while CPUs are idle.

use std::num::NonZero;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use procfs::{Current, LoadAverage};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Slots per CPU; containerd was fastest with this number.
const PER_CPU: usize = 4;
/// Time after which a slot is released: a pod that takes longer to start waits for something other than
/// the CPU, or hangs.
const MAX_START: Duration = Duration::from_secs(2);
/// The same for one that is stopped.
const MAX_STOP: Duration = Duration::from_secs(2);
/// A slot for a stop is released, too, if a CPU is idle at such a time after it was acquired: then the
/// pod waits for its containers, which make use of their grace period.
const IDLE_CHECK: Duration = Duration::from_millis(50);

/// Limit of parallel starts, or stops, of pods on a node.
#[derive(Clone, Debug)]
pub struct Limiter {
    slots: Arc<Semaphore>,
    /// After that time a slot is released.
    max_hold: Duration,
    /// Whether it is released before, looked up every `IDLE_CHECK`.
    released_if: fn() -> bool,
}

impl Limiter {
    /// The limit of starts on this machine.
    pub fn of_starts() -> Self {
        Self::new(default_count(), MAX_START, || false)
    }

    /// The limit of stops on this machine.
    pub fn of_stops() -> Self {
        Self::new(default_count(), MAX_STOP, is_cpu_idle)
    }

    pub(crate) fn new(count: usize, max_hold: Duration, released_if: fn() -> bool) -> Self {
        let slots = Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self { slots, max_hold, released_if }
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

/// The CPUs of this process when it was first asked for them, which takes reading a dozen files.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

fn default_count() -> usize {
    cpus().saturating_mul(PER_CPU).max(2 * PER_CPU)
}

/// Whether fewer threads can run than there are CPUs, apart from this one.
fn is_cpu_idle() -> bool {
    LoadAverage::current()
        .is_ok_and(|load| usize::try_from(load.cur).is_ok_and(|running| running <= cpus()))
}

/// The slot of one start or stop.
#[derive(Debug)]
pub(super) struct Slot {
    limiter: Limiter,
    /// Releases the permit when it ends, at the latest after `max_hold`.
    permit: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Slot {
    /// Waits for a slot, in order of arrival, and acquires it. One that is held is kept.
    pub(super) async fn acquire(&self) {
        if self.permit.lock().as_ref().is_some_and(|held| !held.is_finished()) {
            return;
        }
        // The semaphore is never closed.
        let Ok(permit) = self.limiter.slots.clone().acquire_owned().await else { return };
        let Limiter { max_hold, released_if, .. } = self.limiter;
        let held = tokio::spawn(async move {
            let idle = async {
                loop {
                    sleep(IDLE_CHECK).await;
                    if released_if() {
                        return;
                    }
                }
            };
            let _ = timeout(max_hold, idle).await;
            drop(permit);
        });
        self.set_permit(Some(AbortOnDropHandle::new(held)));
    }

    /// The same, for so long at most: then the pod goes on without one.
    pub(super) async fn acquire_within(&self, wait: Duration) {
        let _ = timeout(wait, self.acquire()).await;
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
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn slot_is_free_after_its_release() {
        let limiter = Limiter::new(2, MAX_START, || false);
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
        let limiter = Limiter::new(1, MAX_START, || false);
        let (hangs, ends, next) = (limiter.slot(), limiter.slot(), limiter.slot());
        hangs.acquire().await;
        ends.acquire().await; // after the timeout
        drop(ends);
        next.acquire().await;
    }

    #[tokio::test(start_paused = true)]
    async fn slot_is_released_when_a_cpu_is_idle() {
        for (released_if, waited) in [(is_idle as fn() -> bool, IDLE_CHECK), (|| false, MAX_STOP)] {
            let limiter = Limiter::new(1, MAX_STOP, released_if);
            let (first, second) = (limiter.slot(), limiter.slot());
            let start = Instant::now();
            first.acquire().await;
            first.acquire().await; // it is held
            second.acquire().await;
            assert_eq!(start.elapsed(), waited);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slot_is_waited_for_as_long_as_is_said() {
        let short = Duration::from_secs(1);
        for (wait, waited, free) in [(short, short, 1), (Duration::MAX, MAX_STOP, 0)] {
            let limiter = Limiter::new(1, MAX_STOP, || false);
            let (first, second) = (limiter.slot(), limiter.slot());
            let start = Instant::now();
            first.acquire().await;
            second.acquire_within(wait).await;
            assert_eq!(start.elapsed(), waited);
            first.release();
            tokio::task::yield_now().await;
            assert_eq!(limiter.free(), free);
        }
    }

    fn is_idle() -> bool {
        true
    }
}
