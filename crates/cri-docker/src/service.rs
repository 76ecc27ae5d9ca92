//! The CRI runtime service: each call of the interface, and nothing but that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::{StreamExt, stream};
use longshore_base::panics;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::v1::*;
use longshore_cri_streaming as streaming;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::labels::Kind;
use crate::runtime::DockerRuntime;
use crate::sessions::Sessions;
use crate::{Engine, Error, Settings};

/// The version of the kubelet's API, as it always was.
const KUBE_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "docker";
const API_VERSION: &str = "v1";
/// Items of a streamed list in one message.
const BATCH: usize = 256;

/// Serves sandboxes and containers.
#[derive(Clone)]
pub struct Service {
    inner: Arc<DockerRuntime>,
    streaming: Option<Arc<streaming::Server>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Service").field(&self.inner.engine).finish()
    }
}

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = tonic::codegen::BoxStream<T>;

impl Service {
    /// The service over this engine, without streaming until [`Service::with_streaming`].
    #[must_use]
    pub fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        let inner = DockerRuntime::new(engine, settings);
        Self { inner: Arc::new(inner), streaming: None }
    }

    /// Answers Exec, Attach and PortForward with URLs of a server, which is returned to be served at that
    /// address.
    #[must_use]
    pub fn with_streaming(mut self, address: SocketAddr) -> (Self, Arc<streaming::Server>) {
        let options = streaming::Options {
            idle_timeout: self.inner.settings.streaming_idle_timeout,
            ..streaming::Options::default()
        };
        let sessions = Arc::new(Sessions(Arc::clone(&self.inner)));
        let server = streaming::Server::new(address, sessions, options);
        self.streaming = Some(Arc::clone(&server));
        (self, server)
    }

    /// Follows the engine until `stop`: its events, its restarts, and the logs of its containers.
    pub async fn run(&self, stop: CancellationToken) {
        Arc::clone(&self.inner).follow(stop).await;
    }

    fn streaming(&self) -> Result<&streaming::Server, Status> {
        self.streaming
            .as_deref()
            .ok_or_else(|| Status::unimplemented("there is no streaming server"))
    }

    /// Does work that is not broken off when its caller goes: what it has begun would be left half done.
    async fn whole<T, W>(&self, work: impl FnOnce(Arc<DockerRuntime>) -> W) -> Answer<T>
    where
        T: Send + 'static,
        W: Future<Output = crate::Result<T>> + Send + 'static,
    {
        let done = panics::task(work(Arc::clone(&self.inner))).await;
        let done = done.unwrap_or_else(|panicked| Err(Error::Internal(panicked.to_string())));
        Ok(Response::new(done?))
    }
}

/// A list in messages of bounded size.
fn batches<T: Send + 'static, M: Send + 'static>(
    items: Vec<T>,
    message: fn(Vec<T>) -> M,
) -> Response<Streamed<M>> {
    let batches = stream::iter(items).chunks(BATCH).map(move |items| Ok(message(items)));
    Response::new(Box::pin(batches))
}

