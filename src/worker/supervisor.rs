//! Runs the workers of pods. A worker that panics is restarted with exponential backoff; the workers
//! of other pods are not affected. A new worker takes over what runs of its pod, as after a restart of
//! the daemon.

use k8s_openapi::jiff::SignedDuration;
use longshore_base::clock;
use longshore_base::panics::{self, Panicked};
use longshore_pod::backoff::Backoff;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Backoff of workers that panicked.
const RESTART_BASE: SignedDuration = SignedDuration::from_secs(1);
const RESTART_MAX: SignedDuration = SignedDuration::from_secs(60);

/// The start of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) uid: String,
    /// Whether the pod is an orphan.
    pub(super) is_orphan: bool,
}

/// Events of workers.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The worker has finished.
    Ended(String),
    /// It panicked. It is [`WorkerEvent::Due`] later.
    Panicked(String, Panicked),
    /// The restart of a worker that panicked is due.
    Due(Start),
}

/// The running workers, and those in backoff.
pub(super) struct Supervisor {
    running: JoinSet<(Start, Result<(), Panicked>)>,
    waiting: JoinSet<Start>,
    delays: Backoff<String>,
}

impl Supervisor {
    pub(super) fn new() -> Self {
        let delays = Backoff::new(RESTART_BASE, RESTART_MAX);
        Self { running: JoinSet::new(), waiting: JoinSet::new(), delays }
    }

    /// Starts a worker: `make` is called at once, its future runs as a task.
    pub(super) fn start<W>(&mut self, start: Start, make: impl FnOnce() -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let work = panics::contain_sync(make);
        self.running.spawn(async move {
            let result = match work {
                Ok(work) => panics::contain(work).await,
                Err(panicked) => Err(panicked),
            };
            (start, result)
        });
    }

    /// Waits for the next event. Pending while there are no workers.
    pub(super) async fn next(&mut self) -> WorkerEvent {
        let ended = tokio::select! {
            Some(Ok(due)) = self.waiting.join_next() => return WorkerEvent::Due(due),
            Some(Ok(ended)) = self.running.join_next() => ended,
            else => std::future::pending().await,
        };
        match ended {
            (start, Ok(())) => {
                self.delays.retain(|uid| *uid != start.uid);
                WorkerEvent::Ended(start.uid)
            }
            (start, Err(panicked)) => {
                let now = clock::now();
                self.delays.next(&start.uid, now, now);
                let delay = self.delays.delay(&start.uid).unsigned_abs();
                let uid = start.uid.clone();
                self.waiting.spawn(async move {
                    sleep(delay).await;
                    start
                });
                WorkerEvent::Panicked(uid, panicked)
            }
        }
    }

    /// Aborts all workers.
    pub(super) async fn shutdown(&mut self) {
        self.waiting.shutdown().await;
        self.running.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;

    fn start(uid: &str) -> Start {
        Start { uid: uid.to_owned(), is_orphan: uid == "orphan" }
    }

    /// Finding 13: a panic of one worker does not affect the others, and the worker is restarted.
    #[tokio::test(start_paused = true)]
    async fn worker_panic_restarts_that_worker_with_backoff() {
        let mut workers = Supervisor::new();
        workers.start(start("other"), || async { sleep(Duration::from_secs(1000)).await });
        let began = Instant::now();
        let mut delays = Vec::new();
        workers.start(start("orphan"), || -> std::future::Ready<()> { panic!("while it starts") });
        for _ in 0..8 {
            let WorkerEvent::Panicked(uid, _) = workers.next().await else { panic!("it panics") };
            assert_eq!(uid, "orphan");
            let paused = Instant::now();
            let WorkerEvent::Due(again) = workers.next().await else { panic!("it is due") };
            assert_eq!(again, start("orphan"), "as what it was");
            delays.push(paused.elapsed().as_secs());
            workers.start(again, || async { panic!("in its work") });
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(began.elapsed() < Duration::from_secs(1000));
        assert!(matches!(workers.next().await, WorkerEvent::Panicked(..)));
        let WorkerEvent::Due(again) = workers.next().await else { panic!("it is due") };
        workers.start(again, || async {});
        assert!(matches!(workers.next().await, WorkerEvent::Ended(uid) if uid == "orphan"));
        assert!(matches!(workers.next().await, WorkerEvent::Ended(uid) if uid == "other"));
        assert!(timeout(Duration::from_secs(1), workers.next()).await.is_err(), "none is left");
    }
}
