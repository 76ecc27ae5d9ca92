//! The calls of CRI that a kubelet cannot do without for one-container pods, straight to the runtime, with the
//! same configs as a kubelet sends (they decide what runc has to do).
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1;
use longshore_cri::{Options, Runtime};
use longshore_testkit::{Host, PAUSE};

use super::{GRACE, MASKED, Pod, READ_ONLY, files, owned};

/// A client of the host's containerd.
pub(super) struct Calls {
    runtime: Runtime,
    /// Files that are bound into containers, and logs.
    dir: PathBuf,
    cgroup_root: String,
}

impl Calls {
    pub(super) fn new(host: &Host) -> Result<Self> {
        let runtime = Runtime::new(Options::new(host.socket().display().to_string()))?;
        Ok(Self { runtime, dir: files(host)?, cgroup_root: host.cgroup_root() })
    }

    /// How many sandboxes there are.
    pub(super) async fn sandboxes(&self) -> Result<usize> {
        Ok(self.runtime.list_pod_sandboxes(None).await?.len())
    }

    /// Gives the pod once its container runs.
    pub(super) async fn start_pod(&self, pod: u16) -> Result<Pod> {
        let runtime = &self.runtime;
        let sandbox = self.sandbox(pod);
        let id = runtime.run_pod_sandbox(sandbox.clone(), "").await?;
        let status = runtime.pod_sandbox_status(&id).await?.sandbox;
        ensure!(status.state() == v1::PodSandboxState::SandboxReady, "sandbox {id} is not ready");
        let image = v1::ImageSpec { image: PAUSE.into(), ..Default::default() };
        let image = runtime.image_status(image).await?.context("the image is not there")?;
        let config = self.container(image.id);
        let container = runtime.create_container(&id, config, sandbox).await?;
        runtime.start_container(&container).await?;
        let status = runtime.container_status(&container).await?;
        let running = status.state() == v1::ContainerState::ContainerRunning;
        ensure!(running, "container {container} does not run: {}", status.message);
        Ok(Pod { sandbox: id, container })
    }

    pub(super) async fn remove_pod(&self, pod: &Pod) -> Result<()> {
        let Pod { sandbox, container } = pod;
        // containerd 1.6 fails when the shim has ended while it was asked. A kubelet asks again.
        if self.runtime.stop_container(container, GRACE).await.is_err() {
            self.runtime.stop_container(container, GRACE).await?;
        }
        self.runtime.stop_pod_sandbox(sandbox).await?;
        self.runtime.remove_container(container).await?;
        Ok(self.runtime.remove_pod_sandbox(sandbox).await?)
    }

    fn sandbox(&self, pod: u16) -> v1::PodSandboxConfig {
        let uid = format!("floor-{pod}");
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: uid.clone(),
                uid: uid.clone(),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: uid.clone(),
            log_directory: self.path(&uid),
            dns_config: Some(v1::DnsConfig::default()),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/kubepods/besteffort/pod{uid}", self.cgroup_root),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces()),
                    seccomp: Some(seccomp(v1::security_profile::ProfileType::RuntimeDefault)),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn container(&self, image: String) -> v1::ContainerConfig {
        let bind = |file: &str, path: &str| v1::Mount {
            host_path: self.path(file),
            container_path: path.into(),
            ..Default::default()
        };
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image, ..Default::default() }),
            mounts: vec![
                bind("hosts", "/etc/hosts"),
                bind("termination-log", "/dev/termination-log"),
            ],
            log_path: "main/0.log".into(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources {
                    cpu_shares: 2,
                    cpu_period: 100_000,
                    oom_score_adj: 1000,
                    ..Default::default()
                }),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(namespaces()),
                    seccomp: Some(seccomp(v1::security_profile::ProfileType::Unconfined)),
                    masked_paths: owned(&MASKED),
                    readonly_paths: owned(&READ_ONLY),
                    ..Default::default()
                }),
            }),
            ..Default::default()
        }
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }
}

/// A network and IPC namespace per pod, a PID namespace per container.
fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() }
}

fn seccomp(profile: v1::security_profile::ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: profile.into(), ..Default::default() }
}
