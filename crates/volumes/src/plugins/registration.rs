//! The registration of CSI drivers.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use longshore_base::retry::Delays;
use longshore_csi::Driver;
use longshore_plugins::{Handler, Plugin, Refusal};
use tokio::time::sleep;
use tracing::debug;

use super::csi_node::CsiNode;
use super::drivers::Drivers;
use super::error::Error;
use super::version::Version;

/// Backoff of removals from the CSINode.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// Maximum length of a driver's name.
const LONGEST_NAME: usize = 63;

/// Registers CSI drivers.
pub struct CsiPlugins {
    pub(super) drivers: Drivers,
    pub(super) csi_node: CsiNode,
}

impl CsiPlugins {
    /// Drivers are added to `drivers`, and written to the CSINode.
    pub fn new(drivers: Drivers, csi_node: CsiNode) -> Self {
        Self { drivers, csi_node }
    }

    /// Validates and adds a driver.
    async fn add(&self, plugin: &Plugin) -> Result<(), Error> {
        if !is_driver_name(&plugin.name) {
            return Err(Error::Name(plugin.name.clone()));
        }
        let Some(version) = Version::highest(&plugin.versions) else {
            let (driver, versions) = (plugin.name.clone(), plugin.versions.clone());
            return Err(Error::Versions { driver, versions });
        };
        self.drivers.check(&plugin.name, &version, &plugin.socket)?;
        let driver = self.drivers.client(&plugin.name, &plugin.endpoint)?;
        self.publish_node_info(&driver).await?;
        self.drivers.add(driver, version, &plugin.socket);
        Ok(())
    }

    async fn publish_node_info(&self, driver: &Driver) -> Result<(), Error> {
        let node = driver.info().await?;
        self.csi_node.install(driver.name(), &node).await
    }

    /// Removes a driver, and its entry of the CSINode with retries.
    async fn remove(&self, name: &str, socket: &Path) {
        if !self.drivers.remove(name, socket) {
            return;
        }
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

#[async_trait]
impl Handler for CsiPlugins {
    async fn register(&self, plugin: &Plugin) -> Result<(), Refusal> {
        self.add(plugin).await.map_err(|error| {
            let text = error.to_string();
            match error {
                Error::Name(_) | Error::Versions { .. } => Refusal::Invalid(text),
                Error::Duplicate { .. } => Refusal::NotYet(text),
                _ => Refusal::Failed(text),
            }
        })
    }

    async fn registered(&self, plugin: &Plugin) {
        self.update_allocatable(&plugin.name).await;
    }

    async fn unregister(&self, plugin: &Plugin) {
        self.remove(&plugin.name, &plugin.socket).await;
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
