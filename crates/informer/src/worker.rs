//! Workers: each takes one key at a time from a queue and syncs it.

use std::fmt::Display;
use std::hash::Hash;

use futures::future::join_all;
use longshore_base::panics;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::WorkQueue;

/// Syncs the items of a queue with `count` workers until `stop`; work in progress is dropped then.
///
/// An item whose sync fails or panics is retried with back-off. A success resets the back-off.
pub async fn run_workers<T, F, W, E>(
    name: &'static str,
    queue: &WorkQueue<T>,
    count: usize,
    stop: &CancellationToken,
    sync: F,
) where
    T: Clone + Eq + Hash + Display + Send + Sync + 'static,
    F: Fn(T) -> W,
    W: Future<Output = Result<(), E>>,
    E: Display,
{
    let worker = async || {
        while let Some(item) = queue.get().await {
            let outcome = panics::contain(sync(item.clone())).await;
            match outcome {
                Ok(Ok(())) => queue.forget(&item),
                Ok(Err(reason)) => {
                    warn!(controller = name, key = %item, "sync failed, it is retried: {reason}");
                    queue.add_rate_limited(item.clone());
                }
                Err(panicked) => {
                    error!(controller = name, key = %item, "sync panicked, it is retried: {panicked}");
                    queue.add_rate_limited(item.clone());
                }
            }
            queue.done(&item);
        }
    };
    let workers = join_all((0..count.max(1)).map(|_| worker()));
    tokio::select! {
        _ = workers => {}
        () = stop.cancelled() => queue.shutdown(),
    }
}
