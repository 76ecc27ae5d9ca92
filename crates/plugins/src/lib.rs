//! Plugins beside the node: each serves its registration on a socket in the node's `plugins_registry`
//! directory, and is registered for as long as the socket exists. What a plugin is for is its type's
//! [`Handler`] to know: CSI drivers, DRA drivers, device plugins.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod client;
mod metrics;
mod registrar;
mod server;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use longshore_metrics::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::client::Error;
use self::metrics::Metrics;
use self::registrar::Registrar;
pub use self::server::serve_registration;
use self::sockets::{Change, Sockets};

/// The messages, client and server trait generated from `proto/plugins`.
#[allow(missing_docs, clippy::all)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The type of CSI drivers.
pub const CSI_PLUGIN: &str = "CSIPlugin";
/// The type of DRA drivers.
pub const DRA_PLUGIN: &str = "DRAPlugin";
/// The type of device plugins.
pub const DEVICE_PLUGIN: &str = "DevicePlugin";

/// The registration directory, below the node's root directory.
const REGISTRY: &str = "plugins_registry";

/// A plugin that registers, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// The path of the socket of its services.
    pub endpoint: String,
    /// The versions or services that it supports.
    pub versions: Vec<String>,
    /// The path of the socket of its registration.
    pub socket: PathBuf,
}

/// Why a plugin is not registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What the plugin says of itself is invalid. It is not asked again before it makes its socket anew.
    Invalid(String),
    /// It may be valid later, as when another plugin is gone.
    NotYet(String),
    /// The registration of a valid plugin failed.
    Failed(String),
}

/// What plugins of one type are for.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Validates and adds a plugin.
    async fn register(&self, plugin: &Plugin) -> Result<(), Refusal>;

    /// Runs while the plugin is registered and has been notified of it.
    async fn registered(&self, _plugin: &Plugin) {}

    /// Removes a plugin, with retries: its socket is gone, or it could not be notified of its registration.
    async fn unregister(&self, plugin: &Plugin);
}

/// The handlers by the type of their plugins.
#[derive(Clone, Default)]
pub struct Handlers(HashMap<&'static str, Arc<dyn Handler>>);

impl Handlers {
    /// With this handler of plugins of that type.
    #[must_use]
    pub fn with(mut self, kind: &'static str, handler: Arc<dyn Handler>) -> Self {
        self.0.insert(kind, handler);
        self
    }

    fn get(&self, kind: &str) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }
}

/// Watches the sockets of plugins below the node's root directory, and registers them. When it is dropped,
/// plugins stay registered.
pub fn run(
    root: &Path,
    handlers: Handlers,
    registry: &Registry,
) -> impl Future<Output = ()> + Send + use<> {
    let mut sockets = Sockets::open(root.join(REGISTRY));
    let registrar = Arc::new(Registrar { handlers, metrics: Metrics::new(registry) });
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
