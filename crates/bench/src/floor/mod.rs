//! The floor: what the pods need of their runtime, with no node: the calls of CRI to containerd, or those of its own
//! API to a Docker Engine with the plugins of CNI beside it.
mod cri;
mod docker;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use longshore_testkit::{Docker, Host};
use serde::{Serialize, Serializer};

use crate::process;
use crate::statistics::Spread;

/// What a kubelet has containers not see, and not write to.
const MASKED: [&str; 12] = [
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
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How long a container may take to end. It ends at once.
const GRACE: Duration = Duration::from_secs(1);

/// How many pods may be in the making, or in removal, at once.
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
    /// Of the runtime without its shims, in that time.
    pub(crate) runtime_cpu_seconds: f64,
    /// Of everything on the host.
    pub(crate) host_cpu_seconds: Option<f64>,
    /// From the first call that stops a container to the answer that the last sandbox is removed.
    pub(crate) removal_seconds: f64,
    /// Of everything on the host, in that time.
    pub(crate) removal_host_cpu_seconds: Option<f64>,
}

/// A pod that was started.
#[derive(Debug)]
struct Pod {
    sandbox: String,
    container: String,
}

/// Who is called.
enum Calls {
    Cri(cri::Calls),
    Docker(docker::Calls),
}

impl Calls {
    /// Gives the pod once its container runs.
    async fn start_pod(&self, pod: u16) -> Result<Pod> {
        match self {
            Self::Cri(calls) => calls.start_pod(pod).await,
            Self::Docker(calls) => calls.start_pod(pod).await,
        }
    }

    async fn remove_pod(&self, pod: &Pod) -> Result<()> {
        match self {
            Self::Cri(calls) => calls.remove_pod(pod).await,
            Self::Docker(calls) => calls.remove_pod(pod).await,
        }
    }

    async fn sandboxes(&self) -> Result<usize> {
        match self {
            Self::Cri(calls) => calls.sandboxes().await,
            Self::Docker(calls) => calls.sandboxes().await,
        }
    }
}

/// Runs floors on a host.
pub(crate) struct Runs {
    calls: Arc<Calls>,
    /// The processes of the runtime.
    runtime: Vec<u32>,
    cgroup_root: String,
}

impl Runs {
    /// With the host's containerd.
    pub(crate) fn new(host: &mut Host) -> Result<Self> {
        let runtime = vec![host.containerd()?.pid()];
        let calls = Arc::new(Calls::Cri(cri::Calls::new(host)?));
        Ok(Self { calls, runtime, cgroup_root: host.cgroup_root() })
    }

    /// With a Docker Engine on the host.
    pub(crate) async fn of_docker(host: &Host, docker: &mut Docker) -> Result<Self> {
        let runtime = docker.processes()?;
        let calls = Arc::new(Calls::Docker(docker::Calls::new(host, docker).await?));
        Ok(Self { calls, runtime, cgroup_root: host.cgroup_root() })
    }

    /// How many sandboxes there are, of anybody.
    pub(crate) async fn sandboxes(&self) -> Result<usize> {
        self.calls.sandboxes().await
    }

    /// Starts so many pods and, when all run, removes them again.
    pub(crate) async fn run(&self, host: &Host, pods: u16, limit: Limit) -> Result<Floor> {
        let at_once = match limit {
            Limit::At(limit) => limit,
            Limit::None => pods.into(),
        };
        let runtime_before = process::look_at_all(&self.runtime)?.cpu_seconds;
        let host_before = process::host_cpu_seconds(host);
        let start = start_all(Arc::clone(&self.calls), pods, at_once);
        let (seconds, started) = self.on_the_right_network(host, start).await?;
        let runtime_after = process::look_at_all(&self.runtime)?.cpu_seconds;
        let host_after = process::host_cpu_seconds(host);
        let (started, each): (Vec<Pod>, Vec<f64>) = started.into_iter().unzip();
        let pod_seconds = Spread::of(each).context("no pod was started")?;

        let remove = remove_all(Arc::clone(&self.calls), started, at_once);
        let removal_seconds = self.on_the_right_network(host, remove).await?;
        let host_end = process::host_cpu_seconds(host);
        self.remove_cgroups()?;
        Ok(Floor {
            limit,
            seconds,
            pod_seconds,
            runtime_cpu_seconds: runtime_after - runtime_before,
            host_cpu_seconds: process::host_cpu_since(host_before, host_after),
            removal_seconds,
            removal_host_cpu_seconds: process::host_cpu_since(host_after, host_end),
        })
    }

    /// containerd runs the plugins of CNI on the host; for Docker they are run here, and must be there too.
    async fn on_the_right_network<T: Send + 'static>(
        &self,
        host: &Host,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match *self.calls {
            Calls::Cri(_) => work.await,
            Calls::Docker(_) => docker::on_network(host, work).await,
        }
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
}

/// Starts all pods, so many at once. Gives the seconds that it took, and each pod with its own.
async fn start_all(calls: Arc<Calls>, pods: u16, at_once: usize) -> Result<(f64, Vec<(Pod, f64)>)> {
    let start = Instant::now();
    let started = (0..pods).map(|pod| {
        let calls = Arc::clone(&calls);
        async move {
            let pod = calls.start_pod(pod).await?;
            anyhow::Ok((pod, start.elapsed().as_secs_f64()))
        }
    });
    let started = stream::iter(started).buffer_unordered(at_once).try_collect().await?;
    Ok((start.elapsed().as_secs_f64(), started))
}

/// Stops and removes all pods, so many at once. Gives the seconds that it took.
async fn remove_all(calls: Arc<Calls>, pods: Vec<Pod>, at_once: usize) -> Result<f64> {
    let start = Instant::now();
    let removed = pods.into_iter().map(|pod| {
        let calls = Arc::clone(&calls);
        async move { calls.remove_pod(&pod).await }
    });
    stream::iter(removed).buffer_unordered(at_once).try_collect::<()>().await?;
    Ok(start.elapsed().as_secs_f64())
}

/// The folder of files that are bound into containers, and of logs.
fn files(host: &Host) -> Result<PathBuf> {
    let dir = host.dir().join("floor");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    for file in ["hosts", "termination-log"] {
        fs::write(dir.join(file), "127.0.0.1 localhost\n")?;
    }
    Ok(dir)
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
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
