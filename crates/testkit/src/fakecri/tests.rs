//! The proxy before a small CRI server in this process.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{StreamExt, pin_mut, stream};
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::v1::{
    ContainerConfig, ContainerEventResponse, ContainerMetadata, CreateContainerRequest,
    CreateContainerResponse, GetEventsRequest, ImageFsInfoRequest, ImageFsInfoResponse,
    PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest, RunPodSandboxResponse,
    StartContainerRequest, StartContainerResponse, StopPodSandboxRequest, StopPodSandboxResponse,
    VersionRequest, VersionResponse,
};
use longshore_cri::{Options, Runtime};
use tempfile::TempDir;
use tonic::codegen::BoxStream;

use super::*;
use crate::wait::wait_until;

const SOON: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_millis(200);

/// Counts the containers that it is asked to start.
#[derive(Clone, Default)]
struct Real(Arc<AtomicUsize>);

#[tonic::async_trait]
impl RuntimeService for Real {
    async fn version(
        &self,
        _: tonic::Request<VersionRequest>,
    ) -> Result<tonic::Response<VersionResponse>, Status> {
        let one = || "1".to_owned();
        Ok(tonic::Response::new(VersionResponse {
            version: one(),
            runtime_name: one(),
            runtime_version: one(),
            runtime_api_version: one(),
        }))
    }

    async fn run_pod_sandbox(
        &self,
        request: tonic::Request<RunPodSandboxRequest>,
    ) -> Result<tonic::Response<RunPodSandboxResponse>, Status> {
        let pod = request.into_inner().config.unwrap().metadata.unwrap().name;
        Ok(tonic::Response::new(RunPodSandboxResponse { pod_sandbox_id: format!("{pod}-id") }))
    }

    async fn stop_pod_sandbox(
        &self,
        _: tonic::Request<StopPodSandboxRequest>,
    ) -> Result<tonic::Response<StopPodSandboxResponse>, Status> {
        Ok(tonic::Response::new(StopPodSandboxResponse {}))
    }

    async fn create_container(
        &self,
        request: tonic::Request<CreateContainerRequest>,
    ) -> Result<tonic::Response<CreateContainerResponse>, Status> {
        let CreateContainerRequest { pod_sandbox_id, config, .. } = request.into_inner();
        let name = config.unwrap().metadata.unwrap().name;
        let container_id = format!("{pod_sandbox_id}-{name}");
        Ok(tonic::Response::new(CreateContainerResponse { container_id }))
    }

    async fn start_container(
        &self,
        request: tonic::Request<StartContainerRequest>,
    ) -> Result<tonic::Response<StartContainerResponse>, Status> {
        if request.get_ref().container_id == "absent" {
            return Err(Status::not_found("häßlich"));
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(tonic::Response::new(StartContainerResponse {}))
    }

    async fn get_container_events(
        &self,
        _: tonic::Request<GetEventsRequest>,
    ) -> Result<tonic::Response<BoxStream<ContainerEventResponse>>, Status> {
        let event = |n: i64| Ok(ContainerEventResponse { created_at: n, ..Default::default() });
        let events = stream::iter([1, 2]).map(event).chain(stream::pending());
        Ok(tonic::Response::new(events.boxed()))
    }
}

#[tonic::async_trait]
impl ImageService for Real {
    async fn image_fs_info(
        &self,
        _: tonic::Request<ImageFsInfoRequest>,
    ) -> Result<tonic::Response<ImageFsInfoResponse>, Status> {
        Ok(tonic::Response::new(ImageFsInfoResponse::default()))
    }
}

struct Bench {
    dir: TempDir,
    real: Real,
    server: Server,
    proxy: FaultProxy,
    client: Runtime,
}

impl Bench {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let real = Real::default();
        let server = serve(&dir, &real);
        let proxy = FaultProxy::start(dir.path().join("p.sock"), dir.path().join("r.sock"));
        let proxy = proxy.unwrap();
        let client = Runtime::new(Options::new(proxy.socket().display().to_string())).unwrap();
        Self { dir, real, server, proxy, client }
    }

    fn started(&self) -> usize {
        self.real.0.load(Ordering::SeqCst)
    }

