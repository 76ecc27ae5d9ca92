//! The calls of a Docker Engine that one-container pods need, straight to it, with what `crates/cri-docker` gives it for
//! the configs of a kubelet, and the plugins of CNI.
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StopContainerOptionsBuilder,
};
use longshore_cni::{Attachment, Cni};
use longshore_cri_docker::{Engine, connect};
use longshore_testkit::{Docker, Host, PAUSE};
use nix::sched::{CloneFlags, setns};

use super::{GRACE, MASKED, Pod, READ_ONLY, files, owned};

/// How long the engine may take for one call.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The label of sandboxes, as a node makes them.
const SANDBOX: &str = "io.kubernetes.docker.type=podsandbox";

/// A client of the engine, and CNI.
pub(super) struct Calls {
    engine: Engine,
    cni: Cni,
    /// Files that are bound into containers.
    dir: PathBuf,
    cgroup_root: String,
}

impl Calls {
    pub(super) async fn new(host: &Host, docker: &Docker) -> Result<Self> {
        let engine = connect(&format!("unix://{}", docker.socket().display()), TIMEOUT)?;
        engine.negotiate().await?;
        let dir = files(host)?;
        let [conf, bin] = host.cni_dirs()?;
        let cni =
            Cni { bin_dirs: vec![bin.into()], conf_dir: conf.into(), cache_dir: dir.join("cni") };
        Ok(Self { engine, cni, dir, cgroup_root: host.cgroup_root() })
    }

    /// How many sandboxes of nodes there are.
    pub(super) async fn sandboxes(&self) -> Result<usize> {
        let filters = HashMap::from([("label", vec![SANDBOX.to_owned()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        Ok(self.engine.list_containers(Some(options)).await?.len())
    }

    /// Gives the pod once its container runs.
    pub(super) async fn start_pod(&self, pod: u16) -> Result<Pod> {
        let parent = format!("{}/kubepods/besteffort/podfloor-{pod}", self.cgroup_root);
        let sandbox = self.run(&format!("floor-{pod}-sandbox"), sandbox(pod, &parent)).await?;
        let pid = self.pid(&sandbox).await?;
        let network = self.cni.network().await?;
        self.cni.add(&network, &attachment(&sandbox, pid)).await?;
        let image = self.engine.inspect_image(PAUSE).await?.id.context("the image has no ID")?;
        let body = self.container(&sandbox, &parent, image);
        let container = self.run(&format!("floor-{pod}-container"), body).await?;
        self.pid(&container).await?;
        Ok(Pod { sandbox, container })
    }

    pub(super) async fn remove_pod(&self, pod: &Pod) -> Result<()> {
        self.stop(&pod.container).await?;
        let pid = self.pid(&pod.sandbox).await?;
        self.cni.remove(None, &attachment(&pod.sandbox, pid)).await?;
        self.stop(&pod.sandbox).await?;
        self.remove(&pod.container).await?;
        self.remove(&pod.sandbox).await
    }

    async fn stop(&self, id: &str) -> Result<()> {
        let options =
            StopContainerOptionsBuilder::default().t(i32::try_from(GRACE.as_secs())?).build();
        Ok(self.engine.stop_container(id, Some(options)).await?)
    }

    /// Creates and starts a container.
    async fn run(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let id = self.engine.create_container(Some(options), body).await?.id;
        self.engine.start_container(&id, None).await?;
        Ok(id)
    }

    /// The process of a container, which runs.
    async fn pid(&self, id: &str) -> Result<i64> {
        let state = self.engine.inspect_container(id, None).await?.state.unwrap_or_default();
        ensure!(state.running == Some(true), "container {id} does not run: {state:?}");
        state.pid.context("it has no process")
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        Ok(self.engine.remove_container(id, Some(options)).await?)
    }

    fn container(&self, sandbox: &str, parent: &str, image: String) -> ContainerCreateBody {
        let bind = |file: &str, path: &str| Mount {
            typ: Some(MountType::BIND),
            source: Some(self.dir.join(file).display().to_string()),
            target: Some(path.to_owned()),
            ..Mount::default()
        };
        let shared = format!("container:{sandbox}");
        let host = HostConfig {
            network_mode: Some(shared.clone()),
            ipc_mode: Some(shared),
            oom_score_adj: Some(1000),
            security_opt: Some(owned(&["seccomp=unconfined"])),
            masked_paths: Some(owned(&MASKED)),
            readonly_paths: Some(owned(&READ_ONLY)),
            mounts: Some(vec![
                bind("hosts", "/etc/hosts"),
                bind("termination-log", "/dev/termination-log"),
            ]),
            ..common(parent)
        };
        ContainerCreateBody {
            image: Some(image),
            healthcheck: Some(HealthConfig {
                test: Some(owned(&["NONE"])),
                ..HealthConfig::default()
            }),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }
}

fn sandbox(pod: u16, parent: &str) -> ContainerCreateBody {
    let host = HostConfig {
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("shareable".to_owned()),
        security_opt: Some(owned(&["no-new-privileges"])),
        ..common(parent)
    };
    ContainerCreateBody {
        image: Some(PAUSE.to_owned()),
        hostname: Some(format!("floor-{pod}")),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

fn common(parent: &str) -> HostConfig {
    let bounds = [("max-size", "10m"), ("max-file", "5")];
    let bounds = bounds.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let log =
        HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(bounds.into()) };
    HostConfig {
        cpu_shares: Some(2),
        cgroup_parent: Some(parent.to_owned()),
        log_config: Some(log),
        ..HostConfig::default()
    }
}

fn attachment(sandbox: &str, pid: i64) -> Attachment {
    Attachment {
        container_id: sandbox.to_owned(),
        netns: Some(format!("/proc/{pid}/ns/net").into()),
        interface: "eth0".to_owned(),
        ..Attachment::default()
    }
}

/// Does work on the host's network, in a thread of its own: what it starts is there too.
pub(super) async fn on_network<T: Send + 'static>(
    host: &Host,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let netns = File::open(host.netns())?;
    let thread = std::thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET)?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
    });
    let done = tokio::task::spawn_blocking(move || thread.join()).await?;
    done.map_err(|_| anyhow!("the floor has panicked"))?
}
