//! The client of one driver: its connection, what it can do, and the calls of the node.

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

/// How to reach a driver.
#[derive(Clone)]
pub struct Options {
    /// `unix:///var/…`, or the bare path of the socket.
    pub endpoint: String,
    /// How long a call may take.
    pub timeout: Duration,
    /// Is told of each call.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// Two minutes for a call, no observer.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), timeout: Duration::from_secs(120), observer: None }
    }
}

/// What a driver can do on a node, beyond publishing volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Volumes are staged on the node before they are published to pods.
    pub stage: bool,
    /// It tells how full volumes are.
    pub stats: bool,
    /// It makes volumes larger.
    pub expand: bool,
    /// It tells whether volumes are well.
    pub condition: bool,
    /// It tells one writer from several on a node.
    pub single_node_multi_writer: bool,
    /// It gives volumes to a group itself.
    pub mount_group: bool,
}

impl Capabilities {
    fn of(told: &[NodeServiceCapability]) -> Self {
        let has = |wanted: rpc::Type| {
            told.iter().any(|capability| match &capability.r#type {
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

/// A client of one driver. Clones share its connection and what is known of it.
///
/// Making one does no I/O: it connects with the first call, and again with the next call after the
/// driver went away. Dropping the future of a call cancels the call in the driver.
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

    /// What the driver can do; asked once, as it does not change while a driver is registered.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        let call = self.call("NodeGetCapabilities");
        let ask = self.0.capabilities.get_or_try_init(async || {
            let request = call.request(NodeGetCapabilitiesRequest {});
            let answer = call.answer(self.node().node_get_capabilities(request)).await?;
            Ok(Capabilities::of(&answer.capabilities))
        });
        // Who waits for another's question to a driver that is stuck waits no longer than it.
        match timeout(self.0.timeout, ask).await {
            Ok(capabilities) => capabilities.copied(),
            Err(_) => {
                let failure = Failure::Deadline("no answer in time".to_owned());
                Err(Error::call(self.name(), call.rpc, failure))
            }
        }
    }

    /// What the driver calls this node, how many volumes it can have, and from where.
    pub async fn info(&self) -> Result<NodeGetInfoResponse> {
        let call = self.call("NodeGetInfo");
        let request = call.request(NodeGetInfoRequest {});
        let answer = call.answer(self.node().node_get_info(request)).await?;
        call.demand(!answer.node_id.is_empty(), "node_id")?;
        Ok(answer)
    }

    /// Makes a volume ready on the node.
    pub async fn stage(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let call = self.call("NodeStageVolume");
        let request = call.request(request);
        call.answer(self.node().node_stage_volume(request)).await.map(drop)
    }

    /// Takes that back. A volume that is not staged is no error.
    pub async fn unstage(&self, volume: &str, staging_path: &str) -> Result<()> {
        let call = self.call("NodeUnstageVolume");
        let request = call.request(NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging_path.to_owned(),
        });
        call.answer(self.node().node_unstage_volume(request)).await.map(drop)
    }

    /// Makes a volume available to a pod.
    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let call = self.call("NodePublishVolume");
        let request = call.request(request);
        call.answer(self.node().node_publish_volume(request)).await.map(drop)
    }

    /// Takes that back. A volume that is not published there is no error.
    pub async fn unpublish(&self, volume: &str, target_path: &str) -> Result<()> {
        let call = self.call("NodeUnpublishVolume");
        let request = call.request(NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: target_path.to_owned(),
        });
        call.answer(self.node().node_unpublish_volume(request)).await.map(drop)
    }

    /// Makes a volume larger.
    pub async fn expand(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse> {
        let call = self.call("NodeExpandVolume");
        let request = call.request(request);
        call.answer(self.node().node_expand_volume(request)).await
    }

    /// How full a volume is, and how it is.
    pub async fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse> {
        let call = self.call("NodeGetVolumeStats");
        let request = call.request(request);
        let answer = call.answer(self.node().node_get_volume_stats(request)).await?;
        call.demand(!answer.usage.is_empty(), "usage")?;
        Ok(answer)
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

/// Shows which volume is meant, and no secret.
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
