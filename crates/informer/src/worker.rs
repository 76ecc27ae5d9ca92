//! Workers: each takes one key at a time from a queue and syncs it.

use std::fmt::Display;
use std::hash::Hash;

use futures::future::join_all;
use longshore_base::panics;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::WorkQueue;

/// Why a sync failed.
pub trait SyncError: Display {
    /// Whether it is part of normal operation: the object was changed since it was read.
    fn is_conflict(&self) -> bool {
        false
    }
}

impl SyncError for kube::Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(status) if status.code == 409 && status.reason == "Conflict")
    }
}

/// A reason that nothing but its text is known of.
impl SyncError for &str {}

/// Syncs the items of a queue with `count` workers until `stop`; work in progress is dropped then.
///
/// An item whose sync fails or panics is retried with back-off. A success resets the back-off. A
/// conflict is no reason for a warning.
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
    E: SyncError,
{
    let worker = async || {
        while let Some(item) = queue.get().await {
            let outcome = panics::contain(sync(item.clone())).await;
            match outcome {
                Ok(Ok(())) => queue.forget(&item),
                Ok(Err(reason)) if reason.is_conflict() => {
                    debug!(controller = name, key = %item, "conflict, it is retried: {reason}");
                    queue.add_rate_limited(item.clone());
                }
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
