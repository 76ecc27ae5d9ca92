//! Device plugins that register as plugins of any type do, beside those that call the device manager.

use std::path::Path;

use async_trait::async_trait;
use longshore_devices::{Devices, Error};
use longshore_plugins::{Handler, Plugin, Refusal};

/// Registers them with the device manager. A plugin has the name of its resource.
pub(crate) struct DevicePlugins(pub(crate) Devices);

#[async_trait]
impl Handler for DevicePlugins {
    async fn register(&self, plugin: &Plugin) -> Result<(), Refusal> {
        let socket = Path::new(&plugin.endpoint);
        let registered = self.0.register(&plugin.name, &plugin.versions, socket).await;
        registered.map_err(|error| match error {
            Error::Version(_) | Error::ResourceName(_) => Refusal::Invalid(error.to_string()),
            _ => Refusal::Failed(error.to_string()),
        })
    }

    async fn unregister(&self, plugin: &Plugin) {
        self.0.deregister(&plugin.name);
    }
}
