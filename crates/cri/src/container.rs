//! Calls about containers and exec.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::v1::{
    AttachRequest, CheckpointContainerRequest, Container, ContainerConfig, ContainerFilter,
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecRequest, ExecSyncRequest,
    ExecSyncResponse, ListContainersRequest, PodSandboxConfig, RemoveContainerRequest,
    ReopenContainerLogRequest, StartContainerRequest, StopContainerRequest,
    StreamContainersRequest, UpdateContainerResourcesRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// Creates a container, without starting it; returns its id. `sandbox_config`
    /// is the config of its sandbox.
    pub async fn create_container(
        &self,
        pod_sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let call = self.call("CreateContainer", "create_container");
        let request = call.request(CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        });
        let response = call.response(self.runtime().create_container(request)).await?;
        call.require(!response.container_id.is_empty(), "container_id")?;
        Ok(response.container_id)
    }

    /// Starts a container.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let call = self.call("StartContainer", "start_container");
        let request = call.request(StartContainerRequest { container_id: id.to_owned() });
        call.response(self.runtime().start_container(request)).await?;
        Ok(())
    }

    /// Sends a container its stop signal, and after `grace` (whole seconds,
    /// rounded up) SIGKILL. The response comes when it has stopped, so the deadline
    /// is extended by `grace`. For a container that was removed, containerd 1.6
    /// returns [not found](crate::Error::is_not_found).
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let call = self
            .call("StopContainer", "stop_container")
            .within(Some(self.request_timeout().saturating_add(grace)));
        let request = call.request(StopContainerRequest {
            container_id: id.to_owned(),
            timeout: whole_seconds(grace),
        });
        call.response(self.runtime().stop_container(request)).await?;
        Ok(())
    }

    /// Removes a container, killing it if it runs. A missing one is no error.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let call = self.call("RemoveContainer", "remove_container");
        let request = call.request(RemoveContainerRequest { container_id: id.to_owned() });
        call.response(self.runtime().remove_container(request)).await?;
        Ok(())
    }

    /// The containers that match the filter.
    pub async fn list_containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        if self.streams_lists() {
            let call = self.call("StreamContainers", "list_containers");
            let request = call.request(StreamContainersRequest { filter: filter.clone() });
            let mut client = self.runtime();
            let parts = client.stream_containers(request);
            if let Some(list) = self.list_in_parts(call, parts, |part| part.containers).await? {
                return Ok(list);
            }
        }
        let call = self.call("ListContainers", "list_containers");
        let request = call.request(ListContainersRequest { filter });
        let response = call.response(self.runtime().list_containers(request)).await?;
        Ok(response.containers)
    }

    /// The status of a container: id, metadata, creation time and image are
    /// always present.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        Ok(self.container_status_of(id, false).await?.0)
    }

    /// [`container_status`](Self::container_status), and the pid of the container's first process
    /// while it runs, if the runtime reports it. Costs the runtime more.
    pub async fn container_status_and_pid(
        &self,
        id: &str,
    ) -> Result<(ContainerStatus, Option<i32>)> {
        self.container_status_of(id, true).await
    }

    async fn container_status_of(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<(ContainerStatus, Option<i32>)> {
        let call = self.call("ContainerStatus", "container_status");
        let request = call.request(ContainerStatusRequest { container_id: id.to_owned(), verbose });
        let response = call.response(self.runtime().container_status(request)).await?;
        let status = call.required(response.status, "status")?;
        call.require(!status.id.is_empty(), "status.id")?;
        let metadata = call.required(status.metadata.as_ref(), "status.metadata")?;
        call.require(!metadata.name.is_empty(), "status.metadata.name")?;
        call.require(status.created_at != 0, "status.created_at")?;
        let image = call.required(status.image.as_ref(), "status.image")?;
        call.require(!image.image.is_empty(), "status.image.image")?;
        call.require(!status.image_ref.is_empty(), "status.image_ref")?;
        Ok((status, pid(&response.info)))
    }

    /// Updates the resources of a running container.
    pub async fn update_container_resources(
        &self,
        request: UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let call = self.call("UpdateContainerResources", "update_container");
        let request = call.request(request);
        call.response(self.runtime().update_container_resources(request)).await?;
        Ok(())
    }

    /// Reopens a container's log file, after rotation.
    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let call = self.call("ReopenContainerLog", "reopen_container_log");
        let request = call.request(ReopenContainerLogRequest { container_id: id.to_owned() });
        call.response(self.runtime().reopen_container_log(request)).await?;
        Ok(())
    }

    /// Writes a checkpoint of a container to the archive at `location`, in at
    /// most `timeout`, or the default timeout if that is longer.
    pub async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        timeout: Duration,
    ) -> Result<()> {
        let timeout = timeout.max(self.request_timeout());
        let call = self.call("CheckpointContainer", "checkpoint_container").within(Some(timeout));
        let request = call.request(CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout: whole_seconds(timeout),
        });
        call.response(self.runtime().checkpoint_container(request)).await?;
        Ok(())
    }

    /// Runs a command until it exits and returns its output and exit code. After
    /// `timeout` (whole seconds, rounded up) the runtime kills it and returns
    /// [`crate::Error::DeadlineExceeded`], if it reports that; without timeout, it
    /// may run for ever.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecSyncResponse> {
        // the runtime needs more time than the command, to clean up
        let deadline = timeout.map(|t| t.saturating_add(self.request_timeout()));
        let call = self.call("ExecSync", "exec_sync").within(deadline);
        let request = call.request(ExecSyncRequest {
            container_id: id.to_owned(),
            cmd,
            timeout: timeout.map_or(0, |t| whole_seconds(t).max(1)),
        });
        call.response(self.runtime().exec_sync(request)).await
    }

    /// The streaming URL of a new command in a container.
    pub async fn exec(&self, request: ExecRequest) -> Result<String> {
        let call = self.call("Exec", "exec");
        let request = call.request(request);
        let response = call.response(self.runtime().exec(request)).await?;
        call.require(!response.url.is_empty(), "url")?;
        Ok(response.url)
    }

    /// The streaming URL of a container's main process.
    pub async fn attach(&self, request: AttachRequest) -> Result<String> {
        let call = self.call("Attach", "attach");
        let request = call.request(request);
        let response = call.response(self.runtime().attach(request)).await?;
        call.require(!response.url.is_empty(), "url")?;
        Ok(response.url)
    }
}

/// Whole seconds, rounded up, since 0 often has a special meaning.
fn whole_seconds(duration: Duration) -> i64 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

/// The pid in the verbose info of containerd and CRI-O: JSON under the key `info`, which is not
/// part of the CRI specification.
fn pid(info: &BTreeMap<String, String>) -> Option<i32> {
    #[derive(serde::Deserialize)]
    struct Info {
        pid: i32,
    }
    let info: Info = serde_json::from_str(info.get("info")?).ok()?;
    (info.pid > 0).then_some(info.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_from_verbose_info() {
        for (text, expected) in [
            (r#"{"sandboxID":"a","pid":417,"runtimeSpec":{"process":{"pid":5}}}"#, Some(417)),
            (r#"{"pid":0}"#, None),
            (r#"{"pid":-1}"#, None),
            (r#"{"pid":4294967296}"#, None),
            (r#"{"pid":"417"}"#, None),
            (r#"{"sandboxID":"a"}"#, None),
            ("[]", None),
            ("", None),
        ] {
            let info = BTreeMap::from([("info".to_owned(), text.to_owned())]);
            assert_eq!(pid(&info), expected, "{text}");
        }
        assert_eq!(pid(&BTreeMap::new()), None);
    }
}
