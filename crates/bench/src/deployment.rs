//! How soon a deployment is ready on a whole cluster of one node, beside what the runtime alone takes to
//! start as many pods.
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use longshore_testkit::{Host, PAUSE, wait_until};
use serde::Serialize;
use serde_json::json;

use crate::burst::all_ready;
use crate::cluster::Cluster;
use crate::floor::{Limit, Runs};
use crate::pods::Changes;
use crate::statistics::median;

const TIMEOUT: Duration = Duration::from_secs(120);
const NAME: &str = "bench";

/// Seconds of each round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) replicas: u16,
    /// The runtime alone, all pods at once, from the first call to the last container that runs.
    pub(crate) floor_seconds: Vec<f64>,
    /// From the creation of the Deployment until a watch has shown the last pod Ready.
    pub(crate) ready_seconds: Vec<f64>,
}

/// Measures on a host of its own.
pub(crate) async fn run(replicas: u16, rounds: u16) -> Result<Results> {
    let mut host = Host::start()?;
    let results = measure(&mut host, replicas, rounds).await?;
    host.teardown()?;
    Ok(results)
}

async fn measure(host: &mut Host, replicas: u16, rounds: u16) -> Result<Results> {
    let floor = Runs::new(host)?;
    floor.run(host, replicas, Limit::None).await?; // containerd's programs come from disk
    let (mut floor_seconds, mut ready_seconds) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floor_seconds.push(floor.run(host, replicas, Limit::None).await?.seconds);
    }
    let mut cluster = Cluster::start(host).await?;
    let mut controllers = cluster.start_controllers()?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    wait_until(TIMEOUT, "the service account of pods", async || accounts.get("default").await)
        .await?;
    for round in 1..=rounds {
        eprintln!("bench: round {round}/{rounds}: {replicas} replicas");
        ready_seconds.push(until_ready(&mut cluster, replicas).await?);
        controllers.daemon().check_running()?;
    }
    controllers.daemon().terminate(Duration::from_secs(10))?;
    cluster.stop()?;
    Ok(Results { replicas, floor_seconds, ready_seconds })
}

/// Creates the deployment, measures, and waits until everything of it is gone.
async fn until_ready(cluster: &mut Cluster<'_>, replicas: u16) -> Result<f64> {
    let (pods, deployments) =
        (cluster.pods(), Api::<Deployment>::default_namespaced(cluster.client()));
    let labels = json!({"app": NAME});
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": PAUSE}],
                },
            },
        },
    }))?;
    let (_, mut changes) = Changes::open(&pods, TIMEOUT).await?;
    let start = Instant::now();
    deployments.create(&PostParams::default(), &deployment).await.context("the Deployment")?;
    all_ready(&mut changes, replicas.into()).await?;
    let seconds = start.elapsed().as_secs_f64();

    deployments.delete(NAME, &DeleteParams::foreground()).await?;
    wait_until(TIMEOUT, "the deployment and its pods to go", async || -> Result<()> {
        let left = pods.list(&kube::api::ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} pods are left");
        ensure!(deployments.get_opt(NAME).await?.is_none(), "the deployment is left");
        Ok(())
    })
    .await?;
    Ok(seconds)
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |seconds: &[f64]| median(seconds.iter().copied());
        let (floor, ready) = (of(&self.floor_seconds), of(&self.ready_seconds));
        writeln!(
            f,
            "{} replicas, medians of {} rounds\n",
            self.replicas,
            self.ready_seconds.len()
        )?;
        writeln!(f, "{:<34}{floor:.3} s", "the runtime alone")?;
        writeln!(f, "{:<34}{ready:.3} s", "Deployment to the last Ready")?;
        writeln!(f, "{:<34}{:.2}", "ratio", ready / floor)
    }
}
