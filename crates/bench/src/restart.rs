//! The node daemon is killed and started again under running pods, which are not to notice.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use longshore_testkit::wait_until;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::pods::{self, Change, Changes};
use crate::process::Memory;

const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the pods are watched after the start: several relists and syncs.
const WATCHED: Duration = Duration::from_secs(10);

/// One restart.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Restart {
    /// From the daemon's start until it has renewed its lease.
    pub(crate) lease_seconds: f64,
    /// From the daemon's start until it has said anew that the node is Ready.
    pub(crate) ready_seconds: f64,
    /// Changes to pods that a watch saw afterwards: none is right.
    pub(crate) pod_writes: usize,
    /// CPU-seconds of the daemon in its first ten seconds.
    pub(crate) cpu_seconds: f64,
    /// Of the daemon, in MiB, after those.
    pub(crate) memory: Memory,
}

pub(crate) async fn run(cluster: &mut Cluster<'_>) -> Result<Restart> {
    let (pods, nodes, name) = (cluster.pods(), cluster.nodes(), cluster.host.name());
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "kube-node-lease");
    let renewed = async || -> Result<_> {
        Ok(leases.get(&name).await?.spec.context("the lease is empty")?.renew_time)
    };
    let said_ready = async || -> Result<_> {
        let status = nodes.get(&name).await?.status.unwrap_or_default();
        let ready = status.conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
        let ready = ready.context("the node has no Ready condition")?;
        ensure!(ready.status == "True", "the node is not Ready");
        Ok(ready.last_heartbeat_time)
    };

    let (lease, heartbeat) = (renewed().await?, said_ready().await?);
    let (listed, mut changes) = Changes::open(&pods, WATCHED).await?;
    let before = containers(&listed);
    cluster.node.restart(cluster.host)?;
    let start = Instant::now();

    let changed = |what, same: bool| async move {
        ensure!(!same, "{what} is the old one");
        Ok(start.elapsed().as_secs_f64())
    };
    let lease = wait_until(TIMEOUT, "a renewed lease", async || {
        changed("the lease", renewed().await? == lease).await
    });
    let ready = wait_until(TIMEOUT, "the node to be Ready anew", async || {
        changed("the heartbeat", said_ready().await? == heartbeat).await
    });
    let writes = async {
        let mut writes = 0;
        while let Ok((_, Change::Is(_))) = changes.next().await {
            writes += 1;
        }
        Ok(writes)
    };
    let (lease_seconds, ready_seconds, pod_writes) = tokio::try_join!(lease, ready, writes)?;

    let uses = cluster.uses()?.node;
    let (after, _) = Changes::open(&pods, WATCHED).await?;
    ensure!(before == containers(&after), "a container restarted with the node daemon");
    ensure!(after.iter().all(pods::is_ready), "a pod is no longer Ready");
    Ok(Restart {
        lease_seconds,
        ready_seconds,
        pod_writes,
        cpu_seconds: uses.cpu_seconds,
        memory: uses.memory,
    })
}

/// Each pod's container id and restart count.
fn containers(pods: &[Pod]) -> BTreeMap<String, (Option<String>, i32)> {
    let of = |pod: &Pod| {
        let status = pods::container(pod)?;
        Some((pod.name_any(), (status.container_id.clone(), status.restart_count)))
    };
    pods.iter().filter_map(of).collect()
}
