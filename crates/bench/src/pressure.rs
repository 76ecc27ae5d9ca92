//! A pod takes the node's memory, time after time: how soon it is ended once too little is left.
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use longshore_testkit::{BUSYBOX, available_memory, wait_until};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::json;

use crate::bed::Bed;
use crate::cluster::Cluster;
use crate::pods;
use crate::statistics::Spread;

const TIMEOUT: Duration = Duration::from_secs(120);
const MI: u64 = 1 << 20;
/// What may be taken before the node counts as short; machines have at least thrice that.
const ROOM: u64 = 512 * MI;
/// Between two looks for the moment.
const INTERVAL: Duration = Duration::from_millis(10);

/// A node that ran short again and again.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Pressure {
    /// From the moment that less than the hard threshold is left until the first process of the pod
    /// that took it has ended; nothing if that was not asked for.
    pub(crate) kill_seconds: Option<Spread>,
}

/// Runs short `count` times, on a node of its own.
pub(crate) async fn run(bed: &mut Bed, count: usize) -> Result<Pressure> {
    let available = available_memory().context("cannot read the machine's memory")?;
    let threshold = available - ROOM.min(available / 3);
    let config = json!({
        "evictionHard": {"memory.available": format!("{}Mi", threshold / MI)},
        "evictionPressureTransitionPeriod": "1s",
    });
    let config = config.as_object().cloned().unwrap_or_default();
    let mut cluster = bed.cluster(config).await?;
    let mut kills = Vec::new();
    for turn in 0..count {
        let name = format!("hog-{turn}");
        kills.push(end_of(&mut cluster, &name, threshold).await.with_context(|| name)?);
    }
    cluster.stop()?;
    Ok(Pressure { kill_seconds: Spread::of(kills) })
}

/// Allocates all available memory on one signal, and exits on another.
fn manifest(name: &str, node: &str) -> Result<Pod> {
    let megabytes = ROOM / MI * 2;
    let script = format!(
        "trap 'exit 0' TERM; while [ ! -e /v/go ]; do sleep 0.05; done; \
         dd if=/dev/zero bs={megabytes}M count=1 | sleep 3600 & wait"
    );
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "resources": { "requests": { "memory": "16Mi" } },
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
            }],
        },
    }))?)
}

/// Seconds from too little memory until the pod's end. The node has recovered when this returns.
async fn end_of(cluster: &mut Cluster<'_>, name: &str, threshold: u64) -> Result<f64> {
    let (pods, node) = (cluster.pods(), cluster.host.name());
    pods.create(&PostParams::default(), &manifest(name, &node)?).await.context("POST of a pod")?;
    let pod = wait_until(TIMEOUT, "the pod to be Ready", async || {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        if pods::is_ready(&pod) { Ok(pod) } else { Err(format!("{:?}", pod.status)) }
    })
    .await?;
    let pids = cluster.container_processes()?;
    let id = pods::container_id(&pod);
    let pid = *id.and_then(|id| pids.get(id)).context("no process")?;
    let uid = pod.uid().context("no UID")?;
    let volume = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/v/go");
    fs::write(cluster.node.root_dir().join(volume), "")?;

    let deadline = Instant::now() + TIMEOUT;
    until(deadline, || available_memory().is_some_and(|left| left < threshold)).await?;
    let start = Instant::now();
    until(deadline, || !is_there(pid)).await?;
    let seconds = start.elapsed().as_secs_f64();

    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    let nodes = cluster.nodes();
    wait_until(TIMEOUT, "the node to recover", async || {
        let status = nodes.get(&node).await.map_err(|error| error.to_string())?.status;
        let mut conditions = status.and_then(|status| status.conditions).into_iter().flatten();
        let short = conditions.any(|is| is.type_ == "MemoryPressure" && is.status != "False");
        if short { Err("it is short of memory".to_owned()) } else { Ok(()) }
    })
    .await?;
    Ok(seconds)
}

async fn until(deadline: Instant, done: impl Fn() -> bool) -> Result<()> {
    while !done() {
        if Instant::now() > deadline {
            bail!("it took too long");
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}

fn is_there(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}
