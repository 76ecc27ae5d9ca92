//! What a whole cluster of one node uses that only keeps its pods: apiserver, controllers with the scheduler, DNS, and
//! the node with its kube-proxy.
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use longshore_testkit::{Daemon, Dns, Host, PAUSE, wait_until};
use serde::Serialize;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::burst::all_ready;
use crate::cluster::Cluster;
use crate::functions::{executed, script};
use crate::pods::Changes;
use crate::process::{Memory, Use, look_at_daemon};

const TIMEOUT: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(10);
/// What a start and new pods have left to do is done by then.
const SETTLED: Duration = Duration::from_secs(60);
const NAME: &str = "bench";

/// What each program uses.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) pods: u16,
    pub(crate) seconds: f64,
    pub(crate) programs: Vec<Program>,
}

/// What a program uses while nothing happens.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) millicores: f64,
    /// In MiB, at the end.
    pub(crate) memory: Memory,
}

/// Measures on a host of its own, for so many seconds.
pub(crate) async fn run(pods: u16, seconds: u16) -> Result<Results> {
    idle(pods, async |daemons| measure(daemons, pods, seconds).await).await
}

/// The linker's script of the functions that the programs execute within so many seconds.
pub(crate) async fn functions(pods: u16, seconds: u16) -> Result<String> {
    let time = Duration::from_secs(seconds.into());
    idle(pods, async |daemons| {
        // Who attaches has to wait, too: each in a thread of its own.
        let traces = daemons.iter().map(|daemon| {
            let pid = daemon.pid();
            spawn_blocking(move || executed(pid, time))
        });
        let traces = try_join_all(traces).await?.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(script(traces.into_iter().flatten()))
    })
    .await
}

/// Does something with the programs of a cluster that has its pods and nothing else to do.
async fn idle<T>(pods: u16, work: impl AsyncFnOnce(&mut [&mut Daemon]) -> Result<T>) -> Result<T> {
    let mut host = Host::start()?;
    let mut cluster = Cluster::start_whole(&mut host).await?;
    let mut controllers = cluster.start_controllers()?;
    let mut dns = Dns::start(cluster.host, &cluster.admin_kubeconfig())?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    wait_until(TIMEOUT, "the service account of pods", async || accounts.get("default").await)
        .await?;
    create(&cluster, pods).await?;
    eprintln!("bench: {pods} pods are ready; {} s until they are watched", SETTLED.as_secs());
    tokio::time::sleep(SETTLED).await;

    let daemons = cluster.daemons().into_iter().chain([controllers.daemon(), dns.daemon()]);
    let done = work(&mut daemons.collect::<Vec<_>>()).await?;
    dns.daemon().terminate(GRACE)?;
    controllers.daemon().terminate(GRACE)?;
    cluster.stop()?;
    host.teardown()?;
    Ok(done)
}

async fn measure(daemons: &mut [&mut Daemon], pods: u16, seconds: u16) -> Result<Results> {
    let mut look = || -> Result<Vec<(String, Use)>> {
        let all = daemons.iter_mut();
        all.map(|daemon| Ok((daemon.name().to_owned(), look_at_daemon(daemon)?))).collect()
    };
    let (start, before) = (Instant::now(), look()?);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let after = look()?;
    let seconds = start.elapsed().as_secs_f64();
    let programs = before.into_iter().zip(after).map(|((name, before), (_, after))| {
        let millicores = (after.cpu_seconds - before.cpu_seconds) * 1000.0 / seconds;
        Program { name, millicores, memory: after.memory }
    });
    Ok(Results { pods, seconds, programs: programs.collect() })
}

/// A deployment behind a service, until its pods are Ready.
async fn create(cluster: &Cluster<'_>, pods: u16) -> Result<()> {
    let labels = json!({"app": NAME});
    let service = json!({
        "metadata": {"name": NAME},
        "spec": {"selector": labels, "ports": [{"port": 80}]},
    });
    let deployment = json!({
        "metadata": {"name": NAME},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": PAUSE}],
                },
            },
        },
    });
    let (_, mut changes) = Changes::open(&cluster.pods(), TIMEOUT).await?;
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    all_ready(&mut changes, pods.into()).await?;
    Ok(())
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "one node, {} pods, idle for {:.0} s\n", self.pods, self.seconds)?;
        writeln!(f, "{:<26}{:>12}{:>12}{:>12}", "", "millicores", "PSS, MiB", "RSS, MiB")?;
        let mut line = |name: &str, millicores: f64, memory: &Memory| {
            let Memory { pss, rss, .. } = memory;
            writeln!(f, "{name:<26}{millicores:>12.1}{pss:>12.1}{rss:>12.1}")
        };
        for Program { name, millicores, memory } in &self.programs {
            line(name, *millicores, memory)?;
        }
        let sum = |of: fn(&Program) -> f64| self.programs.iter().map(of).sum::<f64>();
        let memory = Memory {
            pss: sum(|program| program.memory.pss),
            rss: sum(|program| program.memory.rss),
            peak: sum(|program| program.memory.peak),
        };
        line("all", sum(|program| program.millicores), &memory)
    }
}
