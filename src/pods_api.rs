//! What the Pods API reports of this node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::spec;
use longshore_pods_api::Sources;
use longshore_podstate::desired::Desired;

use crate::status::{StatusWriter, with_status};

/// The sources of its answers.
pub(crate) struct NodePods {
    pub(crate) desired: Desired,
    pub(crate) status: StatusWriter,
}

impl NodePods {
    fn current(&self, pod: Arc<Pod>) -> Arc<Pod> {
        match self.status.latest(spec::uid(&pod)) {
            Some(status) => Arc::new(with_status(&pod, status)),
            None => pod,
        }
    }
}

impl Sources for NodePods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.desired.pods().into_iter().map(|pod| self.current(pod)).collect()
    }

    fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.desired.pod(uid).map(|pod| self.current(pod))
    }
}
