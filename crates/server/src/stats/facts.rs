//! What does not change while the daemon runs: the machine, when it began, and the image of
//! sandboxes, which the runtime tells once.

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

/// The image of sandboxes if the runtime does not tell it.
const SANDBOX_IMAGE: &str = "pause";
/// How long the runtime may take to tell it.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Facts {
    pub(super) machine: Machine,
    /// CPUs and nodes; empty if the kernel does not tell.
    pub(super) topology: topology::Machine,
    /// When the machine was started.
    pub(super) booted: Timestamp,
    /// When this daemon was.
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

    /// How many cores and sockets there are.
    pub(super) fn cores_and_sockets(&self) -> (usize, usize) {
        let cpus = &self.topology.cpus;
        let infos: Vec<_> = cpus.all().iter().filter_map(|cpu| cpus.info(cpu)).collect();
        let count = |of: fn(&topology::CpuInfo) -> i64| {
            infos.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
        };
        (count(|info| info.core.into()), count(|info| info.socket.into()))
    }

    pub(super) async fn sandbox_image(&self) -> &str {
        let ask =
            async { timeout(PATIENCE, ask_sandbox_image(&self.runtime)).await.ok().flatten() };
        let told = self.sandbox_image.get_or_try_init(|| async { ask.await.ok_or(()) }).await;
        told.map_or(SANDBOX_IMAGE, String::as_str)
    }
}

/// Newer runtimes pin it, older ones tell it with their config.
async fn ask_sandbox_image(runtime: &Runtime) -> Option<String> {
    let images = runtime.list_images(None).await.ok()?;
    let pinned = images.into_iter().find(|image| image.pinned);
    if let Some(tag) = pinned.and_then(|image| image.repo_tags.into_iter().next()) {
        return Some(tag);
    }
    let status = runtime.status(true).await.ok()?;
    let config: Value = serde_json::from_str(status.info.get("config")?).ok()?;
    config.get("sandboxImage")?.as_str().map(str::to_owned)
}
