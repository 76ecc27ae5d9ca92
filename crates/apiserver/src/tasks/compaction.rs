//! Old revisions are forgotten: what is older than one to two intervals cannot be read any more. Each server
//! of a store compacts to what it saw an interval ago; which of them is first does not matter.

use std::time::Duration;

use longshore_store::{Error, Store};
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
        if let Some(revision) = horizon {
            match store.compact(revision).await {
                // Another server has, and further.
                Ok(()) | Err(Error::Compacted { .. }) => {}
                Err(error) => tracing::warn!(%error, revision, "cannot compact the store"),
            }
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
