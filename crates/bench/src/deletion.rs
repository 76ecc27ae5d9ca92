//! All pods are deleted at once.
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::api::DeleteParams;
use longshore_testkit::wait_until;
use serde::Serialize;

use crate::burst::AT_ONCE;
use crate::cluster::{Cluster, Uses};
use crate::floor::Runs;
use crate::pods::{Change, Changes};
use crate::process;

const TIMEOUT: Duration = Duration::from_secs(240);
/// The pods' grace period, in seconds. Their processes leave at once.
const GRACE: u32 = 1;

/// One deletion of all pods, from the first DELETE.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Deletion {
    /// Until a watch has shown the last deletion.
    pub(crate) seconds: f64,
    /// Until the runtime has no sandbox any more.
    pub(crate) sandboxes_seconds: f64,
    /// Until the last sandbox is gone.
    pub(crate) cpu_seconds: Uses<f64>,
    /// Of everything on the host, in that time.
    pub(crate) host_cpu_seconds: Option<f64>,
    /// Of everybody to the apiserver in that time, by verb and resource.
    pub(crate) requests: BTreeMap<String, u64>,
}

pub(crate) async fn run(
    cluster: &mut Cluster<'_>,
    floor: &Runs,
    names: &[String],
) -> Result<Deletion> {
    let pods = cluster.pods();
    let (_, mut changes) = Changes::open(&pods, TIMEOUT).await?;
    let requests_before = cluster.requests().await?;
    let (before, host_before) = (cluster.uses()?, cluster.host_cpu_seconds());

    let start = Instant::now();
    let params = DeleteParams::default().grace_period(GRACE);
    let deletes = stream::iter(names.iter().map(|name| pods.delete(name, &params)));
    let deletes = async {
        let done = deletes.buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) });
        done.await.context("DELETE of a pod")
    };
    tokio::try_join!(deletes, all_gone(&mut changes, names))?;
    let seconds = start.elapsed().as_secs_f64();

    wait_until(TIMEOUT, "the last sandbox to go", async || -> Result<()> {
        let left = floor.sandboxes().await?;
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    let sandboxes_seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = cluster.uses()?.cpu_since(&before);
    let host_after = cluster.host_cpu_seconds();
    Ok(Deletion {
        seconds,
        sandboxes_seconds,
        cpu_seconds,
        host_cpu_seconds: process::host_cpu_since(host_before, host_after),
        requests: cluster.requests_since(&requests_before).await?,
    })
}

async fn all_gone(changes: &mut Changes, names: &[String]) -> Result<()> {
    let mut left: HashSet<&str> = names.iter().map(String::as_str).collect();
    while !left.is_empty() {
        let change = changes.next().await.with_context(|| format!("{} are left", left.len()))?;
        if let (_, Change::Gone(name)) = change {
            left.remove(name.as_str());
        }
    }
    Ok(())
}
