//! The registration of one plugin, from the first word on its socket until the socket is gone.

use std::path::Path;
use std::time::Duration;

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
/// Pauses between tries. The first is short: a socket is seen before its owner listens.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// The most characters of a driver's name.
const LONGEST_NAME: usize = 63;

/// What registrations work with.
pub(super) struct Registrar {
    pub(super) drivers: Drivers,
    pub(super) csi_node: CsiNode,
    pub(super) metrics: Metrics,
}

impl Registrar {
    /// Registers the plugin at a socket, for as long as it takes, and unregisters it when stopped.
    pub(super) async fn keep(&self, socket: &Path, stop: CancellationToken) {
        self.metrics.note(socket, false);
        let registered = stop.run_until_cancelled(self.registered(socket)).await.flatten();
        if let Some(name) = &registered {
            info!(driver = name, socket = %socket.display(), "CSI driver registered");
            self.metrics.note(socket, true);
            stop.run_until_cancelled(self.keep_allocatable(name)).await;
        }
        stop.cancelled().await;
        self.metrics.forget(socket);
        if let Some(name) = registered {
            self.unregister(&name, socket).await;
        }
    }

    /// The name of the driver, once it is registered; `None` for what never can be.
    async fn registered(&self, socket: &Path) -> Option<String> {
        let mut pause = FIRST_PAUSE;
        let mut said = None;
        loop {
            let error = match self.register(socket).await {
                Ok(name) => return Some(name),
                Err(error) => error,
            };
            let text = error.to_string();
            if !error.may_pass() {
                warn!(socket = %socket.display(), "plugin refused: {text}");
                return None;
            }
            // A plugin that stays as it is, is told of once.
            if pause > FIRST_PAUSE && said.as_ref() != Some(&text) {
                warn!(socket = %socket.display(), "plugin not registered yet: {text}");
                said = Some(text);
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    async fn register(&self, socket: &Path) -> Result<String, Error> {
        let plugin = Plugin::new(socket)?;
        let info = plugin.info().await?;
        let name = info.name.clone();
        let outcome = self.take(info, socket).await;
        let refusal = outcome.as_ref().err().map(refusal);
        let told = plugin.notify(refusal.as_deref()).await;
        outcome?;
        if let Err(error) = told {
            // It takes itself for refused, and will come again.
            self.unregister(&name, socket).await;
            return Err(error.into());
        }
        Ok(name)
    }

    /// Takes in a driver that has said who it is.
    async fn take(&self, info: PluginInfo, socket: &Path) -> Result<(), Error> {
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
        self.tell_cluster(&driver).await?;
        self.drivers.add(driver, version, socket);
        Ok(())
    }

    async fn tell_cluster(&self, driver: &Driver) -> Result<(), Error> {
        let node = driver.info().await?;
        self.csi_node.install(driver.name(), &node).await
    }

    /// Takes a driver away, from the volumes at once and from the cluster as soon as it hears.
    async fn unregister(&self, name: &str, socket: &Path) {
        if !self.drivers.remove(name, socket) {
            return;
        }
        info!(driver = name, socket = %socket.display(), "CSI driver unregistered");
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.csi_node.uninstall(name).await {
            debug!(driver = name, "the cluster still takes the driver for registered: {error}");
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
            if self.drivers.get(name).is_some() {
                return; // it has come back by another socket
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

/// Whether it may be the name of a driver, and so of a directory.
fn is_driver_name(name: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    name.len() <= LONGEST_NAME
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(is_inner)
}
