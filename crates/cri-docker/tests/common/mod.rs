//! A host with an engine and the service, which runs in the host's network, as CNI's plugins have to.

use std::fs::File;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::*;
use longshore_cri_docker::{Listen, Settings};
use longshore_testkit::{BUSYBOX, Docker, DockerOptions, Host, PAUSE};
use nix::sched::{CloneFlags, setns};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};

use image_service_client::ImageServiceClient;
use runtime_service_client::RuntimeServiceClient;

/// How long anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A host with an engine.
pub(crate) struct Bed {
    pub(crate) host: Host,
    pub(crate) docker: Docker,
    service: Option<Service>,
    /// How long the engine may take for an answer, from the next start of the service on.
    pub(crate) request_timeout: Duration,
    pub(crate) runtime: RuntimeServiceClient<Channel>,
}

/// The service in a thread, whose network is the host's.
struct Service {
    stop: CancellationToken,
    thread: JoinHandle<longshore_cri_docker::Result<()>>,
}

impl Bed {
    /// `None` where there is no engine.
    pub(crate) async fn start() -> Result<Option<Self>> {
        Self::with(DockerOptions::default()).await
    }

    pub(crate) async fn with(options: DockerOptions) -> Result<Option<Self>> {
        if !Docker::is_installed() {
            println!(
                "skipped: no dockerd on this machine (scripts/install-deps.sh test installs docker.io)"
            );
            return Ok(None);
        }
        let (host, docker) = Docker::with_host(options)?;
        let runtime = RuntimeServiceClient::new(channel(socket(&host))?);
        let request_timeout = Settings::default().request_timeout;
        let mut bed = Self { host, docker, service: None, request_timeout, runtime };
        bed.start_service().await?;
        Ok(Some(bed))
    }

