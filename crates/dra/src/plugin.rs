//! One plugin of a driver: its connection and the calls to it.

use std::time::Duration;

use longshore_grpc::{Connected, Connection, Failure, await_response, code_name, origin, request};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Streaming};

use crate::api::health::dra_resource_health_client::DraResourceHealthClient;
use crate::api::health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use crate::api::v1::dra_plugin_client::DraPluginClient;
use crate::api::v1beta1::dra_plugin_client::DraPluginClient as EarlierClient;
use crate::api::{v1, v1beta1};
use crate::metrics::Metrics;

/// The time that a driver has for a call.
const TIMEOUT: Duration = Duration::from_secs(45);

/// The services by which a plugin is called, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    V1,
    V1Beta1,
}

impl Service {
    /// All of them, in upstream's order.
    const ALL: [Self; 2] = [Self::V1, Self::V1Beta1];

    /// Its name without the package's prefix, by which plugins offer it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1Beta1 => "v1beta1.DRAPlugin",
        }
    }

    fn full_name(self) -> &'static str {
        match self {
            Self::V1 => v1::dra_plugin_server::SERVICE_NAME,
            Self::V1Beta1 => v1beta1::dra_plugin_server::SERVICE_NAME,
        }
    }

    /// The first of the services that a plugin offers, in its order, as upstream chooses.
    pub(crate) fn choose(offered: &[String]) -> Result<Self, String> {
        if offered.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
        }
        let known = |name: &String| Self::ALL.into_iter().find(|own| own.name() == name);
        offered.iter().find_map(known).ok_or_else(|| {
            format!(
                "none of services supported by the plugin ({}) are supported by the kubelet ({})",
                quoted(offered.iter().map(String::as_str)),
                quoted(Self::ALL.iter().map(|own| own.name())),
            )
        })
    }
}

/// A list as Go prints it.
fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    format!("[{}]", names.join(" "))
}

/// A plugin that is registered.
pub(crate) struct Plugin {
    pub(crate) driver: String,
    pub(crate) endpoint: String,
    pub(crate) service: Service,
    pub(crate) connection: Connection,
    pub(crate) metrics: Metrics,
    /// Its tasks, which end with it.
    pub(crate) _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Plugin {
    /// Asks it to prepare claims.
    pub(crate) async fn prepare(
        &self,
        claims: Vec<v1::Claim>,
    ) -> Result<v1::NodePrepareResourcesResponse, Failure> {
        let message = v1::NodePrepareResourcesRequest { claims };
        let request = request(message, Some(TIMEOUT));
        let service = self.service;
        self.call(crate::answers::PREPARE, async |connected| match service {
            Service::V1 => {
                let mut client = DraPluginClient::with_origin(connected, origin());
                await_response(None, client.node_prepare_resources(request)).await
            }
            Service::V1Beta1 => {
                let mut client = EarlierClient::with_origin(connected, origin());
                await_response(None, client.node_prepare_resources(request)).await
            }
        })
        .await
    }

    /// Asks it to unprepare claims.
    pub(crate) async fn unprepare(
        &self,
        claims: Vec<v1::Claim>,
    ) -> Result<v1::NodeUnprepareResourcesResponse, Failure> {
        let message = v1::NodeUnprepareResourcesRequest { claims };
        let request = request(message, Some(TIMEOUT));
        let service = self.service;
        self.call(crate::answers::UNPREPARE, async |connected| match service {
            Service::V1 => {
                let mut client = DraPluginClient::with_origin(connected, origin());
                await_response(None, client.node_unprepare_resources(request)).await
            }
            Service::V1Beta1 => {
                let mut client = EarlierClient::with_origin(connected, origin());
                await_response(None, client.node_unprepare_resources(request)).await
            }
        })
        .await
    }

    async fn call<T>(
        &self,
        method: &'static str,
        send: impl AsyncFnOnce(Connected) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let answer = timeout(TIMEOUT, async { send(self.connection.ready().await?).await });
        // The future of a call is large.
        let answer = Box::pin(answer).await;
        let answer = answer
            .unwrap_or_else(|_| Err(Failure::Deadline("context deadline exceeded".to_owned())));
        let code = answer.as_ref().err().map_or(Code::Ok, Failure::code);
        let method = format!("/{}/{method}", self.service.full_name());
        self.metrics.call(&self.driver, &method, &code_name(code), began.elapsed());
        answer
    }
}

/// The reports of the health of a driver's devices.
pub(crate) async fn watch_health(
    connection: &Connection,
) -> Result<Streaming<NodeWatchResourcesResponse>, Failure> {
    let connected = connection.ready().await?;
    let mut client = DraResourceHealthClient::with_origin(connected, origin());
    let request = request(NodeWatchResourcesRequest {}, None);
    await_response(None, client.node_watch_resources(request)).await
}
