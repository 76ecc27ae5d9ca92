//! Calls about pod sandboxes.

use crate::v1::{
    ContainerStatus, ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxStatus, PodSandboxStatusRequest, PortForwardRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StopPodSandboxRequest, StreamPodSandboxesRequest,
    UpdatePodSandboxResourcesRequest,
};
use crate::{Result, Runtime};

/// The status of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStatus {
    /// The sandbox: id, metadata and creation time are always present.
    pub sandbox: PodSandboxStatus,
    /// Its containers, if the runtime supports container events; else empty.
    pub containers: Vec<ContainerStatus>,
    /// The time of the status, in nanoseconds since the epoch; 0 if the runtime
    /// does not report it.
    pub timestamp: i64,
}

impl Runtime {
    /// Creates and starts a sandbox; returns its id. `runtime_handler` may be
    /// empty. The deadline is twice the default, for its network.
    pub async fn run_pod_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        let call = self
            .call("RunPodSandbox", "run_podsandbox")
            .within(Some(self.request_timeout().saturating_mul(2)));
        let request = call.request(RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        });
        let response = call.response(self.runtime().run_pod_sandbox(request)).await?;
        call.require(!response.pod_sandbox_id.is_empty(), "pod_sandbox_id")?;
        Ok(response.pod_sandbox_id)
    }

    /// Stops the containers of a sandbox and releases its network. May be repeated; for a sandbox
    /// that was removed, containerd 1.6 returns [not found](crate::Error::is_not_found).
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.call("StopPodSandbox", "stop_podsandbox");
        let request = call.request(StopPodSandboxRequest { pod_sandbox_id: id.to_owned() });
        call.response(self.runtime().stop_pod_sandbox(request)).await?;
        Ok(())
    }

    /// Removes a sandbox with all its containers. A missing one is no error.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.call("RemovePodSandbox", "remove_podsandbox");
        let request = call.request(RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() });
        call.response(self.runtime().remove_pod_sandbox(request)).await?;
        Ok(())
    }

    /// The status of a sandbox.
    pub async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        let call = self.call("PodSandboxStatus", "podsandbox_status");
        let request =
            call.request(PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false });
        let response = call.response(self.runtime().pod_sandbox_status(request)).await?;
        let sandbox = call.required(response.status, "status")?;
        call.require(!sandbox.id.is_empty(), "status.id")?;
        let metadata = call.required(sandbox.metadata.as_ref(), "status.metadata")?;
        call.require(!metadata.name.is_empty(), "status.metadata.name")?;
        call.require(!metadata.namespace.is_empty(), "status.metadata.namespace")?;
        call.require(!metadata.uid.is_empty(), "status.metadata.uid")?;
        call.require(sandbox.created_at != 0, "status.created_at")?;
        Ok(SandboxStatus {
            sandbox,
            containers: response.containers_statuses,
            timestamp: response.timestamp,
        })
    }

    /// The sandboxes that match the filter.
    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>> {
        if self.streams_lists() {
            let call = self.call("StreamPodSandboxes", "list_podsandbox");
            let request = call.request(StreamPodSandboxesRequest { filter: filter.clone() });
            let mut client = self.runtime();
            let parts = client.stream_pod_sandboxes(request);
            if let Some(list) = self.list_in_parts(call, parts, |part| part.pod_sandboxes).await? {
                return Ok(list);
            }
        }
        let call = self.call("ListPodSandbox", "list_podsandbox");
        let request = call.request(ListPodSandboxRequest { filter });
        let response = call.response(self.runtime().list_pod_sandbox(request)).await?;
        Ok(response.items)
    }

    /// Updates the resources of a sandbox as a whole.
    pub async fn update_pod_sandbox_resources(
        &self,
        request: UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let call = self.call("UpdatePodSandboxResources", "update_podsandbox_resources");
        let request = call.request(request);
        call.response(self.runtime().update_pod_sandbox_resources(request)).await?;
        Ok(())
    }

    /// The streaming URL for these ports of a sandbox.
    pub async fn port_forward(&self, id: &str, ports: Vec<i32>) -> Result<String> {
        let call = self.call("PortForward", "port_forward");
        let request =
            call.request(PortForwardRequest { pod_sandbox_id: id.to_owned(), port: ports });
        let response = call.response(self.runtime().port_forward(request)).await?;
        call.require(!response.url.is_empty(), "url")?;
        Ok(response.url)
    }
}