    pub(crate) async fn start_service(&mut self) -> Result<()> {
        let [conf, bin] = self.host.cni_dirs()?;
        let settings = Settings {
            docker_endpoint: format!("unix://{}", self.docker.socket().display()),
            root_dir: self.host.dir().join("cri"),
            sandbox_image: PAUSE.to_owned(),
            cni_bin_dirs: vec![bin.into(), self.plugins()],
            cni_conf_dir: conf.into(),
            cni_cache_dir: self.host.dir().join("cni"),
            streaming_address: (self.host.node_ip(), 0).into(),
            request_timeout: self.request_timeout,
            ..Settings::default()
        };
        let (netns, listen) = (File::open(self.host.netns())?, Listen::Path(socket(&self.host)));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).expect("the host's network");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let run = longshore_cri_docker::run(settings, listen, stopped);
            runtime.expect("a runtime").block_on(run)
        });
        self.service = Some(Service { stop, thread });
        let mut runtime = self.runtime.clone();
        until("the service answers", async || {
            runtime.version(VersionRequest::default()).await.map(|_| ()).map_err(|e| e.to_string())
        })
        .await
    }

    pub(crate) async fn stop_service(&mut self) -> Result<()> {
        if let Some(Service { stop, thread }) = self.service.take() {
            stop.cancel();
            let ended = tokio::task::spawn_blocking(move || thread.join()).await?;
            ended.map_err(|_| anyhow::anyhow!("the service has panicked"))??;
        }
        Ok(())
    }

    /// Ends everything, and looks for what of it is left.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.stop_service().await?;
        self.docker.stop()?;
        let host = self.host;
        Ok(tokio::task::spawn_blocking(move || host.teardown()).await??)
    }

    pub(crate) fn pod(&self, name: &str) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.into(),
                namespace: "test".into(),
                uid: format!("uid-{name}"),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: self.host.dir().join("pods").join(name).to_string_lossy().into_owned(),
            labels: [("app".to_owned(), name.to_owned())].into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/kubepods/{name}", self.host.cgroup_root()),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    pub(crate) async fn run_pod(&mut self, config: &PodSandboxConfig) -> Result<String> {
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        Ok(self.runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id)
    }

    pub(crate) async fn run(
        &mut self,
        pod: &str,
        config: ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        let id = self.create(pod, config, sandbox).await?;
        self.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;
        Ok(id)
    }

    pub(crate) async fn create(
        &mut self,
        pod: &str,
        config: ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox.clone()),
        };
        Ok(self.runtime.create_container(request).await?.into_inner().container_id)
    }

    pub(crate) async fn status(&mut self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        self.runtime.container_status(request).await?.into_inner().status.context("no status")
    }

    pub(crate) async fn exited(&mut self, id: &str) -> Result<ContainerStatus> {
        let mut runtime = self.runtime.clone();
        let container_id = id.to_owned();
        until("the container ends", async || {
            let request =
                ContainerStatusRequest { container_id: container_id.clone(), verbose: false };
            let status = runtime.container_status(request).await.map_err(|e| e.to_string())?;
            let status = status.into_inner().status.unwrap_or_default();
            if status.state() == ContainerState::ContainerExited {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await?;
        self.status(id).await
    }

    pub(crate) async fn exec(&mut self, id: &str, script: &str) -> Result<ExecSyncResponse> {
        let cmd = ["sh", "-c", script].map(str::to_owned).to_vec();
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 30 };
        Ok(self.runtime.exec_sync(request).await?.into_inner())
    }

    pub(crate) async fn remove_pod(&mut self, id: &str) -> Result<()> {
        let pod_sandbox_id = id.to_owned();
        self.runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id }).await?;
        let pod_sandbox_id = id.to_owned();
        self.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    }

    /// Identifiers of all containers that the engine has.
    pub(crate) fn engine_containers(&self) -> Result<Vec<String>> {
        self.engine_ids("/containers/json?all=true")
    }

    /// Identifiers of all images that it has.
    pub(crate) fn engine_images(&self) -> Result<Vec<String>> {
        self.engine_ids("/images/json?all=true")
    }

    /// The identifiers in a list of the engine, which has no order.
    fn engine_ids(&self, path: &str) -> Result<Vec<String>> {
        let (status, answer) = self.docker.request("GET", path, &[])?;
        ensure!(status == 200, "{status} {answer}");
        let all = answer.as_array().context("no list")?;
        let mut ids: Vec<_> =
            all.iter().filter_map(|one| Some(one["Id"].as_str()?.to_owned())).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The image service.
    pub(crate) fn images(&self) -> Result<ImageServiceClient<Channel>> {
        Ok(ImageServiceClient::new(channel(socket(&self.host))?))
    }

    /// A folder of plugins that a test brings.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.host.dir().join("plugins")
    }

    /// All sandboxes.
    pub(crate) async fn sandboxes(&mut self) -> Result<Vec<PodSandbox>> {
        let listed = self.runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await?;
        Ok(listed.into_inner().items)
    }

    /// The addresses that the plugin host-local has given out.
    pub(crate) fn addresses_in_use(&self) -> Result<Vec<String>> {
        let folder = self.host.dir().join("containerd/ipam").join(self.host.name());
        let names = std::fs::read_dir(folder)?.flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect())
    }

    /// Files that CNI and the service keep of sandboxes.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        ["cni/results", "cri/sandbox"]
            .iter()
            .filter_map(|folder| std::fs::read_dir(self.host.dir().join(folder)).ok())
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
            .collect()
    }
}

/// The code of a call that failed.
pub(crate) fn code(error: &anyhow::Error) -> Option<Code> {
    error.downcast_ref::<tonic::Status>().map(tonic::Status::code)
}

pub(crate) fn container(name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(ImageSpec { image: BUSYBOX.into(), ..ImageSpec::default() }),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: format!("{name}/0.log"),
        ..ContainerConfig::default()
    }
}

pub(crate) async fn until(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<(), String>,
) -> Result<()> {
    let mut last = String::new();
    let met = async {
        while let Err(why) = condition().await {
            last = why;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let met = tokio::time::timeout(LIMIT, met).await;
    ensure!(met.is_ok(), "waited in vain until {what}; last: {last}");
    Ok(())
}

pub(crate) fn socket(host: &Host) -> PathBuf {
    host.dir().join("cri.sock")
}

fn channel(socket: PathBuf) -> Result<Channel> {
    let connect = move |_: Uri| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(connect)))
}
