//! Calls about containers and the commands in them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::v1::{
    AttachRequest, CheckpointContainerRequest, Container, ContainerConfig, ContainerFilter,
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecRequest, ExecSyncRequest,
    ExecSyncResponse, ListContainersRequest, PodSandboxConfig, RemoveContainerRequest,
    ReopenContainerLogRequest, StartContainerRequest, StopContainerRequest,
    UpdateContainerResourcesRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// Makes a container, without starting it; gives its id. `sandbox_config`
    /// is the one that the sandbox was run with.
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
        let answer = call.answer(self.runtime().create_container(request)).await?;
        call.demand(!answer.container_id.is_empty(), "container_id")?;
        Ok(answer.container_id)
    }

    /// Starts a container.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let call = self.call("StartContainer", "start_container");
        let request = call.request(StartContainerRequest { container_id: id.to_owned() });
        call.answer(self.runtime().start_container(request)).await?;
        Ok(())
    }

    /// Sends a container its stop signal, and after `grace` (whole seconds,
    /// rounded up) SIGKILL. The answer comes when it has stopped, so the call
    /// may take the grace longer than an ordinary one. Once the container is removed,
    /// containerd 1.6 answers [not found](crate::Error::is_not_found).
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let call = self
            .call("StopContainer", "stop_container")
            .within(Some(self.request_timeout().saturating_add(grace)));
        let request = call.request(StopContainerRequest {
            container_id: id.to_owned(),
            timeout: whole_seconds(grace),
        });
        call.answer(self.runtime().stop_container(request)).await?;
        Ok(())
    }

    /// Removes a container, by force if it runs. One that is gone already is
    /// no error.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let call = self.call("RemoveContainer", "remove_container");
        let request = call.request(RemoveContainerRequest { container_id: id.to_owned() });
        call.answer(self.runtime().remove_container(request)).await?;
        Ok(())
    }

    /// The containers that match; all with no filter.
    pub async fn list_containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        let call = self.call("ListContainers", "list_containers");
        let request = call.request(ListContainersRequest { filter });
        let answer = call.answer(self.runtime().list_containers(request)).await?;
        Ok(answer.containers)
    }

    /// How a container stands: id, metadata, creation time and image are
    /// always there.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        Ok(self.container_status_of(id, false).await?.0)
    }

    /// [`container_status`](Self::container_status), and the pid of the container's first process
    /// while it runs, from runtimes that tell it. Costs the runtime more.
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
        let answer = call.answer(self.runtime().container_status(request)).await?;
        let status = call.required(answer.status, "status")?;
        call.demand(!status.id.is_empty(), "status.id")?;
        let metadata = call.required(status.metadata.as_ref(), "status.metadata")?;
        call.demand(!metadata.name.is_empty(), "status.metadata.name")?;
        call.demand(status.created_at != 0, "status.created_at")?;
        let image = call.required(status.image.as_ref(), "status.image")?;
        call.demand(!image.image.is_empty(), "status.image.image")?;
        call.demand(!status.image_ref.is_empty(), "status.image_ref")?;
        Ok((status, pid(&answer.info)))
    }

    /// Changes the limits of a running container.
    pub async fn update_container_resources(
        &self,
        request: UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let call = self.call("UpdateContainerResources", "update_container");
        let request = call.request(request);
        call.answer(self.runtime().update_container_resources(request)).await?;
        Ok(())
    }

    /// Has the runtime open a container's log file anew, after rotation.
    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let call = self.call("ReopenContainerLog", "reopen_container_log");
        let request = call.request(ReopenContainerLogRequest { container_id: id.to_owned() });
        call.answer(self.runtime().reopen_container_log(request)).await?;
        Ok(())
    }

    /// Writes a checkpoint of a container to the archive at `location`, in at
    /// most `timeout`, or an ordinary call's time if that is longer.
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
        call.answer(self.runtime().checkpoint_container(request)).await?;
        Ok(())
    }

    /// Runs a command to its end and gives its output and exit code (which may
    /// well not be 0). After `timeout` (whole seconds, rounded up) the runtime
    /// ends it, and the answer is [`crate::Error::DeadlineExceeded`] from
    /// runtimes that say so; without, it may run for ever.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecSyncResponse> {
        // the runtime needs some time beyond the command's own, to clean up
        let deadline = timeout.map(|t| t.saturating_add(self.request_timeout()));
        let call = self.call("ExecSync", "exec_sync").within(deadline);
        let request = call.request(ExecSyncRequest {
            container_id: id.to_owned(),
            cmd,
            timeout: timeout.map_or(0, |t| whole_seconds(t).max(1)),
        });
        call.answer(self.runtime().exec_sync(request)).await
    }

    /// The URL of a stream to a new command in a container.
    pub async fn exec(&self, request: ExecRequest) -> Result<String> {
        let call = self.call("Exec", "exec");
        let request = call.request(request);
        let answer = call.answer(self.runtime().exec(request)).await?;
        call.demand(!answer.url.is_empty(), "url")?;
        Ok(answer.url)
    }

    /// The URL of a stream to a container's main process.
    pub async fn attach(&self, request: AttachRequest) -> Result<String> {
        let call = self.call("Attach", "attach");
        let request = call.request(request);
        let answer = call.answer(self.runtime().attach(request)).await?;
        call.demand(!answer.url.is_empty(), "url")?;
        Ok(answer.url)
    }
}

/// Seconds as the protocol counts them; rounded up, since 0 often has a
/// meaning of its own.
fn whole_seconds(duration: Duration) -> i64 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

/// The pid that containerd and CRI-O tell in what they add to a status: JSON under the key `info`,
/// which no specification binds them to.
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
    fn the_pid_is_read_where_it_is_told() {
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
