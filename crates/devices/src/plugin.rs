//! The client of a plugin: its calls, each with a deadline.

use std::path::Path;
use std::time::Duration;

use longshore_base::retry::Delays;
use longshore_grpc::{Endpoint, Failure, await_response, request};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::error::Error;
use crate::select::Query;
use crate::v1beta1::device_plugin_client::DevicePluginClient;
use crate::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest,
};

/// Deadline of the connection, as upstream has it, and of the call for the options.
const CONNECT: Duration = Duration::from_secs(10);
/// Delays between attempts to connect: a plugin may register just before it listens.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Deadline of an allocation, for which upstream has none: some plugins program their device in it.
const ALLOCATE: Duration = Duration::from_secs(120);
/// Deadline of a preferred allocation, during which the pod is not decided about.
const PREFER: Duration = Duration::from_secs(30);
/// Deadline before the start of a container, as upstream has it.
const PRE_START: Duration = Duration::from_secs(30);

/// A client of a plugin. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    client: DevicePluginClient<Channel>,
}

impl Plugin {
    /// Connects to the plugin that listens at `socket`.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Error> {
        let dial = |why: &dyn std::fmt::Display| Error::Dial(why.to_string());
        let path = socket.to_str().ok_or_else(|| dial(&"the path is not UTF-8"))?;
        let endpoint = Endpoint::parse(path).map_err(|invalid| dial(&invalid.reason))?;
        let mut last = None;
        let listening = async {
            let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
            while let Err(error) = UnixStream::connect(socket).await {
                last = Some(error);
                sleep(delays.next_delay()).await;
            }
        };
        if timeout(CONNECT, listening).await.is_err() {
            let why = last.map(|error| error.to_string()).unwrap_or_default();
            return Err(dial(&format!("context deadline exceeded: {why}")));
        }
        Ok(Self { client: DevicePluginClient::new(endpoint.channel()) })
    }

    pub(crate) async fn options(&self) -> Result<DevicePluginOptions, Error> {
        let mut client = self.client.clone();
        let sent = client.get_device_plugin_options(request(Empty {}, Some(CONNECT)));
        let options = await_response(Some(CONNECT), sent).await;
        options.map_err(|failure| Error::Options(failure.go_text()))
    }

    /// The stream of the plugin's devices. It begins when the plugin sends its headers.
    pub(crate) async fn devices(&self) -> Result<Streaming<ListAndWatchResponse>, Failure> {
        let mut client = self.client.clone();
        await_response(None, client.list_and_watch(request(Empty {}, None))).await
    }

    /// The devices that the plugin prefers.
    pub(crate) async fn prefer(&self, query: &Query) -> Result<Vec<String>, String> {
        let message = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: query.available.iter().cloned().collect(),
                must_include_device_i_ds: query.chosen.iter().cloned().collect(),
                allocation_size: i32::try_from(query.count).unwrap_or(i32::MAX),
            }],
        };
        let mut client = self.client.clone();
        let sent = client.get_preferred_allocation(request(message, Some(PREFER)));
        let response = await_response(Some(PREFER), sent).await.map_err(Failure::go_text)?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// What the container gets for the devices; `None`: nothing was allocated.
    pub(crate) async fn allocate(
        &self,
        ids: Vec<String>,
    ) -> Result<Option<ContainerAllocateResponse>, Error> {
        let container_requests = vec![ContainerAllocateRequest { devices_ids: ids }];
        let message = AllocateRequest { container_requests };
        let mut client = self.client.clone();
        let sent = client.allocate(request(message, Some(ALLOCATE)));
        let response = await_response(Some(ALLOCATE), sent).await;
        let response = response.map_err(|failure| Error::Allocate(failure.go_text()))?;
        Ok(response.container_responses.into_iter().next())
    }

    pub(crate) async fn pre_start(&self, ids: Vec<String>) -> Result<(), Error> {
        let message = PreStartContainerRequest { devices_ids: ids };
        let mut client = self.client.clone();
        let sent = client.pre_start_container(request(message, Some(PRE_START)));
        let done = await_response(Some(PRE_START), sent).await;
        done.map(drop).map_err(|failure| Error::PreStart(failure.go_text()))
    }
}
