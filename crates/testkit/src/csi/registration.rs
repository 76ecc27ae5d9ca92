//! The registrar of a driver.
use std::sync::Arc;

use longshore_plugins::registration::registration_server::Registration;
use longshore_plugins::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::state::State;

#[derive(Debug, Clone)]
pub(super) struct Announcement(pub(super) Arc<State>);

#[async_trait]
impl Registration for Announcement {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.0.meet("GetInfo").await?.due().await?;
        let options = self.0.lock().options.clone();
        Ok(Response::new(PluginInfo {
            r#type: options.plugin_type,
            name: options.name,
            endpoint: self.0.socket().display().to_string(),
            supported_versions: options.versions,
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.0.meet("NotifyRegistrationStatus").await?.due().await?;
        self.0.lock().statuses.push(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
