//! Containers die, one after the other: how soon the apiserver knows, and how soon they run again.
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::sys::signal::{Signal, kill};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::pods::{self, Change, Changes};
use crate::statistics::Spread;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two deaths. No divisor or multiple of a second, so that they fall anywhere between two
/// relists.
const PAUSE: Duration = Duration::from_millis(1370);

/// Deaths by SIGKILL; nothing if none was asked for.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Deaths {
    /// Until a watch shows that the container does not run, or of its restart.
    pub(crate) reported_seconds: Option<Spread>,
    /// Until a watch shows of a higher restart count.
    pub(crate) counted_seconds: Option<Spread>,
    /// Until the pod is Ready again, with a higher restart count.
    pub(crate) ready_seconds: Option<Spread>,
}

pub(crate) async fn run(cluster: &mut Cluster<'_>, count: usize) -> Result<Deaths> {
    let pids = cluster.container_processes()?;
    let (pods, _) = Changes::open(&cluster.pods(), TIMEOUT).await?;
    let (mut reported, mut counted, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for victim in pods.iter().take(count) {
        tokio::time::sleep(PAUSE).await;
        let (_, mut changes) = Changes::open(&cluster.pods(), TIMEOUT).await?;
        let name = victim.name_any();
        let id = pods::container_id(victim);
        let pid =
            *id.and_then(|id| pids.get(id)).with_context(|| format!("{name} has no process"))?;
        let start = Instant::now();
        kill(pid, Signal::SIGKILL).with_context(|| format!("kill of pid {pid}"))?;
        let seen = follow(victim, &mut changes).await.with_context(|| name)?;
        for (results, at) in [&mut reported, &mut counted, &mut ready].into_iter().zip(seen) {
            results.push((at - start).as_secs_f64());
        }
    }
    Ok(Deaths {
        reported_seconds: Spread::of(reported),
        counted_seconds: Spread::of(counted),
        ready_seconds: Spread::of(ready),
    })
}

/// When the death was reported, when it was counted, and when the pod was Ready again.
async fn follow(victim: &Pod, changes: &mut Changes) -> Result<[Instant; 3]> {
    let count_before = pods::container(victim).map_or(0, |status| status.restart_count);
    let (mut reported, mut counted) = (None, None);
    loop {
        let (at, Change::Is(pod)) = changes.next().await? else { continue };
        let Some(status) = pods::container(&pod) else { continue };
        if pod.name_any() != victim.name_any() {
            continue;
        }
        let restarted = status.restart_count > count_before;
        let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
        if restarted || !runs {
            reported.get_or_insert(at);
        }
        if restarted {
            counted.get_or_insert(at);
        }
        if let (Some(reported), Some(counted), true) = (reported, counted, pods::is_ready(&pod)) {
            return Ok([reported, counted, at]);
        }
    }
}