fn condition(kind: &str, failure: Option<(&str, String)>) -> RuntimeCondition {
    let status = failure.is_none();
    let (reason, message) = failure.unwrap_or_default();
    RuntimeCondition { r#type: kind.to_owned(), status, reason: reason.to_owned(), message }
}

fn verbose(verbose: bool, info: serde_json::Value) -> BTreeMap<String, String> {
    verbose.then(|| ("info".to_owned(), info.to_string())).into_iter().collect()
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<VersionRequest>) -> Answer<VersionResponse> {
        Ok(Response::new(VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: RUNTIME_NAME.to_owned(),
            runtime_version: self.inner.version().await?,
            runtime_api_version: API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Answer<StatusResponse> {
        let inner = &self.inner;
        let engine = inner.engine.ping().await.err().map(|error| {
            let error = Error::docker("docker", error);
            ("DockerDaemonNotReady", error.to_string())
        });
        let network = inner.network.ready().await.err();
        let network = network.map(|error| ("NetworkPluginNotReady", format!("docker: {error}")));
        let handlers = match engine {
            None => inner.info().await.map(|info| info.handlers.clone()).unwrap_or_default(),
            Some(_) => Vec::new(),
        };
        let info = if request.get_ref().verbose {
            let config = json!({"sandboxImage": inner.settings.sandbox_image});
            [("config".to_owned(), config.to_string())].into()
        } else {
            BTreeMap::new()
        };
        Ok(Response::new(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", engine),
                    condition("NetworkReady", network),
                ],
            }),
            info,
            runtime_handlers: handlers,
            features: Some(RuntimeFeatures::default()),
        }))
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> Answer<RuntimeConfigResponse> {
        let driver = match self.inner.info().await?.driver {
            crate::resources::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            crate::resources::CgroupDriver::Systemd => CgroupDriver::Systemd,
        };
        let linux = LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        Ok(Response::new(RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Answer<UpdateRuntimeConfigResponse> {
        let config = request.into_inner().runtime_config.and_then(|config| config.network_config);
        if let Some(config) = config.filter(|config| !config.pod_cidr.is_empty()) {
            self.inner.network.set_pod_cidr(config.pod_cidr);
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Answer<RunPodSandboxResponse> {
        let RunPodSandboxRequest { config, runtime_handler } = request.into_inner();
        let config = config.ok_or_else(|| Status::invalid_argument("the sandbox has no config"))?;
        self.whole(|inner| async move {
            let pod_sandbox_id = inner.run_sandbox(&config, &runtime_handler).await?;
            Ok(RunPodSandboxResponse { pod_sandbox_id })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Answer<StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.whole(|inner| async move {
            inner.stop_sandbox(&id).await.map(|()| StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Answer<RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.whole(|inner| async move {
            inner.remove_sandbox(&id).await.map(|()| RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Answer<PodSandboxStatusResponse> {
        let request = request.into_inner();
        let (status, container) = self.inner.sandbox_status(&request.pod_sandbox_id).await?;
        let pid = container.state.as_ref().and_then(|state| state.pid);
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(status),
            info: verbose(request.verbose, json!({"pid": pid})),
            containers_statuses: Vec::new(),
            timestamp: 0,
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Answer<ListPodSandboxResponse> {
        let items = self.inner.list_sandboxes(request.get_ref().filter.as_ref()).await?;
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> Answer<Streamed<StreamPodSandboxesResponse>> {
        let items = self.inner.list_sandboxes(request.get_ref().filter.as_ref()).await?;
        Ok(batches(items, |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes }))
    }

    /// The cgroup of a pod is the kubelet's, and a sandbox has no limits of its own.
    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Answer<UpdatePodSandboxResourcesResponse> {
        self.inner.inspect(&request.get_ref().pod_sandbox_id, Kind::Sandbox).await?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Answer<CreateContainerResponse> {
        let CreateContainerRequest { pod_sandbox_id, config, sandbox_config } =
            request.into_inner();
        let missing = |what| Status::invalid_argument(format!("the {what} has no config"));
        let config = config.ok_or_else(|| missing("container"))?;
        let sandbox_config = sandbox_config.ok_or_else(|| missing("sandbox"))?;
        self.whole(|inner| async move {
            let container_id =
                inner.create_container(&pod_sandbox_id, &config, &sandbox_config).await?;
            Ok(CreateContainerResponse { container_id })
        })
        .await
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Answer<StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.whole(|inner| async move {
            inner.start_container(&id).await.map(|()| StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Answer<StopContainerResponse> {
        let StopContainerRequest { container_id, timeout } = request.into_inner();
        self.whole(|inner| async move {
            inner.stop_container(&container_id, timeout).await.map(|()| StopContainerResponse {})
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Answer<RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.whole(|inner| async move {
            inner.remove_container(&id).await.map(|()| RemoveContainerResponse {})
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Answer<ListContainersResponse> {
        let containers = self.inner.list_containers(request.get_ref().filter.as_ref()).await?;
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Answer<Streamed<StreamContainersResponse>> {
        let containers = self.inner.list_containers(request.get_ref().filter.as_ref()).await?;
        Ok(batches(containers, |containers| StreamContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Answer<ContainerStatusResponse> {
        let request = request.into_inner();
        let (status, container) = self.inner.container_status(&request.container_id).await?;
        let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
        let info = json!({
            "sandboxID": labels.get(crate::labels::SANDBOX),
            "pid": container.state.and_then(|state| state.pid),
        });
        let info = verbose(request.verbose, info);
        Ok(Response::new(ContainerStatusResponse { status: Some(status), info }))
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Answer<UpdateContainerResourcesResponse> {
        let UpdateContainerResourcesRequest { container_id, linux, .. } = request.into_inner();
        let linux =
            linux.ok_or_else(|| Status::invalid_argument("there are no resources for Linux"))?;
        self.inner.update_container(&container_id, &linux).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Answer<ReopenContainerLogResponse> {
        let container =
            self.inner.inspect(&request.get_ref().container_id, Kind::Container).await?;
        self.inner.logs.reopen(&container, &self.inner.info().await?.root_dir).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Answer<ExecSyncResponse> {
        let ExecSyncRequest { container_id, cmd, timeout } = request.into_inner();
        Ok(Response::new(self.inner.exec_sync(&container_id, cmd, timeout).await?))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Answer<ExecResponse> {
        let request = request.into_inner();
        self.inner.running(&request.container_id, Kind::Container).await?;
        Ok(Response::new(self.streaming()?.exec(request)?))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Answer<AttachResponse> {
        let request = request.into_inner();
        self.inner.running(&request.container_id, Kind::Container).await?;
        Ok(Response::new(self.streaming()?.attach(request)?))
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> Answer<PortForwardResponse> {
        let request = request.into_inner();
        self.inner.running(&request.pod_sandbox_id, Kind::Sandbox).await?;
        Ok(Response::new(self.streaming()?.port_forward(request)?))
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Answer<Streamed<ContainerEventResponse>> {
        Ok(Response::new(Box::pin(self.inner.events.subscribe().map(Ok))))
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Answer<ContainerStatsResponse> {
        let stats = self.inner.container_stats(&request.get_ref().container_id).await?;
        Ok(Response::new(ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Answer<ListContainerStatsResponse> {
        let stats = self.inner.list_container_stats(request.get_ref().filter.as_ref()).await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Answer<Streamed<StreamContainerStatsResponse>> {
        let stats = self.inner.list_container_stats(request.get_ref().filter.as_ref()).await?;
        Ok(batches(stats, |container_stats| StreamContainerStatsResponse { container_stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Answer<PodSandboxStatsResponse> {
        let stats = self.inner.sandbox_stats(&request.get_ref().pod_sandbox_id).await?;
        Ok(Response::new(PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Answer<ListPodSandboxStatsResponse> {
        let stats = self.inner.list_sandbox_stats(request.into_inner().filter).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Answer<Streamed<StreamPodSandboxStatsResponse>> {
        let stats = self.inner.list_sandbox_stats(request.into_inner().filter).await?;
        Ok(batches(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }
}
