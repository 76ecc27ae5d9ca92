//! The tasks of a node.

use std::future::Future;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The tasks of the node. A task that panics is logged.
pub(super) struct TaskSet {
    tasks: JoinSet<()>,
    /// Stops all tasks.
    pub(super) stop: CancellationToken,
}

impl TaskSet {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), stop }
    }

    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Waits for all tasks after `stop` was cancelled.
    pub(super) async fn join(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a task of the node panicked");
            }
        }
    }
}
