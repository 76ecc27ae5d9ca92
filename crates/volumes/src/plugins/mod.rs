//! The plugin manager: plugins have a socket in `plugins_registry`, and are registered for as long
//! as it exists. CSI drivers are published in the CSINode and Node objects, and in [`Drivers`] for
//! the volumes.
//!
//! Current limitations: CSI drivers only; the registration of device plugins and DRA plugins fails.

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

/// The registration directory, below the node's root directory.
const REGISTRY: &str = "plugins_registry";

/// The dependencies of the plugin manager.
pub struct Parts {
    /// The node's root directory.
    pub root: PathBuf,
    /// The registered drivers.
    pub drivers: Drivers,
    /// The writer of the CSINode.
    pub csi_node: CsiNode,
}

/// Watches the sockets of plugins, and registers them. When it is dropped, drivers stay in the
/// CSINode.
pub fn run(parts: Parts, registry: &Registry) -> impl Future<Output = ()> + Send + use<> {
    let Parts { root, drivers, csi_node } = parts;
    let mut sockets = Sockets::open(root.join(REGISTRY));
    let registrar = Arc::new(Registrar { drivers, csi_node, metrics: Metrics::new(registry) });
    let mut plugins = Plugins { registrar, tasks: HashMap::new() };
    async move {
        loop {
            match sockets.next().await {
                Change::Added(socket) => plugins.begin(socket),
                Change::Removed(socket) => plugins.end(&socket),
            }
        }
    }
}

/// One task per socket, until its plugin is unregistered.
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
        debug!(socket = %socket.display(), "plugin socket added");
        let stop = CancellationToken::new();
        let before = self.tasks.remove(&socket);
        let (registrar, stopped, path) = (self.registrar.clone(), stop.clone(), socket.clone());
        let handle = tokio::spawn(async move {
            if let Some(before) = before {
                before.end().await;
            }
            registrar.run(&path, stopped).await;
        });
        self.tasks.insert(socket, Task { stop, handle });
    }

    fn end(&mut self, socket: &Path) {
        debug!(socket = %socket.display(), "plugin socket removed");
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
            warn!(%error, "the registration task of a plugin failed");
        }
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
