//! A device plugin, of which each measured pod has a device: it lists them and then says nothing more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use longshore_devices::HEALTHY;
use longshore_devices::testing::{Script, ScriptedPlugin, device};
use longshore_testkit::wait_until;
use serde_json::json;

use crate::cluster::Cluster;

const RESOURCE: &str = "example.com/device";
const TIMEOUT: Duration = Duration::from_secs(60);

/// The plugin on a node; it is gone when it is dropped.
pub(crate) struct Plugin {
    folder: PathBuf,
    count: u16,
    serving: ScriptedPlugin,
}

impl Plugin {
    /// Starts it with so many devices, and waits until the node offers them.
    pub(crate) async fn start(cluster: &Cluster<'_>, count: u16) -> Result<Self> {
        let folder = cluster.node.root_dir().join("device-plugins");
        let serving = serve(&folder, count).await?;
        let (nodes, name) = (cluster.nodes(), cluster.host.name());
        wait_until(TIMEOUT, "the node to offer the devices", async || {
            let status = nodes.get(&name).await?.status.unwrap_or_default();
            match status.allocatable.unwrap_or_default().get(RESOURCE) {
                Some(offered) if offered.0 == count.to_string() => Ok(()),
                other => bail!("{other:?}"),
            }
        })
        .await?;
        Ok(Self { folder, count, serving })
    }

    /// Starts it again, which it has to do when the node has: that removed its socket.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.serving = serve(&self.folder, self.count).await?;
        Ok(())
    }
}

/// Serves the devices and registers. A node that is still starting removes the sockets that it finds,
/// and takes no registration.
async fn serve(folder: &Path, count: u16) -> Result<ScriptedPlugin> {
    let devices: Vec<_> = (0..count).map(|n| device(&format!("device-{n}"), HEALTHY)).collect();
    let plugin = wait_until(TIMEOUT, "the node to register the device plugin", async || {
        let plugin =
            ScriptedPlugin::start(folder, "bench.sock", devices.clone(), Script::default())
                .with_context(|| folder.display().to_string())?;
        plugin.register(RESOURCE).await?;
        anyhow::Ok(plugin)
    });
    Ok(plugin.await?)
}

/// A pod that gets one of the devices.
pub(crate) fn with_device(mut pod: Pod) -> Result<Pod> {
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for container in containers {
        container.resources = Some(serde_json::from_value(json!({"limits": {RESOURCE: "1"}}))?);
    }
    Ok(pod)
}
