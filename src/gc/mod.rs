//! Garbage collection: what dead containers and unused images hold is given back.
//!
//! [`Containers`] keeps, of the pods that should run, as many dead containers as the policy allows,
//! and takes the logs of pods that are gone. What is left *in the runtime* of a pod that should not
//! run at all is its worker's to remove, and nobody else's. [`Images`] keeps the image file system
//! below its threshold. What goes is chosen by plain functions (`plan`); eviction calls both when
//! the disk is full.

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

/// What the collectors work with.
pub struct Parts {
    /// The runtime.
    pub cri: Runtime,
    /// What runs.
    pub observer: Observer,
    /// What should run.
    pub desired: Desired,
    /// What was told of pods.
    pub status: StatusWriter,
    /// Events.
    pub recorder: Recorder,
    /// The hands of the workers, which remember who pulled an image.
    pub pods: PodRuntime,
    /// What is counted.
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

/// The collectors of a node that is configured like this. Nothing goes before they run, or are
/// asked to.
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

/// Why garbage is not, or not wholly, collected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the runtime failed.
    #[error("{}", .0.go_text())]
    Cri(#[from] longshore_cri::Error),
    /// Some of what was to go is still there: one line for each, in Go's form of a list.
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
    /// The sources of pods have yet to tell which should run, so nothing is known to be garbage.
    #[error("not all pod sources are ready yet")]
    Early,
    /// The runtime does not tell where its images are.
    #[error("imageFs information is unavailable")]
    NoImageFilesystem,
    /// The image file system has no size.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Images that are too old are still there.
    #[error("wanted to free images older than {age}, encountered errors in image deletion: {}", aggregate(.errors))]
    Old {
        /// The age from which on they go.
        age: longshore_config::GoDuration,
        /// Why they do not.
        errors: Vec<String>,
    },
    /// Images that should go are still there.
    #[error(
        "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {}",
        aggregate(.errors)
    )]
    Images {
        /// How many bytes should have become free.
        wanted: u64,
        /// How many did.
        freed: u64,
        /// Why the rest did not.
        errors: Vec<String>,
    },
    /// All unused images are gone, and that is not enough.
    #[error("{0}")]
    Full(String),
}

/// Several errors as one, as Go writes them.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Run what blocks where it holds nobody up. `None` if it ended badly, or the daemon stops.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    panics::blocking(work).await.ok()
}
