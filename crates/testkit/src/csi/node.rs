//! The services of a driver. Calls are idempotent.
use std::sync::Arc;

use longshore_csi::v1::identity_server::Identity;
use longshore_csi::v1::node_server::Node;
use longshore_csi::v1::node_service_capability::{self, Rpc};
use longshore_csi::v1::volume_capability::AccessType;
use longshore_csi::v1::{
    GetPluginInfoRequest, GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, ProbeRequest,
    ProbeResponse, Topology, VolumeCapability,
};
use tonic::{Request, Response, Status, async_trait};

use super::mounts;
use super::state::State;

#[derive(Debug, Clone)]
pub(super) struct Service(pub(super) Arc<State>);

#[async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.0.lock().options.name.clone();
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = Default::default();
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, manifest }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse::default()))
    }
}

#[async_trait]
impl Node for Service {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.0.meet("NodeGetInfo").await?.due().await?;
        let options = self.0.lock().options.clone();
        let topology = Some(options.topology).filter(|segments| !segments.is_empty());
        Ok(Response::new(NodeGetInfoResponse {
            node_id: options.node_id,
            max_volumes_per_node: options.max_volumes,
            accessible_topology: topology.map(|segments| Topology { segments }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        self.0.enter("NodeGetCapabilities", "").await?.due().await?;
        let capabilities = self.0.lock().options.capabilities.clone();
        let capabilities = capabilities.into_iter().map(|able| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: able.into() })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let _turn = self.0.begin("NodeStageVolume", &request.volume_id);
        self.0.lock().check_stage(&request);
        let reply = self.0.enter("NodeStageVolume", &request.volume_id).await?;
        let volume = self.0.volume(&request.volume_id);
        if is_block(request.volume_capability.as_ref()) {
            mounts::attach(&volume)?;
        } else {
            mounts::bind(&mounts::directory(&volume)?, request.staging_target_path.as_ref())?;
        }
        let staged = (request.volume_id, request.staging_target_path);
        self.0.lock().volume_log.staged.extend([staged]);
        reply.due().await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let _turn = self.0.begin("NodeUnstageVolume", &request.volume_id);
        self.0.lock().volume_log.check_unstage(&request.volume_id);
        let reply = self.0.enter("NodeUnstageVolume", &request.volume_id).await?;
        mounts::unmount(request.staging_target_path.as_ref())?;
        mounts::detach(&self.0.volume(&request.volume_id))?;
        self.0.lock().volume_log.staged.remove(&request.volume_id);
        reply.due().await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let _turn = self.0.begin("NodePublishVolume", &request.volume_id);
        self.0.lock().check_publish(&request);
        let reply = self.0.enter("NodePublishVolume", &request.volume_id).await?;
        let volume = self.0.volume(&request.volume_id);
        let target = request.target_path.as_ref();
        if is_block(request.volume_capability.as_ref()) {
            let device = mounts::attach(&volume)?;
            mounts::make_file(target)?;
            mounts::bind(&device, target)?;
        } else {
            let directory = mounts::directory(&volume)?;
            mounts::directory(target)?;
            mounts::bind(&directory, target)?;
            if request.readonly {
                mounts::make_read_only(target)?;
            }
        }
        let published = (request.volume_id, request.target_path);
        self.0.lock().volume_log.published.insert(published);
        reply.due().await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let _turn = self.0.begin("NodeUnpublishVolume", &request.volume_id);
        let reply = self.0.enter("NodeUnpublishVolume", &request.volume_id).await?;
        mounts::unmount(request.target_path.as_ref())?;
        mounts::remove(request.target_path.as_ref())?;
        let published = (request.volume_id, request.target_path);
        self.0.lock().volume_log.published.remove(&published);
        reply.due().await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.0.enter("NodeGetVolumeStats", &request.volume_id).await?.due().await?;
        let usage = mounts::usage(request.volume_path.as_ref())?;
        let options = self.0.lock().options.clone();
        Ok(Response::new(NodeGetVolumeStatsResponse {
            usage: options.usage.unwrap_or(usage),
            volume_condition: Some(options.condition),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.0.lock().expansions.push(request.clone());
        self.0.enter("NodeExpandVolume", &request.volume_id).await?.due().await?;
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    let access = capability.and_then(|capability| capability.access_type.as_ref());
    matches!(access, Some(AccessType::Block(_)))
}
