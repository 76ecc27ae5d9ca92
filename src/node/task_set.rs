//! The tasks of a node, supervised. A task that ends before the node stops is logged at once with its
//! name. Then it is started again, or the node stops with an error that has its name: each call says
//! which, and why.

use std::future::Future;
use std::time::Duration;

use longshore_base::panics::{Panicked, contain};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

/// Delay before a task that ended early is started again.
const RESTART_DELAY: Duration = Duration::from_secs(10);

/// A task that the node cannot do without has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {name:?} ended: {reason}")]
pub struct TaskError {
    name: &'static str,
    reason: String,
}

/// The tasks of the node.
pub(super) struct TaskSet {
    tasks: JoinSet<()>,
    /// Stops all tasks.
    pub(super) stop: CancellationToken,
    failures: Failures,
}

impl TaskSet {
    pub(super) fn new(stop: CancellationToken) -> Self {
        let failures = Failures { first: watch::Sender::new(None), stop: stop.clone() };
        Self { tasks: JoinSet::new(), stop, failures }
    }

    /// Starts a task that has to run as long as the node, and that cannot be started again, because
    /// its state or its ends of channels are lost with it. If it ends early, the node fails.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.supervised(name, task);
        self.spawn_until_stop(task);
    }

    /// Starts a task that may return early, because its work is done or its feature is off. If it
    /// panics, the node fails.
    pub(super) fn spawn_finite(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let failures = self.failures.clone();
        self.spawn_until_stop(async move {
            if let Err(panicked) = contain(task).await {
                failures.report(name, Err(panicked));
            }
        });
    }

    /// Starts a task whose state can be made anew. If it ends early, it is started again after a delay.
    pub(super) fn spawn_restarting<T>(
        &mut self,
        name: &'static str,
        mut start: impl FnMut() -> T + Send + 'static,
    ) where
        T: Future<Output = ()> + Send + 'static,
    {
        self.spawn_until_stop(async move {
            loop {
                let reason = end_reason(contain(start()).await);
                let restart_in = RESTART_DELAY;
                error!(task = name, reason, ?restart_in, "a task of the node ended early");
                sleep(RESTART_DELAY).await;
            }
        });
    }

    /// A task that ends by itself after `stop` was cancelled. If it ends early, the node fails.
    pub(super) fn supervised<T>(
        &self,
        name: &'static str,
        task: T,
    ) -> impl Future<Output = ()> + Send + use<T>
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let failures = self.failures.clone();
        async move { failures.report(name, contain(task).await) }
    }

    /// Waits until a task has failed the node.
    pub(super) async fn failed(&self) -> TaskError {
        let mut first = self.failures.first.subscribe();
        let error = first.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            // This set keeps the sender.
            None => std::future::pending().await,
        }
    }

    /// Waits for all tasks after `stop` was cancelled.
    pub(super) async fn join(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a task of the node was cancelled");
            }
        }
    }

    fn spawn_until_stop(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Where tasks report that they ended.
#[derive(Clone)]
struct Failures {
    /// The first task that ended early.
    first: watch::Sender<Option<TaskError>>,
    stop: CancellationToken,
}

impl Failures {
    fn report(&self, name: &'static str, ended: Result<(), Panicked>) {
        if ended.is_ok() && self.stop.is_cancelled() {
            return;
        }
        let reason = end_reason(ended);
        error!(task = name, reason, "a task of the node ended early, the node stops");
        self.first.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(TaskError { name, reason });
            is_first
        });
    }
}

fn end_reason(ended: Result<(), Panicked>) -> String {
    match ended {
        Ok(()) => "it returned before the node was stopped".to_owned(),
        Err(panicked) => panicked.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    async fn failure(tasks: &TaskSet) -> Option<String> {
        timeout(LONG, tasks.failed()).await.ok().map(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_fails_at_once_when_a_task_ends_early() {
        let begin = Instant::now();
        let mut tasks = TaskSet::new(CancellationToken::new());
        tasks.spawn("a", std::future::pending());
        tasks.spawn("b", sleep(Duration::from_secs(5)));
        let error = failure(&tasks).await.unwrap();
        assert_eq!(error, r#"task "b" ended: it returned before the node was stopped"#);
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_reports_panics_of_all_kinds_of_tasks() {
        let starts: [fn(&mut TaskSet); 2] = [
            |tasks| tasks.spawn("x", async { panic!("of this task") }),
            |tasks| tasks.spawn_finite("x", async { panic!("of this task") }),
        ];
        for start in starts {
            let mut tasks = TaskSet::new(CancellationToken::new());
            start(&mut tasks);
            let error = failure(&tasks).await.unwrap();
            assert!(error.starts_with(r#"task "x" ended: "#), "{error}");
            assert!(error.contains("of this task"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_first_failure_is_kept() {
        let mut tasks = TaskSet::new(CancellationToken::new());
        for (name, seconds) in [("late", 2), ("early", 1)] {
            tasks.spawn(name, sleep(Duration::from_secs(seconds)));
        }
        sleep(LONG).await;
        assert!(failure(&tasks).await.unwrap().contains("early"));
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_finite_tasks_may_return() {
        let mut tasks = TaskSet::new(CancellationToken::new());
        tasks.spawn_finite("a", async {});
        assert_eq!(failure(&tasks).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_restarts_tasks_that_return_or_panic() {
        let mut tasks = TaskSet::new(CancellationToken::new());
        let starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&starts);
        tasks.spawn_restarting("a", move || {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move { assert!(number != 1, "the second run") }
        });
        sleep(RESTART_DELAY * 2 + Duration::from_secs(1)).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
        assert_eq!(failure(&tasks).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn task_set_stop_ends_all_tasks_without_failure() {
        let stop = CancellationToken::new();
        let mut tasks = TaskSet::new(stop.clone());
        tasks.spawn("a", std::future::pending());
        let stopped = stop.clone();
        tasks.spawn("b", async move { stopped.cancelled().await });
        tasks.spawn_restarting("c", || async {});
        let draining = {
            let stop = stop.clone();
            tokio::spawn(tasks.supervised("d", async move {
                stop.cancelled().await;
                sleep(Duration::from_secs(1)).await;
            }))
        };
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
        draining.await.unwrap();
        let first = tasks.failures.first.clone();
        timeout(LONG, tasks.join()).await.unwrap();
        assert_eq!(*first.borrow(), None);
    }
}
