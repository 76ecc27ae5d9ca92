//! The floor: the CRI calls that a kubelet cannot do without for one-container pods, straight to
//! the runtime, with the same configs as a kubelet sends (they decide what runc has to do).
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use longshore_cri::v1;
use longshore_cri::{Options, Runtime};
use longshore_testkit::{Host, PAUSE};
use serde::{Serialize, Serializer};

use crate::process;
use crate::statistics::Spread;

/// How many pods may be in the making at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    At(usize),
    None,
}

/// One run of the floor.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Floor {
    pub(crate) limit: Limit,
    /// From the first call to the answer that the last container runs.
    pub(crate) seconds: f64,
    /// Each pod, from the first call of all to the answer that its container runs.
    pub(crate) pod_seconds: Spread,
    /// Of containerd without its shims, in that time.
    pub(crate) containerd_cpu_seconds: f64,
    /// Of everything on the host.
    pub(crate) host_cpu_seconds: Option<f64>,
}

/// Runs floors on a host.
pub(crate) struct Runs {
    runtime: Runtime,
    containerd: u32,
    /// Files that are bound into containers, and logs.
    dir: PathBuf,
    cgroup_root: String,
}

impl Runs {
    pub(crate) fn new(host: &mut Host) -> Result<Self> {
        let runtime = Runtime::new(Options::new(host.socket().display().to_string()))?;
        let dir = host.dir().join("floor");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        for file in ["hosts", "termination-log"] {
            fs::write(dir.join(file), "127.0.0.1 localhost\n")?;
        }
        let containerd = host.containerd()?.pid();
        Ok(Self { runtime, containerd, dir, cgroup_root: host.cgroup_root() })
    }

    /// The client of the host's runtime.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts so many pods and, when all run, removes them again.
    pub(crate) async fn run(&self, host: &Host, pods: u16, limit: Limit) -> Result<Floor> {
        let at_once = match limit {
            Limit::At(limit) => limit,
            Limit::None => pods.into(),
        };
        let containerd_before = process::look(self.containerd)?.cpu_seconds;
        let host_before = process::host_cpu_seconds(host);
        let start = Instant::now();
        let started = (0..pods).map(|pod| async move {
            let id = self.start_pod(pod).await?;
            Ok::<_, anyhow::Error>((id, start.elapsed().as_secs_f64()))
        });
        let started = stream::iter(started).buffer_unordered(at_once).try_collect().await?;
        let seconds = start.elapsed().as_secs_f64();
        let containerd_after = process::look(self.containerd)?.cpu_seconds;
        let host_after = process::host_cpu_seconds(host);
        let (sandboxes, each): (Vec<String>, Vec<f64>) = started;
        let pod_seconds = Spread::of(each).context("no pod was started")?;

        let removed = stream::iter(sandboxes.iter().map(|id| self.remove_pod(id)));
        removed.buffer_unordered(8).try_collect::<()>().await?;
        self.remove_cgroups()?;
        Ok(Floor {
            limit,
            seconds,
            pod_seconds,
            containerd_cpu_seconds: containerd_after - containerd_before,
            host_cpu_seconds: Option::zip(host_after, host_before).map(|(a, b)| a - b),
        })
    }

    /// Gives the sandbox's id once its container runs.
    async fn start_pod(&self, pod: u16) -> Result<String> {
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
        Ok(id)
    }

    async fn remove_pod(&self, sandbox: &str) -> Result<()> {
        self.runtime.stop_pod_sandbox(sandbox).await?;
        Ok(self.runtime.remove_pod_sandbox(sandbox).await?)
    }

    /// The pods' own cgroups, which a runtime makes but does not remove: the next run is to find
    /// the machine as this one did.
    fn remove_cgroups(&self) -> Result<()> {
        let trees = fs::read_dir("/sys/fs/cgroup").context("/sys/fs/cgroup")?.flatten();
        let trees = trees.map(|entry| entry.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
        for tree in trees {
            remove_groups(&tree.join(self.cgroup_root.trim_start_matches('/')).join("kubepods"));
        }
        Ok(())
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
        let paths = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
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
                    masked_paths: paths(&[
                        "/proc/asound",
                        "/proc/acpi",
                        "/proc/interrupts",
                        "/proc/kcore",
                        "/proc/keys",
                        "/proc/latency_stats",
                        "/proc/timer_list",
                        "/proc/timer_stats",
                        "/proc/sched_debug",
                        "/proc/scsi",
                        "/sys/firmware",
                        "/sys/devices/virtual/powercap",
                    ]),
                    readonly_paths: paths(&[
                        "/proc/bus",
                        "/proc/fs",
                        "/proc/irq",
                        "/proc/sys",
                        "/proc/sysrq-trigger",
                    ]),
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

/// Removes cgroups below `group`, children first. One that is absent or busy is left out: whether
/// anything stays is checked at the run's end.
fn remove_groups(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove_groups(&entry.path());
    }
    let _ = fs::remove_dir(group);
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(limit) => write!(f, "{limit} at once"),
            Self::None => f.write_str("all at once"),
        }
    }
}

/// A number, or null.
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::At(limit) => Some(limit),
            Self::None => None,
        }
        .serialize(serializer)
    }
}
