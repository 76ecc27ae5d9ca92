//! The registration of one plugin, for the lifetime of its socket.

use std::path::Path;
use std::time::Duration;

use longshore_base::retry::Delays;
use longshore_csi::registration::PluginInfo;
use longshore_csi::{Driver, Plugin};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::csi_node::CsiNode;
use super::drivers::Drivers;
use super::error::Error;
use super::metrics::Metrics;
use super::version::Version;

/// The type of CSI drivers.
const CSI: &str = "CSIPlugin";
/// Backoff. It starts short, as a socket may exist before the plugin listens.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// Maximum length of a driver's name.
const LONGEST_NAME: usize = 63;

/// The dependencies of registrations.
pub(super) struct Registrar {
    pub(super) drivers: Drivers,
    pub(super) csi_node: CsiNode,
    pub(super) metrics: Metrics,
}

impl Registrar {
    /// Registers the plugin at a socket, with retries, and unregisters it when stopped.
    pub(super) async fn run(&self, socket: &Path, stop: CancellationToken) {
        self.metrics.note(socket, false);
        let registered = stop.run_until_cancelled(self.registered(socket)).await.flatten();
        if let Some(name) = &registered {
            info!(driver = name, socket = %socket.display(), "CSI driver registered");
            self.metrics.note(socket, true);
            stop.run_until_cancelled(self.update_allocatable(name)).await;
        }
        stop.cancelled().await;
        self.metrics.forget(socket);
        if let Some(name) = registered {
            self.unregister(&name, socket).await;
        }
    }

    /// Registers with retries; `None` if it cannot succeed.
    async fn registered(&self, socket: &Path) -> Option<String> {
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut is_retry, mut last_error) = (false, None);
        loop {
            let error = match self.register(socket).await {
                Ok(name) => return Some(name),
                Err(error) => error,
            };
            let text = error.to_string();
            if !error.is_retriable() {
                warn!(socket = %socket.display(), "plugin registration failed: {text}");
                return None;
            }
            // The same error is logged once.
            if is_retry && last_error.as_ref() != Some(&text) {
                warn!(socket = %socket.display(), "plugin registration failed, will be retried: {text}");
                last_error = Some(text);
            }
            is_retry = true;
            sleep(delays.next_delay()).await;
        }
    }

    async fn register(&self, socket: &Path) -> Result<String, Error> {
        let plugin = Plugin::new(socket)?;
        let info = plugin.info().await?;
        let name = info.name.clone();
        let outcome = self.add_driver(info, socket).await;
        let refusal = outcome.as_ref().err().map(refusal);
        let notified = plugin.notify(refusal.as_deref()).await;
        outcome?;
        if let Err(error) = notified {
            // The plugin was not notified, so the registration is repeated.
            self.unregister(&name, socket).await;
            return Err(error.into());
        }
        Ok(name)
    }

    /// Validates and adds a driver.
    async fn add_driver(&self, info: PluginInfo, socket: &Path) -> Result<(), Error> {
        let path = socket.display().to_string();
        if info.r#type != CSI {
            return Err(Error::Type { kind: info.r#type, socket: path });
        }
        if !is_driver_name(&info.name) {
            return Err(Error::Name(info.name));
        }
        let Some(version) = Version::highest(&info.supported_versions) else {
            let (driver, versions) = (info.name, info.supported_versions);
            return Err(Error::Versions { driver, versions });
        };
        self.drivers.check(&info.name, &version, socket)?;
        let endpoint = if info.endpoint.is_empty() { path } else { info.endpoint };
        let driver = self.drivers.client(&info.name, &endpoint)?;
        self.publish_node_info(&driver).await?;
        self.drivers.add(driver, version, socket);
        Ok(())
    }

    async fn publish_node_info(&self, driver: &Driver) -> Result<(), Error> {
        let node = driver.info().await?;
        self.csi_node.install(driver.name(), &node).await
    }

    /// Removes a driver, and its entry of the CSINode with retries.
    async fn unregister(&self, name: &str, socket: &Path) {
        if !self.drivers.remove(name, socket) {
            return;
        }
        info!(driver = name, socket = %socket.display(), "CSI driver unregistered");
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        while let Err(error) = self.csi_node.uninstall(name).await {
            debug!(
                driver = name,
                "failed to remove the driver from the CSINode, will be retried: {error}"
            );
            sleep(delays.next_delay()).await;
            if self.drivers.get(name).is_some() {
                return; // it is registered at another socket
            }
        }
    }
}

fn refusal(error: &Error) -> String {
    match error {
        Error::Type { .. } => format!("RegisterPlugin error -- {error}"),
        Error::Name(_) | Error::Versions { .. } | Error::Duplicate { .. } => {
            format!("RegisterPlugin error -- plugin validation failed with err: {error}")
        }
        _ => format!("RegisterPlugin error -- plugin registration failed with err: {error}"),
    }
}

/// Whether it is a valid driver name, which is also used for directories.
fn is_driver_name(name: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    name.len() <= LONGEST_NAME
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(is_inner)
}
