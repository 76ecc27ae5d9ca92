//! What the PodResources API tells of this node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_devices::pod_resources::{ClaimDevice, DynamicResource, Memory, Sources};
use longshore_dra as dra;
use longshore_pod::spec;
use longshore_pod::status::is_final;
use longshore_podstate::desired::Desired;
use longshore_resources::managers::{Block, Managers};

use crate::status::StatusWriter;

/// The sources of its answers.
pub(crate) struct NodeResources {
    pub(crate) desired: Desired,
    pub(crate) status: StatusWriter,
    pub(crate) managers: Managers,
    pub(crate) claims: dra::Manager,
}

impl Sources for NodeResources {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.desired.pods()
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        let is_active = |pod: &Arc<Pod>| {
            let latest = self.status.latest(spec::uid(pod));
            let status = latest.as_ref().or(pod.status.as_ref());
            let phase = status.and_then(|status| status.phase.as_deref());
            !is_final(phase.unwrap_or_default())
        };
        self.desired.pods().into_iter().filter(is_active).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.desired.pod_by_name(namespace, name)
    }

    fn cpus(&self, uid: &str, container: &str) -> Vec<u32> {
        self.managers.exclusive_cpus(uid, container)
    }

    fn allocatable_cpus(&self) -> Vec<u32> {
        self.managers.allocatable_cpus()
    }

    fn memory(&self, uid: &str, container: &str) -> Vec<Memory> {
        memory(self.managers.memory_blocks(uid, container))
    }

    fn allocatable_memory(&self) -> Vec<Memory> {
        memory(self.managers.allocatable_memory())
    }

    fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        self.claims.resources(pod, container).into_iter().map(dynamic_resource).collect()
    }
}

fn dynamic_resource(of: dra::DynamicResource) -> DynamicResource {
    let device = |of: dra::ClaimDevice| ClaimDevice {
        driver: of.driver,
        pool: of.pool,
        device: of.device,
        share: of.share_id,
        cdi_devices: of.cdi_devices,
    };
    DynamicResource {
        claim: of.claim_name,
        namespace: of.claim_namespace,
        devices: of.devices.into_iter().map(device).collect(),
    }
}

fn memory(blocks: Vec<Block>) -> Vec<Memory> {
    let block = |own: Block| Memory { resource: own.resource, size: own.size, nodes: own.nodes };
    blocks.into_iter().map(block).collect()
}
