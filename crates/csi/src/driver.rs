//! The client of a driver: its connection, capabilities, and the calls of the node service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use longshore_grpc::{Endpoint, Failure};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::call::{Call, Observer};
use crate::v1::node_client::NodeClient;
use crate::v1::node_server::SERVICE_NAME;
use crate::v1::node_service_capability::{Type as CapabilityType, rpc};
use crate::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeServiceCapability, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::{Error, Result};

/// Options of a client.
#[derive(Clone)]
pub struct Options {
    /// `unix:///var/…`, or the bare path of the socket.
    pub endpoint: String,
    /// Timeout of a call.
    pub timeout: Duration,
    /// Observes calls.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// Two minutes for a call, no observer.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), timeout: Duration::from_secs(120), observer: None }
    }
}

/// The node service capabilities of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// STAGE_UNSTAGE_VOLUME.
    pub stage: bool,
    /// GET_VOLUME_STATS.
    pub stats: bool,
    /// EXPAND_VOLUME.
    pub expand: bool,
    /// VOLUME_CONDITION.
    pub condition: bool,
    /// SINGLE_NODE_MULTI_WRITER.
    pub single_node_multi_writer: bool,
    /// VOLUME_MOUNT_GROUP.
    pub mount_group: bool,
}

impl Capabilities {
    fn of(reported: &[NodeServiceCapability]) -> Self {
        let has = |wanted: rpc::Type| {
            reported.iter().any(|capability| match &capability.r#type {
                Some(CapabilityType::Rpc(rpc)) => rpc.r#type() == wanted,
                None => false,
            })
        };
        Self {
            stage: has(rpc::Type::StageUnstageVolume),
            stats: has(rpc::Type::GetVolumeStats),
            expand: has(rpc::Type::ExpandVolume),
            condition: has(rpc::Type::VolumeCondition),
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
            mount_group: has(rpc::Type::VolumeMountGroup),
        }
    }
}

/// A client of a driver. Clones share the connection and the capabilities.
///
/// It connects with the first call, and reconnects with the next call after the driver became
/// unavailable. Dropping the future of a call cancels the call in the driver.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    name: String,
    endpoint: Endpoint,
    node: NodeClient<Channel>,
    timeout: Duration,
    observer: Option<Arc<dyn Observer>>,
    capabilities: OnceCell<Capabilities>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({} at {})", self.0.name, self.0.endpoint)
    }
}

impl Driver {
    /// A client of the driver of that name. Must be made inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for an endpoint that is no Unix socket.
    pub fn new(name: &str, options: Options) -> Result<Self> {
        let endpoint =
            Endpoint::parse(&options.endpoint).map_err(|invalid| Error::endpoint(name, invalid))?;
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            node: NodeClient::new(endpoint.channel()),
            endpoint,
            timeout: options.timeout,
            observer: options.observer,
            capabilities: OnceCell::new(),
        })))
    }

    /// The driver's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The driver's capabilities; queried once, as they do not change while a driver is registered.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        let call = self.call("NodeGetCapabilities");
        let query = self.0.capabilities.get_or_try_init(async || {
            let request = call.request(NodeGetCapabilitiesRequest {});
            let response = call.response(self.node().node_get_capabilities(request)).await?;
            Ok(Capabilities::of(&response.capabilities))
        });
        // The timeout also covers waiting for a concurrent query.
        match timeout(self.0.timeout, query).await {
            Ok(capabilities) => capabilities.copied(),
            Err(_) => {
                let failure = Failure::Deadline("no response in time".to_owned());
                Err(Error::call(self.name(), call.rpc, failure))
            }
        }
    }

    /// The node's ID, attach limit and topology.
    pub async fn info(&self) -> Result<NodeGetInfoResponse> {
        let call = self.call("NodeGetInfo");
        let request = call.request(NodeGetInfoRequest {});
        let response = call.response(self.node().node_get_info(request)).await?;
        call.require(!response.node_id.is_empty(), "node_id")?;
        Ok(response)
    }

    /// Stages a volume.
    pub async fn stage(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let call = self.call("NodeStageVolume");
        let request = call.request(request);
        call.response(self.node().node_stage_volume(request)).await.map(drop)
    }

    /// Unstages a volume; no error if it is not staged.
    pub async fn unstage(&self, volume: &str, staging_path: &str) -> Result<()> {
        let call = self.call("NodeUnstageVolume");
        let request = call.request(NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging_path.to_owned(),
        });
        call.response(self.node().node_unstage_volume(request)).await.map(drop)
    }

    /// Publishes a volume.
    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let call = self.call("NodePublishVolume");
        let request = call.request(request);
        call.response(self.node().node_publish_volume(request)).await.map(drop)
    }

    /// Unpublishes a volume; no error if it is not published.
    pub async fn unpublish(&self, volume: &str, target_path: &str) -> Result<()> {
        let call = self.call("NodeUnpublishVolume");
        let request = call.request(NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target_path.to_owned(),
        });
        call.response(self.node().node_unpublish_volume(request)).await.map(drop)
    }

    /// Expands a volume.
    pub async fn expand(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse> {
        let call = self.call("NodeExpandVolume");
        let request = call.request(request);
        call.response(self.node().node_expand_volume(request)).await
    }

    /// The stats and condition of a volume.
    pub async fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse> {
        let call = self.call("NodeGetVolumeStats");
        let request = call.request(request);
        let response = call.response(self.node().node_get_volume_stats(request)).await?;
        call.require(!response.usage.is_empty(), "usage")?;
        Ok(response)
    }

    fn node(&self) -> NodeClient<Channel> {
        self.0.node.clone()
    }

    fn call(&self, rpc: &'static str) -> Call<'_> {
        let Inner { name, timeout, observer, .. } = &*self.0;
        Call {
            driver: name,
            service: SERVICE_NAME,
            rpc,
            deadline: *timeout,
            observer: observer.as_deref(),
        }
    }
}

/// `Debug` without secrets.
macro_rules! without_secrets {
    ($($request:ident),*) => {$(
        impl fmt::Debug for $request {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($request));
                shown.field("volume_id", &self.volume_id).finish_non_exhaustive()
            }
        }
    )*};
}

without_secrets!(NodeStageVolumeRequest, NodePublishVolumeRequest, NodeExpandVolumeRequest);
