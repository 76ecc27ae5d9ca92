//! Pods with probes: how soon the apiserver knows what one has found, and what many cost.
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use longshore_testkit::{PAUSE, wait_until};
use serde::Serialize;
use serde_json::json;

use crate::burst::AT_ONCE;
use crate::cluster::{Cluster, Uses};
use crate::gates::Gates;
use crate::idle::{self, Idle};
use crate::pods::{self, Change, Changes};
use crate::statistics::Spread;

const TIMEOUT: Duration = Duration::from_secs(240);
/// Pods that are turned from ready to not and back, in turns.
const TURNED: usize = 10;

/// What was measured with pods of three probes a second each.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Probes {
    /// From the first answer that makes a pod ready until a watch shows that it is Ready.
    pub(crate) ready_seconds: Option<Spread>,
    /// From the first answer that does not until a watch shows that it is not.
    pub(crate) unready_seconds: Option<Spread>,
    /// With so many probes a second, as counted.
    pub(crate) per_second: f64,
    /// A while in which they all succeeded.
    pub(crate) cost: Idle,
    /// Descriptors that each daemon has open then.
    pub(crate) descriptors: Uses<usize>,
}

/// Measures `turns` turns of readiness, then `seconds` seconds with `count` pods.
pub(crate) async fn run(
    cluster: &mut Cluster<'_>,
    turns: usize,
    count: usize,
    seconds: u16,
) -> Result<Probes> {
    let gates = Gates::start(cluster.host.machine_ip().into()).await?;
    let names: Vec<String> = (0..count).map(|n| format!("probed-{n}")).collect();
    let (few, many) = names.split_at(count.min(TURNED));
    names.iter().for_each(|name| gates.turn(name, true));
    create(cluster, &gates, few).await?;
    let (mut ready, mut unready) = (Vec::new(), Vec::new());
    for name in few.iter().cycle().take(turns) {
        unready.push(turn(cluster, &gates, name, false).await?);
        ready.push(turn(cluster, &gates, name, true).await?);
    }

    create(cluster, &gates, many).await?;
    let before = gates.requests();
    let cost = idle::run(cluster, seconds).await?;
    #[allow(clippy::cast_precision_loss, reason = "for display only")]
    let per_second = (gates.requests() - before) as f64 / cost.seconds;
    let descriptors = cluster.descriptors()?;
    delete(cluster, &names).await?;
    Ok(Probes {
        ready_seconds: Spread::of(ready),
        unready_seconds: Spread::of(unready),
        per_second,
        cost,
        descriptors,
    })
}

/// Two containers, three probes, each once a second.
fn manifest(name: &str, node: &str, gates: &Gates) -> Result<Pod> {
    let (ip, port) = (gates.address.ip(), gates.address.port());
    let probe = |path: String| {
        json!({
            "httpGet": { "host": ip, "port": port, "path": path },
            "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5,
        })
    };
    let alive = || probe("/alive".to_owned());
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "containers": [
                { "name": "main", "image": PAUSE, "livenessProbe": alive(),
                  "readinessProbe": probe(format!("/{name}")) },
                { "name": "side", "image": PAUSE, "readinessProbe": alive() },
            ],
        },
    }))?)
}

async fn create(cluster: &Cluster<'_>, gates: &Gates, names: &[String]) -> Result<()> {
    gates.turn("alive", true);
    let (pods, node) = (cluster.pods(), cluster.host.name());
    let (params, manifest) = (PostParams::default(), |name| manifest(name, &node, gates));
    let posts = stream::iter(names)
        .map(async |name| pods.create(&params, &manifest(name)?).await.context("POST of a pod"));
    posts.buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    wait_until(TIMEOUT, "the probed pods to be Ready", async || {
        let listed = pods.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let waits = |pod: &&Pod| names.contains(&pod.name_any()) && !pods::is_ready(pod);
        match listed.items.iter().filter(waits).count() {
            0 => Ok(()),
            count => Err(format!("{count} are not")),
        }
    })
    .await?;
    Ok(())
}

/// Turns a pod's readiness; gives the seconds from the first answer with the new result until the watch
/// does.
async fn turn(cluster: &Cluster<'_>, gates: &Gates, name: &str, open: bool) -> Result<f64> {
    let (_, mut changes) = Changes::open(&cluster.pods(), Duration::from_secs(60)).await?;
    gates.turn(name, open);
    loop {
        let next = changes.next().await;
        let (at, change) = next.with_context(|| format!("{name}, to be turned to {open}"))?;
        let Change::Is(pod) = change else { continue };
        if pod.name_any() == name && pods::is_ready(&pod) == open {
            let answered = gates.answered(name).context("reported without a probe")?;
            return Ok((at - answered).as_secs_f64());
        }
    }
}

async fn delete(cluster: &Cluster<'_>, names: &[String]) -> Result<()> {
    let (pods, params) = (cluster.pods(), DeleteParams::default().grace_period(1));
    let deletes = stream::iter(names).map(|name| pods.delete(name, &params));
    deletes.buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    wait_until(TIMEOUT, "the probed pods to go", async || {
        let listed = pods.list(&Default::default()).await.map_err(|error| error.to_string())?;
        match listed.items.len() {
            0 => Ok(()),
            count => Err(format!("{count} are left")),
        }
    })
    .await?;
    Ok(())
}
