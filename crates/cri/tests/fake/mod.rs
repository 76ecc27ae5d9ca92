//! A fake CRI server in this process.

use std::future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::v1::*;
use longshore_cri::{Code, InProcess, Server};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

type RpcResult<T> = Result<Response<T>, Status>;

/// The services of a fake; others are unimplemented.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Serve {
    Both,
    Runtime,
    Images,
}

pub(crate) struct Fake {
    socket: PathBuf,
    service: Service,
    server: Server,
    _dir: Option<tempfile::TempDir>,
}

impl Fake {
    pub(crate) async fn start(serve: Serve) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut fake = Self::start_at(&dir.path().join("cri.sock"), serve);
        fake._dir = Some(dir);
        fake
    }

    pub(crate) fn start_at(socket: &Path, serve: Serve) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let service = Service::default();
        let server = match serve {
            Serve::Both => longshore_cri::serve(listener, service.clone(), service.clone()),
            Serve::Runtime => longshore_cri::serve(listener, service.clone(), Nothing),
            Serve::Images => longshore_cri::serve(listener, Nothing, service.clone()),
        };
        Self { socket: socket.to_owned(), service, server, _dir: None }
    }

    /// The services in this process, without a socket.
    pub(crate) fn in_process(&self, endpoint: &str) -> InProcess {
        InProcess::new(endpoint, self.service.clone(), self.service.clone())
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
        std::fs::remove_file(&self.socket).unwrap();
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The number of connections to this server, as the kernel counts them.
    pub(crate) fn connections(&self) -> usize {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let connected = |line: &&str| line.split_whitespace().nth(5) == Some("03");
        sockets
            .lines()
            .filter(connected)
            .filter(|line| line.ends_with(self.socket.to_str().unwrap()))
            .count()
    }

    /// The calls so far, with their deadlines in seconds.
    pub(crate) fn deadlines(&self) -> Vec<(String, Option<u64>)> {
        self.service.0.deadlines.lock().clone()
    }

    /// The contexts of the `Version` calls so far.
    pub(crate) fn contexts(&self) -> Vec<Option<String>> {
        self.service.0.contexts.lock().clone()
    }

    /// The timeouts of the exec calls so far.
    pub(crate) fn exec_timeouts(&self) -> Vec<i64> {
        self.service.0.exec_timeouts.lock().clone()
    }

    /// Waits until that number of calls hang.
    pub(crate) async fn hanging(&self, count: usize) {
        reach(&self.service.0.hanging, count).await;
    }

    /// Waits until that number of hanging calls were cancelled.
    pub(crate) async fn cancelled(&self, count: usize) {
        reach(&self.service.0.cancelled, count).await;
    }

    /// Sends an event. That of a container that is deleted panics in the task that sends it.
    pub(crate) fn event(&self, kind: ContainerEventType) {
        self.service.0.events.send(kind).unwrap();
    }
}

async fn reach(counter: &watch::Sender<usize>, count: usize) {
    let mut counter = counter.subscribe();
    let reached = counter.wait_for(|n| *n >= count);
    let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
    reached.expect("not reached in 10 s").unwrap();
}

/// A runtime without an implementation.
struct Nothing;
impl RuntimeService for Nothing {}
impl ImageService for Nothing {}

#[derive(Clone, Default)]
struct Service(Arc<State>);

struct State {
    deadlines: Mutex<Vec<(String, Option<u64>)>>,
    exec_timeouts: Mutex<Vec<i64>>,
    contexts: Mutex<Vec<Option<String>>>,
    hanging: watch::Sender<usize>,
    cancelled: watch::Sender<usize>,
    events: broadcast::Sender<ContainerEventType>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            deadlines: Mutex::default(),
            exec_timeouts: Mutex::default(),
            contexts: Mutex::default(),
            hanging: watch::Sender::new(0),
            cancelled: watch::Sender::new(0),
            events: broadcast::Sender::new(16),
        }
    }
}