    /// A start under way, in a task of its own.
    fn start(&self) -> tokio::task::JoinHandle<longshore_cri::Result<()>> {
        let client = self.client.clone();
        tokio::spawn(async move { client.start_container("x").await })
    }

    async fn pending(&self, count: usize) {
        wait_until(SOON, "pending calls", async || match self.proxy.pending("StartContainer") {
            n if n == count => Ok(()),
            n => Err(n),
        })
        .await
        .unwrap();
    }
}

fn serve(dir: &TempDir, real: &Real) -> Server {
    let listener = UnixListener::bind(dir.path().join("r.sock")).unwrap();
    longshore_cri::serve(listener, real.clone(), real.clone())
}

#[tokio::test]
async fn fault_proxy_passes_responses_errors_and_streams() {
    let bench = Bench::new();
    bench.client.negotiate().await.unwrap();
    let error = bench.client.start_container("absent").await.unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("häßlich"), "{error}");
    let error = bench.client.list_images(None).await.unwrap_err();
    assert!(error.is_unimplemented(), "{error}");
    let events = bench.client.container_events();
    pin_mut!(events);
    for n in [1, 2] {
        assert_eq!(events.next().await.unwrap().unwrap().created_at, n);
    }
    for (method, calls) in
        [("Version", 1), ("ImageFsInfo", 1), ("StartContainer", 1), ("StopContainer", 0)]
    {
        assert_eq!(bench.proxy.calls(method), calls, "{method}");
    }
}

#[tokio::test]
async fn fault_proxy_error_before_the_call() {
    let bench = Bench::new();
    let full = Fault::Error(Code::ResourceExhausted, "disk ≥ 100 %".into());
    bench.proxy.inject_times("StartContainer", full, 2);
    for _ in 0..2 {
        let error = bench.client.start_container("x").await.unwrap_err();
        assert_eq!(error.code(), Some(Code::ResourceExhausted));
        assert!(error.to_string().contains("disk ≥ 100 %"), "{error}");
    }
    assert_eq!(bench.started(), 0);
    bench.client.start_container("x").await.unwrap();
    assert_eq!((bench.started(), bench.proxy.calls("StartContainer")), (1, 3));
}

#[tokio::test]
async fn fault_proxy_error_after_the_call() {
    let bench = Bench::new();
    let late = Fault::ErrorReply(Code::DeadlineExceeded, "too late".into());
    bench.proxy.inject_times("StartContainer", late, 1);
    let error = bench.client.start_container("x").await.unwrap_err();
    assert!(error.to_string().contains("too late"), "{error}");
    assert_eq!(bench.started(), 1);
    bench.client.start_container("x").await.unwrap();
    assert_eq!(bench.started(), 2);
}

#[tokio::test]
async fn fault_proxy_delay() {
    let bench = Bench::new();
    bench.proxy.inject("StartContainer", Fault::Delay(DELAY));
    let start = std::time::Instant::now();
    bench.client.start_container("x").await.unwrap();
    assert!(start.elapsed() >= DELAY);
}

#[tokio::test]
async fn fault_proxy_hang_of_one_method() {
    let bench = Bench::new();
    bench.proxy.inject("StartContainer", Fault::Hang);
    let (one, two) = (bench.start(), bench.start());
    bench.pending(2).await;
    bench.client.version().await.unwrap();
    tokio::time::sleep(DELAY).await;
    assert!(!one.is_finished() && bench.started() == 0);
    bench.proxy.release("StartContainer");
    one.await.unwrap().unwrap();
    two.await.unwrap().unwrap();
    assert_eq!((bench.started(), bench.proxy.pending("StartContainer")), (2, 0));
}

#[tokio::test]
async fn fault_proxy_held_reply_has_had_its_effect() {
    let bench = Bench::new();
    bench.proxy.inject_times("StartContainer", Fault::HangReply, 1);
    let held = bench.start();
    wait_until(SOON, "the start", async || match bench.started() {
        1 => Ok(()),
        n => Err(n),
    })
    .await
    .unwrap();
    bench.start().await.unwrap().unwrap(); // only the first is held
    assert!(!held.is_finished());
    bench.proxy.release("StartContainer");
    held.await.unwrap().unwrap();
}

