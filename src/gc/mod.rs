//! Garbage collection of dead containers and unused images.
//!
//! [`Containers`] removes dead containers of desired pods beyond the policy, and the logs of deleted pods.
//! Containers of pods that are not desired are removed by their workers only. [`Images`] keeps the image
//! file system below its threshold. What is removed is chosen by pure functions (`plan`); eviction calls
//! both under disk pressure.

mod containers;
mod disk;
mod images;
mod metrics;

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use longshore_base::panics;
use longshore_client::events::{Recorder, node_reference};
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_runtime::PodRuntime;
use tracing::warn;

pub use containers::Containers;
pub use images::Images;
pub use metrics::Metrics;

use crate::eviction::Reclaim;
use crate::status::StatusWriter;

/// Inputs of the collectors.
pub struct Parts {
    /// The runtime.
    pub cri: Runtime,
    /// Observed pods.
    pub observer: Observer,
    /// Desired pods.
    pub desired: Desired,
    /// Reported pod statuses.
    pub status: StatusWriter,
    /// Events.
    pub recorder: Recorder,
    /// Pods in the runtime, which keep records of image pulls.
    pub pods: PodRuntime,
    /// Metrics.
    pub metrics: Metrics,
}

/// The collectors of a node. Cheap to clone.
#[derive(Clone)]
pub struct Collectors {
    /// Of dead containers.
    pub containers: Containers,
    /// Of unused images.
    pub images: Images,
}

impl Reclaim for Collectors {
    fn dead_containers(&self) -> BoxFuture<'_, ()> {
        async {
            if let Err(error) = self.containers.delete_dead_containers().await {
                warn!(%error, "not all dead containers could be removed");
            }
        }
        .boxed()
    }

    fn unused_images(&self) -> BoxFuture<'_, ()> {
        async {
            if let Err(error) = self.images.delete_unused_images().await {
                warn!(%error, "not all unused images could be removed");
            }
        }
        .boxed()
    }
}

/// Creates the collectors. Nothing is removed before they run or are called.
pub fn collectors(config: &Config, parts: Parts) -> Collectors {
    let Parts { cri, observer, desired, status, recorder, pods, metrics } = parts;
    let node = node_reference(&config.node_name);
    let pod_logs_dir = PathBuf::from(&config.kubelet.pod_logs_dir);
    let containers = Containers::new(containers::Parts {
        cri: cri.clone(),
        observer,
        desired: desired.clone(),
        status,
        recorder: recorder.clone(),
        node: node.clone(),
        policy: containers::Policy::new(config),
        root_dir: config.root_dir.clone(),
        pod_logs_dir: pod_logs_dir.clone(),
    });
    let images = Images::new(images::Parts {
        cri,
        desired,
        recorder,
        node,
        policy: images::Policy::new(config),
        root_dir: config.root_dir.clone(),
        pod_logs_dir,
        metrics,
        removed: Box::new(move |id, since| pods.image_removed(id, since)),
    });
    Collectors { containers, images }
}

/// Errors of garbage collection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the runtime failed.
    #[error("{}", .0.go_text())]
    Cri(#[from] longshore_cri::Error),
    /// Some removals failed, as a list in Go's format.
    #[error("{}", aggregate(.0))]
    Left(Vec<String>),
    /// A file or directory cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Not all pod sources are synced, so nothing is known to be garbage.
    #[error("not all pod sources are ready yet")]
    Early,
    /// The runtime does not report its image file system.
    #[error("imageFs information is unavailable")]
    NoImageFilesystem,
    /// The image file system has no size.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Some images above the maximum age were not removed.
    #[error("wanted to free images older than {age}, encountered errors in image deletion: {}", aggregate(.errors))]
    Old {
        /// The maximum age.
        age: longshore_config::GoDuration,
        /// Errors of removals.
        errors: Vec<String>,
    },
    /// Some images were not removed.
    #[error(
        "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {}",
        aggregate(.errors)
    )]
    Images {
        /// Bytes to free.
        wanted: u64,
        /// Bytes freed.
        freed: u64,
        /// Errors of removals.
        errors: Vec<String>,
    },
    /// Removing all unused images did not free enough space.
    #[error("{0}")]
    Full(String),
}

/// An aggregate error in Go's format.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Runs blocking work on a thread for it. `None` after a panic, or if the daemon stops.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    panics::blocking(work).await.ok()
}
