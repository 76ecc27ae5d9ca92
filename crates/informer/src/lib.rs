//! The machinery of control loops, as client-go has it: informers, which keep a copy of all objects
//! of a kind and report changes; work queues of keys; workers that sync one key at a time;
//! expectations, which bridge the time until an informer has seen a controller's own writes; and
//! leader election.
//!
//! ```no_run
//! # use longshore_informer::{Event, Informers, QueueMetrics, WorkQueue, key_of, run_workers};
//! # use k8s_openapi::api::core::v1::Pod;
//! # async fn example(client: kube::Client, metrics: QueueMetrics) {
//! let informers = Informers::new(client);
//! let pods = informers.get::<Pod>();
//! let queue = WorkQueue::new("pods", &metrics);
//! pods.subscribe({
//!     let queue = queue.clone();
//!     move |event: &Event<Pod>| queue.add(key_of(event.latest()))
//! });
//! pods.synced().await;
//! let stop = tokio_util::sync::CancellationToken::new();
//! run_workers("pods", &queue, 5, &stop, |key: String| {
//!     let pod = pods.store().get(&key);
//!     async move { drop(pod); Ok::<(), kube::Error>(()) }
//! })
//! .await;
//! # }
//! ```

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod expectations;
mod informer;
mod leader;
mod queue;
mod queue_metrics;
mod store;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod worker;

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::expectations::Expectations;
pub use self::informer::{Event, Informer, Informers, Options};
pub use self::leader::{
    ElectionError, LeaderConfig, LeaderElector, LeaderMetrics, LeaseApi, LeaseStore,
};
pub use self::queue::{Retries, WorkQueue};
pub use self::queue_metrics::QueueMetrics;
pub use self::store::{Store, key_of, object_key, split_key};
pub use self::worker::{SyncError, run_workers};

/// The object of an API kind that informers and stores hold.
pub trait Object:
    k8s_openapi::Metadata<Ty = ObjectMeta>
    + kube::Resource<DynamicType = ()>
    + Serialize
    + DeserializeOwned
    + Default
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: k8s_openapi::Metadata<Ty = ObjectMeta>
        + kube::Resource<DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + Default
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}
