//! The statistics by which eviction decides: a trait, so that its tests script them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use longshore_pod::usage::{Memory, PodUsage};
use longshore_resources::stats::{Depth, Error, FileSystems, Machine, Stats};

/// As [`Stats`], which implements it.
pub(super) trait Statistics: Send + Sync {
    /// The machine as a whole.
    fn machine(&self, max_age: Duration) -> BoxFuture<'_, Result<Arc<Machine>, Error>>;
    /// The memory of all pods; `None` if they have no cgroup.
    fn pods_memory(&self) -> BoxFuture<'_, Result<Option<Memory>, Error>>;
    /// The node's and the runtime's file systems.
    fn file_systems(&self, max_age: Duration) -> BoxFuture<'_, Result<Arc<FileSystems>, Error>>;
    /// The usage of those pods, by UID.
    fn pods<'a>(
        &'a self,
        pods: &'a [Arc<Pod>],
        depth: Depth,
        max_age: Duration,
    ) -> BoxFuture<'a, HashMap<String, PodUsage>>;
}

impl Statistics for Stats {
    fn machine(&self, max_age: Duration) -> BoxFuture<'_, Result<Arc<Machine>, Error>> {
        self.machine(max_age).boxed()
    }

    fn pods_memory(&self) -> BoxFuture<'_, Result<Option<Memory>, Error>> {
        self.pods_memory().boxed()
    }

    fn file_systems(&self, max_age: Duration) -> BoxFuture<'_, Result<Arc<FileSystems>, Error>> {
        self.file_systems(max_age).boxed()
    }

    fn pods<'a>(
        &'a self,
        pods: &'a [Arc<Pod>],
        depth: Depth,
        max_age: Duration,
    ) -> BoxFuture<'a, HashMap<String, PodUsage>> {
        self.pods(pods, depth, max_age).boxed()
    }
}
