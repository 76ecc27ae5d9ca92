//! Old revisions are forgotten: what is older than one to two intervals cannot be read any more.

use std::time::Duration;

use longshore_store::Store;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Runs until `stop`.
pub(crate) async fn run(store: &dyn Store, interval: Duration, stop: CancellationToken) {
    let mut horizon = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(interval) => {}
        }
        if let Some(revision) = horizon
            && let Err(error) = store.compact(revision).await
        {
            tracing::warn!(%error, revision, "cannot compact the store");
        }
        horizon = match store.revision().await {
            Ok(revision) => Some(revision),
            Err(error) => {
                tracing::warn!(%error, "compaction");
                None
            }
        };
    }
}
