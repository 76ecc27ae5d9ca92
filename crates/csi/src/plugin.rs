//! The client of a plugin registration socket.

use std::path::Path;
use std::time::Duration;

use longshore_grpc::Endpoint;
use tonic::transport::Channel;

use crate::call::Call;
use crate::registration::registration_client::RegistrationClient;
use crate::registration::registration_server::SERVICE_NAME;
use crate::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use crate::{Error, Result};

/// Timeout of registration calls.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one registration socket.
#[derive(Debug)]
pub struct Plugin {
    socket: String,
    client: RegistrationClient<Channel>,
}

impl Plugin {
    /// A client of the plugin that listens at `socket`. Must be made inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for a path that no socket can have.
    pub fn new(socket: &Path) -> Result<Self> {
        let socket = socket.display().to_string();
        let endpoint =
            Endpoint::parse(&socket).map_err(|invalid| Error::endpoint("a plugin", invalid))?;
        Ok(Self { client: RegistrationClient::new(endpoint.channel()), socket })
    }

    /// The plugin's info.
    pub async fn info(&self) -> Result<PluginInfo> {
        let call = self.call("GetInfo");
        let request = call.request(InfoRequest {});
        let info = call.response(self.client.clone().get_info(request)).await?;
        call.require(!info.name.is_empty(), "name")?;
        Ok(info)
    }

    /// Notifies the plugin of its registration status; `refusal` is the error.
    pub async fn notify(&self, refusal: Option<&str>) -> Result<()> {
        let call = self.call("NotifyRegistrationStatus");
        let request = call.request(RegistrationStatus {
            plugin_registered: refusal.is_none(),
            error: refusal.unwrap_or_default().to_owned(),
        });
        call.response(self.client.clone().notify_registration_status(request)).await.map(drop)
    }

    fn call(&self, rpc: &'static str) -> Call<'_> {
        Call { driver: &self.socket, service: SERVICE_NAME, rpc, deadline: TIMEOUT, observer: None }
    }
}
