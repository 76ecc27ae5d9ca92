//! Runs the workers of pods. A worker that panics is started again after a delay that doubles; the
//! workers of other pods go on meanwhile. A new worker finds what its pod has on the node as it does
//! after a restart of the daemon: from what runs, by the pod's UID.

use k8s_openapi::jiff::SignedDuration;
use longshore_base::panics::{self, Panicked};
use longshore_pod::Timestamp;
use longshore_pod::backoff::Backoff;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Delays before a worker that panicked is started again.
const RESTART_BASE: SignedDuration = SignedDuration::from_secs(1);
const RESTART_MAX: SignedDuration = SignedDuration::from_secs(60);

/// The start of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) uid: String,
    /// Whether the pod runs though nothing wants it.
    pub(super) is_orphan: bool,
}

/// What has happened to a worker.
#[derive(Debug)]
pub(super) enum Happened {
    /// Nothing is left to do for the pod.
    Ended(String),
    /// It panicked. It is [`Happened::Due`] later.
    Panicked(String, Panicked),
    /// It panicked a while ago, and is to be started again.
    Due(Start),
}

/// The workers that run, and those that wait to be started again.
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

    /// Start a worker: `make` is called at once, its work is a task.
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

    /// The next thing that happens. Never, while there are no workers.
    pub(super) async fn next(&mut self) -> Happened {
        let ended = tokio::select! {
            Some(Ok(due)) = self.waiting.join_next() => return Happened::Due(due),
            Some(Ok(ended)) = self.running.join_next() => ended,
            else => std::future::pending().await,
        };
        match ended {
            (start, Ok(())) => {
                self.delays.retain(|uid| *uid != start.uid);
                Happened::Ended(start.uid)
            }
            (start, Err(panicked)) => {
                let now = Timestamp::now();
                self.delays.next(&start.uid, now, now);
                let delay = self.delays.delay(&start.uid).unsigned_abs();
                let uid = start.uid.clone();
                self.waiting.spawn(async move {
                    sleep(delay).await;
                    start
                });
                Happened::Panicked(uid, panicked)
            }
        }
    }

    /// Ends all workers where they wait.
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

    /// Finding 13: a panic in the work on one pod is no end of the others', nor of the pod.
    #[tokio::test(start_paused = true)]
    async fn a_worker_that_panics_is_started_again_and_takes_none_with_it() {
        let mut workers = Supervisor::new();
        workers.start(start("other"), || async { sleep(Duration::from_secs(1000)).await });
        let began = Instant::now();
        let mut delays = Vec::new();
        workers.start(start("orphan"), || -> std::future::Ready<()> { panic!("while it starts") });
        for _ in 0..8 {
            let Happened::Panicked(uid, _) = workers.next().await else { panic!("it panics") };
            assert_eq!(uid, "orphan");
            let paused = Instant::now();
            let Happened::Due(again) = workers.next().await else { panic!("it is due") };
            assert_eq!(again, start("orphan"), "as what it was");
            delays.push(paused.elapsed().as_secs());
            workers.start(again, || async { panic!("in its work") });
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(began.elapsed() < Duration::from_secs(1000));
        assert!(matches!(workers.next().await, Happened::Panicked(..)));
        let Happened::Due(again) = workers.next().await else { panic!("it is due") };
        workers.start(again, || async {});
        assert!(matches!(workers.next().await, Happened::Ended(uid) if uid == "orphan"));
        assert!(matches!(workers.next().await, Happened::Ended(uid) if uid == "other"));
        assert!(timeout(Duration::from_secs(1), workers.next()).await.is_err(), "none is left");
    }
}
