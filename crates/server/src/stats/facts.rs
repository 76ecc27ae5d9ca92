//! Constant data: the machine, boot and start times, and the sandbox image of the runtime.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_cri::Runtime;
use longshore_machine::Machine;
use longshore_resources::managers;
use longshore_topology as topology;
use procfs::Current;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The default sandbox image.
const SANDBOX_IMAGE: &str = "pause";
/// Timeout of the query for the sandbox image.
const SANDBOX_IMAGE_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct Facts {
    pub(super) machine: Machine,
    /// CPU and NUMA topology; empty if unknown.
    pub(super) topology: topology::Machine,
    /// Boot time.
    pub(super) booted: Timestamp,
    /// Start time of the daemon.
    pub(super) started: Timestamp,
    runtime: Runtime,
    sandbox_image: OnceCell<String>,
}

impl Facts {
    pub(super) fn read(runtime: Runtime) -> Self {
        let now = Timestamp::now();
        let uptime = procfs::Uptime::current().map(|uptime| uptime.uptime_duration());
        let uptime = uptime.ok().and_then(|uptime| SignedDuration::try_from(uptime).ok());
        Self {
            machine: Machine::read(),
            topology: managers::topology().unwrap_or_default(),
            booted: uptime.and_then(|uptime| now.checked_sub(uptime).ok()).unwrap_or(now),
            started: now,
            runtime,
            sandbox_image: OnceCell::new(),
        }
    }

    /// Number of cores and sockets.
    pub(super) fn cores_and_sockets(&self) -> (usize, usize) {
        let cpus = &self.topology.cpus;
        let infos: Vec<_> = cpus.all().iter().filter_map(|cpu| cpus.info(cpu)).collect();
        let count = |of: fn(&topology::CpuInfo) -> i64| {
            infos.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
        };
        (count(|info| info.core.into()), count(|info| info.socket.into()))
    }

    pub(super) async fn sandbox_image(&self) -> &str {
        let query = async {
            timeout(SANDBOX_IMAGE_TIMEOUT, query_sandbox_image(&self.runtime)).await.ok().flatten()
        };
        let image = self.sandbox_image.get_or_try_init(|| async { query.await.ok_or(()) }).await;
        image.map_or(SANDBOX_IMAGE, String::as_str)
    }
}

/// Newer runtimes pin it, older ones have it in their config.
async fn query_sandbox_image(runtime: &Runtime) -> Option<String> {
    let images = runtime.list_images(None).await.ok()?;
    let pinned = images.into_iter().find(|image| image.pinned);
    if let Some(tag) = pinned.and_then(|image| image.repo_tags.into_iter().next()) {
        return Some(tag);
    }
    let status = runtime.status(true).await.ok()?;
    let config: Value = serde_json::from_str(status.info.get("config")?).ok()?;
    config.get("sandboxImage")?.as_str().map(str::to_owned)
}
