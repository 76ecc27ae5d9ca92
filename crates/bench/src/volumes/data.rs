//! What volumes with data cost a node. The same pods twice, first without
//! volumes and then with ten projected ones each, every one of a secret of its own: what the idle
//! node does, and what it does when one secret changes.
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use longshore_testkit::{Host, NodeOptions, wait_until};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::process::{self, Memory, WakeUps};
use crate::statistics::Spread;
use crate::{Args, burst, pods};

/// Volumes of each pod.
const EACH: usize = 10;
/// Secrets that are changed, one after the other.
const UPDATES: usize = 30;
/// After a burst or a change: what it has stirred up is to settle.
const SETTLE: Duration = Duration::from_secs(5);
/// How long a change may take.
const TIMEOUT: Duration = Duration::from_secs(30);
const GONE: Duration = Duration::from_secs(120);

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Data {
    pub(crate) pods: usize,
    pub(crate) volumes: usize,
    /// Seconds from the first pod to the last that is ready.
    pub(crate) start_seconds: f64,
    pub(crate) without: Idle,
    pub(crate) with: Idle,
    pub(crate) updates: Updates,
}

/// The node while nothing changes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    /// How often its threads are set to work in a second.
    pub(crate) wake_ups: f64,
    pub(crate) millicores: f64,
    pub(crate) descriptors: usize,
    /// In MiB.
    pub(crate) memory: Memory,
}

/// Changes of one secret each.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Updates {
    pub(crate) count: usize,
    /// Milliseconds from the request until the volume has the new files.
    pub(crate) milliseconds: Spread,
    /// File trees that were written for each.
    pub(crate) trees: f64,
    /// Milliseconds of the node's CPU for each, above what it uses idle.
    pub(crate) cpu_milliseconds: f64,
}

/// Measures on a host of its own.
pub(crate) async fn run(args: &Args, count: usize) -> Result<Data> {
    let mut host = Host::start()?;
    let volumes = measure(&mut host, args, count.div_ceil(EACH)).await?;
    host.teardown()?;
    Ok(volumes)
}

async fn measure(host: &mut Host, args: &Args, count: usize) -> Result<Data> {
    // The default rate of requests would be all that the start of so many volumes shows.
    let config = json!({"maxPods": count + 10, "kubeAPIQPS": 500, "kubeAPIBurst": 1000});
    let config = config.as_object().cloned().unwrap_or_default();
    let options = NodeOptions { config, ..NodeOptions::default() };
    let mut cluster = Cluster::start_with(host, options).await?;
    let node = cluster.host.name();
    let plain: Vec<Pod> = (0..count)
        .map(|number| pods::manifest(&format!("plain-{number}"), &node))
        .collect::<Result<_>>()?;
    burst::of(&mut cluster, &plain).await?;
    let without = idle(&mut cluster, args.idle).await?;
    clear(&cluster).await?;

    make_secrets(&cluster, count * EACH).await?;
    let projecting: Vec<Pod> =
        (0..count).map(|number| with_volumes(number, &node)).collect::<Result<_>>()?;
    let start_seconds = burst::of(&mut cluster, &projecting).await?.seconds;
    let with = idle(&mut cluster, args.idle).await?;
    let updates = update(&mut cluster, &with, count * EACH).await?;
    clear(&cluster).await?;
    cluster.stop()?;
    Ok(Data { pods: count, volumes: count * EACH, start_seconds, without, with, updates })
}

fn secret_name(number: usize) -> String {
    format!("secret-{number}")
}

