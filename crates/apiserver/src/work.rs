//! Work that keeps a processor busy for longer than a request may keep others waiting: reading large
//! bodies, patching large objects, writing long lists. It is done on a thread of its own, so that the
//! few threads of the runtime go on with everybody else's requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// From this many bytes on, work counts as large. Below, changing threads costs more than the work.
pub(crate) const LARGE: usize = 64 << 10;
/// How many requests of one kind of callers do large work at a time.
pub(crate) const AT_A_TIME: usize = 2;
/// The most threads that large work takes: the runtime's blocking threads serve the store as well.
const MOST_THREADS: usize = 3 * AT_A_TIME;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Does work on this many bytes, here or, when they are many, on a thread of its own. Without a free
/// thread it is done here.
pub(crate) fn run<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes < LARGE || !may_block() {
        return work();
    }
    match Thread::take() {
        Some(_thread) => block_in_place(work),
        None => work(),
    }
}

/// Whether the runtime has other threads to go on with.
fn may_block() -> bool {
    Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// One of the threads, until it is dropped.
struct Thread;

impl Thread {
    fn take() -> Option<Thread> {
        let more = |count: usize| (count < MOST_THREADS).then_some(count + 1);
        THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Thread)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    // Finding 7
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_work_keeps_nobody_waiting() {
        let works = tokio::spawn(async {
            run(LARGE, || std::thread::sleep(Duration::from_secs(1)));
        });
        let started = Instant::now();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(started.elapsed() < Duration::from_millis(900), "{:?}", started.elapsed());
        assert!(works.await.is_ok());
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_does_it_itself() {
        assert_eq!(run(LARGE, || 7), 7);
    }

    #[test]
    fn so_does_a_thread_without_a_runtime() {
        assert_eq!(run(LARGE, || 7), 7);
    }
}
