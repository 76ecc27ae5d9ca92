//! Calls about pod sandboxes.

use crate::v1::{
    ContainerStatus, ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxStatus, PodSandboxStatusRequest, PortForwardRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StopPodSandboxRequest, UpdatePodSandboxResourcesRequest,
};
use crate::{Result, Runtime};

/// A sandbox as the runtime sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStatus {
    /// The sandbox: id, metadata and creation time are always there.
    pub sandbox: PodSandboxStatus,
    /// Its containers, from runtimes with container events; else empty.
    pub containers: Vec<ContainerStatus>,
    /// When all this was read, in nanoseconds since the epoch; 0 from runtimes
    /// that do not say.
    pub timestamp: i64,
}

impl Runtime {
    /// Makes and starts a sandbox; gives its id. `runtime_handler` may be
    /// empty. May take twice as long as an ordinary call, for its network.
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
        let answer = call.answer(self.runtime().run_pod_sandbox(request)).await?;
        call.demand(!answer.pod_sandbox_id.is_empty(), "pod_sandbox_id")?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops what runs in a sandbox and gives its network back. May be repeated; once the sandbox
    /// is removed, containerd 1.6 answers [not found](crate::Error::is_not_found).
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.call("StopPodSandbox", "stop_podsandbox");
        let request = call.request(StopPodSandboxRequest { pod_sandbox_id: id.to_owned() });
        call.answer(self.runtime().stop_pod_sandbox(request)).await?;
        Ok(())
    }

    /// Removes a sandbox with all its containers. One that is gone already is
    /// no error.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.call("RemovePodSandbox", "remove_podsandbox");
        let request = call.request(RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() });
        call.answer(self.runtime().remove_pod_sandbox(request)).await?;
        Ok(())
    }

    /// How a sandbox stands.
    pub async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        let call = self.call("PodSandboxStatus", "podsandbox_status");
        let request =
            call.request(PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false });
        let answer = call.answer(self.runtime().pod_sandbox_status(request)).await?;
        let sandbox = call.required(answer.status, "status")?;
        call.demand(!sandbox.id.is_empty(), "status.id")?;
        let metadata = call.required(sandbox.metadata.as_ref(), "status.metadata")?;
        call.demand(!metadata.name.is_empty(), "status.metadata.name")?;
        call.demand(!metadata.namespace.is_empty(), "status.metadata.namespace")?;
        call.demand(!metadata.uid.is_empty(), "status.metadata.uid")?;
        call.demand(sandbox.created_at != 0, "status.created_at")?;
        Ok(SandboxStatus {
            sandbox,
            containers: answer.containers_statuses,
            timestamp: answer.timestamp,
        })
    }

    /// The sandboxes that match; all with no filter.
    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>> {
        let call = self.call("ListPodSandbox", "list_podsandbox");
        let request = call.request(ListPodSandboxRequest { filter });
        let answer = call.answer(self.runtime().list_pod_sandbox(request)).await?;
        Ok(answer.items)
    }

    /// Gives a sandbox new resources as a whole.
    pub async fn update_pod_sandbox_resources(
        &self,
        request: UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let call = self.call("UpdatePodSandboxResources", "update_podsandbox_resources");
        let request = call.request(request);
        call.answer(self.runtime().update_pod_sandbox_resources(request)).await?;
        Ok(())
    }

    /// The URL of a stream that carries these ports of a sandbox.
    pub async fn port_forward(&self, id: &str, ports: Vec<i32>) -> Result<String> {
        let call = self.call("PortForward", "port_forward");
        let request =
            call.request(PortForwardRequest { pod_sandbox_id: id.to_owned(), port: ports });
        let answer = call.answer(self.runtime().port_forward(request)).await?;
        call.demand(!answer.url.is_empty(), "url")?;
        Ok(answer.url)
    }
}