async fn make_secrets(cluster: &Cluster<'_>, count: usize) -> Result<()> {
    let secrets: Api<Secret> = Api::default_namespaced(cluster.client());
    let make = async |number| {
        let secret = json!({"metadata": {"name": secret_name(number)}, "stringData": {"k": "0"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        anyhow::Ok(())
    };
    stream::iter((0..count).map(make)).buffer_unordered(burst::AT_ONCE).try_collect().await
}

fn with_volumes(number: usize, node: &str) -> Result<Pod> {
    let mut pod = serde_json::to_value(pods::manifest(&format!("pod-{number}"), node)?)?;
    let volume = |index: usize| {
        let secret = json!({"secret": {"name": secret_name(number * EACH + index)}});
        json!({"name": format!("v{index}"), "projected": {"sources": [secret]}})
    };
    pod["spec"]["volumes"] = (0..EACH).map(volume).collect::<Value>();
    pod["spec"]["containers"][0]["volumeMounts"] = (0..EACH)
        .map(|index| json!({"name": format!("v{index}"), "mountPath": format!("/v{index}")}))
        .collect::<Value>();
    Ok(serde_json::from_value(pod)?)
}

#[allow(clippy::cast_precision_loss, reason = "for display only")]
async fn idle(cluster: &mut Cluster<'_>, seconds: u16) -> Result<Idle> {
    tokio::time::sleep(SETTLE).await;
    let pid = cluster.node.daemon().pid();
    let (began, before, woken) = (Instant::now(), cluster.uses()?.node, WakeUps::of(pid)?);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let (after, seconds) = (cluster.uses()?.node, began.elapsed().as_secs_f64());
    Ok(Idle {
        wake_ups: WakeUps::of(pid)?.since(&woken) as f64 / seconds,
        millicores: (after.cpu_seconds - before.cpu_seconds) * 1000.0 / seconds,
        descriptors: process::descriptors(pid)?,
        memory: after.memory,
    })
}

/// The data directory of every projected volume, by the volume's path.
fn trees(root: &Path) -> Result<HashMap<PathBuf, PathBuf>> {
    let mut found = HashMap::new();
    for pod in fs::read_dir(root.join("pods"))? {
        let volumes = pod?.path().join("volumes/kubernetes.io~projected");
        for volume in fs::read_dir(volumes).into_iter().flatten() {
            let path = volume?.path();
            found.insert(path.clone(), fs::read_link(path.join("..data"))?);
        }
    }
    Ok(found)
}

#[allow(clippy::cast_precision_loss, reason = "for display only")]
async fn update(cluster: &mut Cluster<'_>, idle: &Idle, count: usize) -> Result<Updates> {
    let secrets: Api<Secret> = Api::default_namespaced(cluster.client());
    let root = cluster.node.root_dir();
    let before = trees(&root)?;
    if before.len() != count {
        bail!("{} projected volumes stand, and not {count}", before.len());
    }
    let pods = cluster.pods().list(&ListParams::default()).await?;
    let uids: HashMap<String, String> =
        pods.into_iter().filter_map(|p| Some((p.metadata.name?, p.metadata.uid?))).collect();
    let (began, cpu) = (Instant::now(), cluster.uses()?.node.cpu_seconds);
    let mut milliseconds = Vec::new();
    for turn in 0..UPDATES {
        let number = turn * count / UPDATES;
        let pod = uids.get(&format!("pod-{}", number / EACH)).context("a pod is gone")?;
        let volume = format!("pods/{pod}/volumes/kubernetes.io~projected/v{}", number % EACH);
        let file = root.join(volume).join("k");
        let patch = Patch::Merge(json!({"stringData": {"k": "1"}}));
        let sent = Instant::now();
        secrets.patch(&secret_name(number), &PatchParams::default(), &patch).await?;
        while fs::read(&file)? != b"1" {
            if sent.elapsed() > TIMEOUT {
                bail!("{} does not change", file.display());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        milliseconds.push(sent.elapsed().as_secs_f64() * 1000.0);
    }
    tokio::time::sleep(SETTLE).await;
    let used = cluster.uses()?.node.cpu_seconds - cpu;
    let used = used - idle.millicores / 1000.0 * began.elapsed().as_secs_f64();
    let after = trees(&root)?;
    let written = before.iter().filter(|(path, tree)| after.get(*path) != Some(*tree)).count();
    Ok(Updates {
        count: UPDATES,
        milliseconds: Spread::of(milliseconds).context("no update")?,
        trees: written as f64 / UPDATES as f64,
        cpu_milliseconds: used.max(0.0) * 1000.0 / UPDATES as f64,
    })
}

/// Deletes all pods and waits until they are gone.
async fn clear(cluster: &Cluster<'_>) -> Result<()> {
    let pods = cluster.pods();
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    let gone = wait_until(GONE, "the pods to be gone", async || {
        let left = fs::read_dir(cluster.node.root_dir().join("pods"))?.count();
        if left == 0 { Ok(()) } else { bail!("{left} are left") }
    });
    Ok(gone.await?)
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, volumes, start_seconds, without, with, updates } = self;
        writeln!(f, "{pods} pods, {volumes} projected volumes of a secret each")?;
        writeln!(f, "all ready                 {start_seconds:.1} s")?;
        for (what, idle) in [("idle without volumes", without), ("idle with volumes", with)] {
            writeln!(
                f,
                "{what:<25} {:.2} wake-ups/s, {:.2} millicores, {:.1} MiB, {} descriptors",
                idle.wake_ups, idle.millicores, idle.memory.rss, idle.descriptors
            )?;
        }
        let Updates { count, milliseconds, trees, cpu_milliseconds } = updates;
        writeln!(
            f,
            "update of one secret      p50 {:.1} ms, p99 {:.1} ms, {trees:.2} trees, {cpu_milliseconds:.2} ms of CPU ({count} times)",
            milliseconds.p50, milliseconds.p99
        )
    }
}
