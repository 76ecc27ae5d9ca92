//! The tasks that a node consists of.

use std::future::Future;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The tasks of the node. One that ends early while the node runs is a fault that is told.
pub(super) struct Rooms {
    tasks: JoinSet<()>,
    /// Ends them all.
    pub(super) stop: CancellationToken,
}

impl Rooms {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), stop }
    }

    pub(super) fn open(&mut self, room: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = room => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Waits for those that have been told to stop.
    pub(super) async fn close(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a part of the node ended badly");
            }
        }
    }
}
