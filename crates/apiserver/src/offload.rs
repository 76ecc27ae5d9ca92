//! Offloads CPU-bound work: reading large bodies, patching large objects, writing long lists. It is
//! done on a thread of its own, so that the few threads of the runtime can serve other requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_base::blocking;

/// From this many bytes on, work is offloaded. Below, changing threads costs more than the work.
pub(crate) const LARGE: usize = 64 << 10;
/// How many requests of one priority do large work at a time.
pub(crate) const MAX_CONCURRENT: usize = 2;
/// The most threads that large work takes: the runtime's blocking threads serve the store as well.
const MAX_THREADS: usize = 3 * MAX_CONCURRENT;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Does work on this many bytes: on a thread of its own if they are many and a thread is free, else
/// here.
pub(crate) fn run<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes < LARGE || !blocking::may_block() {
        return work();
    }
    match Thread::take() {
        Some(_thread) => blocking::in_place(work),
        None => work(),
    }
}

/// One of the threads, until it is dropped.
struct Thread;

impl Thread {
    fn take() -> Option<Thread> {
        let more = |count: usize| (count < MAX_THREADS).then_some(count + 1);
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
    async fn offload_large_work_does_not_block_the_runtime() {
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
    async fn offload_current_thread_runtime_runs_inline() {
        assert_eq!(run(LARGE, || 7), 7);
    }

    #[test]
    fn offload_without_runtime_runs_inline() {
        assert_eq!(run(LARGE, || 7), 7);
    }
}
