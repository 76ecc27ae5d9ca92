//! The Container Network Interface (CNI 0.1.0 to 1.1.0), as a runtime uses it: network configurations of a
//! folder ([`Cni::network`]), their plugins run in order ([`Cni::add`], [`Cni::check`], [`Cni::remove`],
//! [`Cni::status`]), and results kept in files of libcni's format ([`Cni::cached`]), so that other runtimes
//! of the node find them.
//!
//! Current limitations: no garbage collection of attachments (CNI's GC), and plugins are not inlined from
//! the folder beside a configuration (`loadOnlyInlinedPlugins` of 1.1.0).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod attachment;
mod cache;
mod error;
mod leftovers;
mod network;
mod plugin;
mod result;
#[cfg(test)]
mod tests;
mod version;

use std::path::PathBuf;
use std::time::Duration;

use longshore_base::panics;
use serde_json::{Value, json};

pub use attachment::Attachment;
pub use cache::Cached;
pub use error::{Error, Result};
pub use leftovers::Leftovers;
pub use network::Network;
pub use result::addresses;

/// How long one plugin may take, as cri-dockerd gives it.
const TIMEOUT: Duration = Duration::from_secs(220);

/// The folders that CNI works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cni {
    /// Where plugins are, searched in this order.
    pub bin_dirs: Vec<PathBuf>,
    /// Where configurations are.
    pub conf_dir: PathBuf,
    /// Where results are kept, in `results` below it.
    pub cache_dir: PathBuf,
}

/// What a plugin is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Check,
    Del,
    Status,
}

impl Command {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Status => "STATUS",
        }
    }
}

impl Cni {
    /// The network of the node: the first valid configuration of the folder, by file name.
    ///
    /// # Errors
    /// When there is none; the error says what is wrong with each.
    pub async fn network(&self) -> Result<Network> {
        let (folder, bin_dirs) = (self.conf_dir.clone(), self.bin_dirs.clone());
        panics::try_blocking(move || network::first(&folder, &bin_dirs)).await
    }

    /// Attaches a container to a network: all plugins in order, each with the result of the one before. The
    /// last result is kept and returned.
    ///
    /// # Errors
    /// When a plugin fails, or the result cannot be kept. What plugins before it did remains until
    /// [`Cni::remove`].
    pub async fn add(&self, network: &Network, attachment: &Attachment) -> Result<Value> {
        attachment.validate()?;
        let mut previous = None;
        for plugin in network.plugins() {
            let config = network.plugin_config(plugin, attachment, previous.as_ref());
            let result = self.run(Command::Add, network, plugin, config, attachment).await?;
            previous = Some(result.unwrap_or_else(|| json!({})));
        }
        let result = previous.unwrap_or_else(|| json!({}));
        cache::store(&self.cache_dir, network, attachment, &result).await?;
        Ok(result)
    }

    /// Asks the plugins whether an attachment is as it was made. Networks that cannot be asked (older than
    /// 0.4.0, or with `disableCheck`) are taken to be well.
    ///
    /// # Errors
    /// When a plugin reports a fault, or there is no kept result.
    pub async fn check(&self, attachment: &Attachment) -> Result<()> {
        attachment.validate()?;
        let Some(cached) = self.cached(&attachment.container_id, &attachment.interface).await?
        else {
            return Err(Error::NoResult { container: attachment.container_id.clone() });
        };
        let network = cached.network()?;
        if !network.has_check() {
            return Ok(());
        }
        let attachment = cached.complete(attachment);
        for plugin in network.plugins() {
            let config = network.plugin_config(plugin, &attachment, Some(&cached.result));
            self.run(Command::Check, &network, plugin, config, &attachment).await?;
        }
        Ok(())
    }

    /// Ends an attachment: all plugins in reverse order. What was kept of it says by which network and
    /// with which arguments it was made; `fallback` is used when nothing was. May be repeated.
    ///
    /// # Errors
    /// The first failure of a plugin; those after it are run nevertheless, and what was kept stays for the
    /// next attempt.
    pub async fn remove(&self, fallback: Option<&Network>, attachment: &Attachment) -> Result<()> {
        attachment.validate()?;
        let cached = self.cached(&attachment.container_id, &attachment.interface).await?;
        let network = match (&cached, fallback) {
            (Some(cached), fallback) => match (cached.network(), fallback) {
                (Ok(network), _) => network,
                (Err(_), Some(fallback)) => fallback.clone(),
                (Err(error), None) => return Err(error),
            },
            (None, Some(fallback)) => fallback.clone(),
            (None, None) => return Ok(()),
        };
        let attachment = match &cached {
            Some(cached) => cached.complete(attachment),
            None => attachment.clone(),
        };
        let previous = cached.as_ref().map(|cached| &cached.result);
        let previous = previous.filter(|_| network.version() >= version::WITH_CHECK);
        let mut failed = None;
        for plugin in network.plugins().iter().rev() {
            let config = network.plugin_config(plugin, &attachment, previous);
            if let Err(error) = self.run(Command::Del, &network, plugin, config, &attachment).await
            {
                failed.get_or_insert(error);
            }
        }
        match (failed, cached) {
            (Some(error), _) => Err(error),
            (None, Some(cached)) => cached.forget().await,
            (None, None) => Ok(()),
        }
    }

    /// Asks the plugins whether they can attach containers (from 1.1.0 on).
    ///
    /// # Errors
    /// When one of them cannot.
    pub async fn status(&self, network: &Network) -> Result<()> {
        if network.version() < version::WITH_STATUS {
            return Ok(());
        }
        let nobody = Attachment::default();
        for plugin in network.plugins() {
            let config = network.plugin_config(plugin, &nobody, None);
            self.run(Command::Status, network, plugin, config, &nobody).await?;
        }
        Ok(())
    }

    /// What is kept of an attachment.
    ///
    /// # Errors
    /// When the files cannot be read. One that is not valid counts as absent.
    pub async fn cached(&self, container: &str, interface: &str) -> Result<Option<Cached>> {
        let folder = self.cache_dir.clone();
        let (container, interface) = (container.to_owned(), interface.to_owned());
        panics::try_blocking(move || cache::find(&folder, &container, &interface)).await
    }

    async fn run(
        &self,
        command: Command,
        network: &Network,
        plugin: &Value,
        config: Value,
        attachment: &Attachment,
    ) -> Result<Option<Value>> {
        let call = plugin::Call {
            command,
            network: network.name(),
            plugin: network::type_of(plugin),
            config,
            attachment,
        };
        plugin::run(&self.bin_dirs, call, TIMEOUT).await
    }
}
