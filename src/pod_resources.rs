//! What the PodResources API reports of this node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_devices::pod_resources::{Memory, Sources, v1};
use longshore_dra as dra;
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
        let mut pods = self.desired.pods();
        pods.retain(|pod| self.status.is_active(pod));
        pods
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

    fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<v1::DynamicResource> {
        self.claims.resources(pod, container).into_iter().map(dynamic_resource).collect()
    }
}

fn dynamic_resource(own: dra::DynamicResource) -> v1::DynamicResource {
    let resource = |own: dra::ClaimDevice| v1::ClaimResource {
        cdi_devices: own.cdi_devices.into_iter().map(|name| v1::CdiDevice { name }).collect(),
        driver_name: own.driver,
        pool_name: own.pool,
        device_name: own.device,
        share_id: own.share_id,
    };
    v1::DynamicResource {
        claim_name: own.claim_name,
        claim_namespace: own.claim_namespace,
        claim_resources: own.devices.into_iter().map(resource).collect(),
    }
}

fn memory(blocks: Vec<Block>) -> Vec<Memory> {
    let block = |own: Block| Memory { resource: own.resource, size: own.size, nodes: own.nodes };
    blocks.into_iter().map(block).collect()
}
