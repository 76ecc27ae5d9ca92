//! Many pods at once, from the first POST to the last Ready.
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use crate::cluster::{Cluster, Uses};
use crate::device;
use crate::pods::{self, Change, Changes};
use crate::process::{self, Memory};
use crate::statistics::Spread;

const TIMEOUT: Duration = Duration::from_secs(240);
/// How many POSTs are on their way at once, as from a controller.
pub(crate) const AT_ONCE: usize = 16;
/// After the last Ready: events and the like may still be under way, and they cost too.
const TAIL: Duration = Duration::from_secs(2);

/// One burst.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Burst {
    /// From the first POST until a watch has shown the last Ready.
    pub(crate) seconds: f64,
    /// Until the last POST is answered.
    pub(crate) posted_seconds: f64,
    /// Each pod, from its POST to its Ready.
    pub(crate) pod_seconds: Spread,
    /// From the first POST until two seconds after the last Ready.
    pub(crate) cpu_seconds: Uses<f64>,
    /// Of everything on the host, in that time.
    pub(crate) host_cpu_seconds: Option<f64>,
    /// In MiB, after that.
    pub(crate) memory: Uses<Memory>,
    /// Of everybody to the apiserver in that time, by verb and resource.
    pub(crate) requests: BTreeMap<String, u64>,
}

/// A burst of pods of those names, each with a device of the plugin if there is one.
pub(crate) async fn run(
    cluster: &mut Cluster<'_>,
    names: &[String],
    with_devices: bool,
) -> Result<Burst> {
    let node = cluster.host.name();
    let manifest = |name: &String| {
        let pod = pods::manifest(name, &node)?;
        if with_devices { device::with_device(pod) } else { Ok(pod) }
    };
    let manifests: Vec<Pod> = names.iter().map(manifest).collect::<Result<_>>()?;
    of(cluster, &manifests).await
}

/// A burst of those pods.
pub(crate) async fn of(cluster: &mut Cluster<'_>, manifests: &[Pod]) -> Result<Burst> {
    let pods = cluster.pods();
    let (_, mut changes) = Changes::open(&pods, TIMEOUT).await?;
    let requests_before = cluster.requests().await?;
    let (before, host_before) = (cluster.uses()?, cluster.host_cpu_seconds());

    let start = Instant::now();
    let posts = async {
        let posts = stream::iter(manifests.iter().map(|pod| post(&pods, pod)));
        let sent: HashMap<String, Instant> = posts.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok((sent, start.elapsed()))
    };
    let ((sent, posted), ready) =
        tokio::try_join!(posts, all_ready(&mut changes, manifests.len()))?;
    let seconds = start.elapsed().as_secs_f64();

    tokio::time::sleep(TAIL).await;
    let (after, host_after) = (cluster.uses()?, cluster.host_cpu_seconds());
    let requests = cluster.requests_since(&requests_before).await?;
    let each =
        sent.iter().filter_map(|(name, sent)| Some((*ready.get(name)? - *sent).as_secs_f64()));
    Ok(Burst {
        seconds,
        posted_seconds: posted.as_secs_f64(),
        pod_seconds: Spread::of(each.collect()).context("no pod was seen")?,
        cpu_seconds: after.cpu_since(&before),
        host_cpu_seconds: process::host_cpu_since(host_before, host_after),
        memory: after.memory(),
        requests,
    })
}

async fn post(pods: &Api<Pod>, pod: &Pod) -> Result<(String, Instant)> {
    let sent = Instant::now();
    pods.create(&PostParams::default(), pod).await.context("POST of a pod")?;
    Ok((pod.name_any(), sent))
}

/// When each pod was first Ready, once all are.
pub(crate) async fn all_ready(
    changes: &mut Changes,
    count: usize,
) -> Result<HashMap<String, Instant>> {
    let mut ready = HashMap::new();
    while ready.len() < count {
        let next = changes.next().await;
        let what = || format!("{} of {count} pods are Ready", ready.len());
        let (at, change) = next.with_context(what)?;
        if let Change::Is(pod) = change
            && pods::is_ready(&pod)
        {
            ready.entry(pod.name_any()).or_insert(at);
        }
    }
    Ok(ready)
}