#[tokio::test]
async fn fault_proxy_cancelled_call_leaves_nothing() {
    let bench = Bench::new();
    bench.proxy.inject("StartContainer", Fault::Hang);
    let given_up = bench.start();
    bench.pending(1).await;
    given_up.abort();
    bench.pending(0).await;
    bench.proxy.release("StartContainer");
    bench.client.version().await.unwrap();
    assert_eq!(bench.started(), 0);
}

#[tokio::test]
async fn fault_proxy_spares_a_number_of_calls() {
    let bench = Bench::new();
    bench.proxy.inject("StartContainer", Fault::Hang);
    let held = bench.start();
    bench.pending(1).await;
    bench.proxy.spare_all();
    bench.start().await.unwrap().unwrap();
    assert!(!held.is_finished() && bench.started() == 1);
    held.abort();
    bench.pending(0).await;
}

#[tokio::test]
async fn fault_proxy_default_fault() {
    let bench = Bench::new();
    bench.proxy.inject(ANY_METHOD, Fault::Error(Code::Internal, "all".into()));
    bench.proxy.inject("StartContainer", Fault::Delay(Duration::ZERO));
    assert_eq!(bench.client.version().await.unwrap_err().code(), Some(Code::Internal));
    bench.client.start_container("x").await.unwrap();
    bench.proxy.release(ANY_METHOD);
    bench.client.version().await.unwrap();
}

#[tokio::test]
async fn fault_proxy_runtime_restart() {
    let mut bench = Bench::new();
    bench.client.version().await.unwrap();
    for _ in 0..2 {
        bench.server.stop().await;
        std::fs::remove_file(bench.dir.path().join("r.sock")).unwrap();
        let error = bench.client.version().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        bench.server = serve(&bench.dir, &bench.real);
        bench.client.version().await.unwrap();
    }
    let socket = bench.proxy.socket().to_owned();
    drop(bench.proxy);
    assert!(!socket.exists());
    assert!(bench.client.version().await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn fault_proxy_fault_of_one_pod_or_container() {
    let bench = Bench::new();
    let full = |text: &str| Fault::Error(Code::Internal, text.to_owned());
    bench.proxy.inject("StartContainer", full("all"));
    let ill = || Calls::of("StartContainer").about("ill");
    bench.proxy.inject(ill(), full("pod"));
    bench.proxy.inject(ill().in_container("two"), Fault::HangReply);
    bench.proxy.inject(Calls::of(ANY_METHOD).about("other"), full("any"));
    let mut ids = Vec::new();
    for pod in ["ill", "well", "other"] {
        let metadata = PodSandboxMetadata { name: pod.to_owned(), ..Default::default() };
        let config = PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
        let sandbox = bench.client.run_pod_sandbox(config.clone(), "").await;
        if pod == "other" {
            assert!(sandbox.unwrap_err().to_string().contains("any"));
            continue;
        }
        let sandbox = sandbox.unwrap();
        for name in ["one", "two"] {
            let metadata = ContainerMetadata { name: name.to_owned(), ..Default::default() };
            let of = ContainerConfig { metadata: Some(metadata), ..Default::default() };
            let id = bench.client.create_container(&sandbox, of, config.clone()).await.unwrap();
            ids.push(id);
        }
        bench.client.stop_pod_sandbox(&sandbox).await.unwrap();
    }
    for (id, expected) in [("ill-id-one", "pod"), ("well-id-one", "all"), ("else", "all")] {
        let error = bench.client.start_container(id).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{id}: {error}");
    }
    assert_eq!(ids[1], "ill-id-two");
    let held = ill().in_container("two");
    assert_eq!(bench.proxy.unmet(), std::slice::from_ref(&held));
    let client = bench.client.clone();
    let start = tokio::spawn(async move { client.start_container("ill-id-two").await });
    wait_until(SOON, "an answer is held", async || match bench.proxy.unmet() {
        unmet if unmet.is_empty() => Ok(()),
        unmet => Err(format!("{unmet:?}")),
    })
    .await
    .unwrap();
    assert_eq!(bench.started(), 1);
    bench.proxy.release(held);
    start.await.unwrap().unwrap();
    bench.proxy.release_all();
    bench.client.start_container("ill-id-one").await.unwrap();
}
