//! Drivers that run beside the node: each announces itself on a socket in `plugins_registry`, and
//! is registered for as long as that socket is there. CSI drivers are told to the cluster in the
//! CSINode and Node objects, and to the volumes by [`Drivers`].
//!
//! Current limitations: CSI drivers only; plugins for devices and dynamic resource allocation are
//! refused, and told so.

mod allocatable;
mod csi_node;
mod drivers;
mod error;
mod metrics;
mod registration;
mod sockets;
mod version;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_metrics::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::csi_node::CsiNode;
pub use self::drivers::Drivers;
pub use self::error::Error;
use self::metrics::Metrics;
use self::registration::Registrar;
use self::sockets::{Change, Sockets};

/// Where plugins announce themselves, below the node's root directory.
const REGISTRY: &str = "plugins_registry";

/// What the registration of plugins works with.
pub struct Parts {
    /// The node's root directory.
    pub root: PathBuf,
    /// Where registered drivers are noted.
    pub drivers: Drivers,
    /// Where the cluster is told of them.
    pub csi_node: CsiNode,
}

/// Follows the sockets of plugins, and registers what announces itself there. Ends when it is
/// dropped; what is registered stays so for the cluster.
pub fn run(parts: Parts, registry: &Registry) -> impl Future<Output = ()> + Send + use<> {
    let Parts { root, drivers, csi_node } = parts;
    let mut sockets = Sockets::open(root.join(REGISTRY));
    let registrar = Arc::new(Registrar { drivers, csi_node, metrics: Metrics::new(registry) });
    let mut plugins = Plugins { registrar, tasks: HashMap::new() };
    async move {
        loop {
            match sockets.next().await {
                Change::Appeared(socket) => plugins.begin(socket),
                Change::Gone(socket) => plugins.end(&socket),
            }
        }
    }
}

/// A task for each socket, which outlives the socket until its plugin is unregistered.
struct Plugins {
    registrar: Arc<Registrar>,
    tasks: HashMap<PathBuf, Task>,
}

struct Task {
    stop: CancellationToken,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl Plugins {
    /// Registers the plugin at a socket, after the one that was there before is unregistered.
    fn begin(&mut self, socket: PathBuf) {
        debug!(socket = %socket.display(), "a plugin's socket");
        let stop = CancellationToken::new();
        let before = self.tasks.remove(&socket);
        let (registrar, stopped, path) = (self.registrar.clone(), stop.clone(), socket.clone());
        let handle = tokio::spawn(async move {
            if let Some(before) = before {
                before.end().await;
            }
            registrar.keep(&path, stopped).await;
        });
        self.tasks.insert(socket, Task { stop, handle });
    }

    fn end(&mut self, socket: &Path) {
        debug!(socket = %socket.display(), "a plugin's socket is gone");
        self.tasks.retain(|_, task| !task.handle.is_finished());
        if let Some(task) = self.tasks.get(socket) {
            task.stop.cancel();
        }
    }
}

impl Task {
    async fn end(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.handle).await {
            warn!(%error, "the registration of a plugin ended badly");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
pub(crate) mod fake;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