impl Service {
    /// Records the deadline of a call.
    fn record_deadline<T>(&self, rpc: &str, request: &Request<T>) {
        let deadline = request.metadata().get("grpc-timeout").map(|timeout| {
            let timeout = timeout.to_str().unwrap();
            let (digits, unit) = timeout.split_at(timeout.len() - 1);
            let value: u64 = digits.parse().unwrap();
            match unit {
                "n" => value / 1_000_000_000,
                "u" => value / 1_000_000,
                "m" => value / 1000,
                "S" => value,
                other => panic!("unit {other}"),
            }
        });
        let mut deadlines = self.0.deadlines.lock();
        deadlines.push((rpc.to_owned(), deadline));
    }

    async fn hang(&self) {
        struct Given<'a>(&'a watch::Sender<usize>);
        impl Drop for Given<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|n| *n += 1);
            }
        }
        let _up = Given(&self.0.cancelled);
        self.0.hanging.send_modify(|n| *n += 1);
        future::pending().await
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, request: Request<VersionRequest>) -> RpcResult<VersionResponse> {
        self.record_deadline("Version", &request);
        let context = request.metadata().get("traceparent");
        let context = context.map(|context| context.to_str().unwrap().to_owned());
        self.0.contexts.lock().push(context);
        Ok(Response::new(VersionResponse {
            version: request.into_inner().version,
            runtime_name: "fake".into(),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    /// The response has no id.
    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> RpcResult<RunPodSandboxResponse> {
        self.record_deadline("RunPodSandbox", &request);
        Ok(Response::new(Default::default()))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> RpcResult<StopContainerResponse> {
        self.record_deadline("StopContainer", &request);
        if request.get_ref().container_id == "slow" {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(Response::new(Default::default()))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> RpcResult<ExecSyncResponse> {
        self.record_deadline("ExecSync", &request);
        let mut timeouts = self.0.exec_timeouts.lock();
        timeouts.push(request.get_ref().timeout);
        Ok(Response::new(Default::default()))
    }

    /// The id selects the behaviour: hang, panic, empty response, or an error with this code.
    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> RpcResult<ContainerStatusResponse> {
        match request.get_ref().container_id.as_str() {
            "hang" => {
                self.hang().await;
                unreachable!()
            }
            "panic" => panic!("as you asked"),
            "empty" => Ok(Response::new(Default::default())),
            code => {
                let code = Code::from_i32(code.parse().unwrap());
                Err(Status::new(code, "as you asked"))
            }
        }
    }

    /// As many containers of a mebibyte each as the id says.
    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> RpcResult<ListContainersResponse> {
        let id = request.into_inner().filter.unwrap().id;
        let count = if id == "none" { 0 } else { id.parse().unwrap() };
        let container = Container { image_ref: "i".repeat((1 << 20) - 16), ..Default::default() };
        Ok(Response::new(ListContainersResponse { containers: vec![container; count] }))
    }

    /// The same in parts of one container each; no parts for `none`.
    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> RpcResult<BoxStream<StreamContainersResponse>> {
        self.record_deadline("StreamContainers", &request);
        let id = request.into_inner().filter.unwrap().id;
        let Ok(count) = id.parse::<usize>() else {
            return Err(Status::unimplemented("no parts"));
        };
        let part = || {
            let image_ref = "i".repeat((1 << 20) - 16);
            let containers = vec![Container { image_ref, ..Default::default() }];
            Ok(StreamContainersResponse { containers })
        };
        let parts: Vec<_> = (0..count).map(|_| part()).collect();
        Ok(Response::new(Box::pin(futures::stream::iter(parts))))
    }

    /// Like a Go server: no headers before the first event.
    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> RpcResult<BoxStream<ContainerEventResponse>> {
        let events = BroadcastStream::new(self.0.events.subscribe()).map(|kind| {
            let kind = kind.unwrap();
            assert_ne!(kind, ContainerEventType::ContainerDeletedEvent, "as you asked");
            Ok(ContainerEventResponse { container_event_type: kind as i32, ..Default::default() })
        });
        let mut events = Box::pin(events.peekable());
        events.as_mut().peek().await;
        Ok(Response::new(events))
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn pull_image(&self, request: Request<PullImageRequest>) -> RpcResult<PullImageResponse> {
        self.record_deadline("PullImage", &request);
        Ok(Response::new(PullImageResponse { image_ref: "sha256:0".into() }))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> RpcResult<ImageFsInfoResponse> {
        Ok(Response::new(Default::default()))
    }
}
