//! `make bench-api`: an apiserver under load; ours on its embedded store, ours on etcd where there is one,
//! and kube-apiserver on the same etcd where its folder is given.
//!
//! All have the same command line and the same clients, and their data in memory (etcd also without
//! fsync). Phases for each: start, creates and gets by several clients, lists, watchers, what a CEL
//! policy costs, memory when the store is full, and a restart to which all watchers come back.
//!
//! Current limitations: the clients share the machine with what is measured, so rates are lower than the
//! server's own limit; CPU time is free of that.
mod load;
mod report;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use longshore_testkit::{Apiserver, Host};
use serde::Serialize;

use self::server::{Programs, Server};
use crate::statistics::{Spread, median};

const CLIENTS: usize = 8;
const LISTS: usize = 20;
/// Creates by one client, each with and without a policy.
const WRITES: usize = 2000;
const LEASES: usize = 1000;
/// How long a server is left alone before its memory is looked at.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two changes that are watched.
const PACE: Duration = Duration::from_millis(20);
/// The config map that changes.
const CHANGING: &str = "changing";

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) maps: usize,
    pub(crate) pods: usize,
    pub(crate) watchers: usize,
    pub(crate) changes: usize,
    /// A folder with upstream's kube-apiserver and etcd.
    pub(crate) peers: Option<PathBuf>,
}

/// The results of all servers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    maps: usize,
    pods: usize,
    watchers: usize,
    changes: usize,
    servers: Vec<ServerResults>,
}

#[derive(Debug, Clone, Serialize)]
struct ServerResults {
    programs: String,
    measurements: Measurements,
}

/// The results of one server.
#[derive(Debug, Clone, Serialize)]
struct Measurements {
    start_ms: f64,
    empty: Resident,
    creates: Rate,
    gets: Rate,
    /// Of all config maps.
    list_ms: Spread,
    events: Events,
    policy: Policy,
    /// With all pods and the leases of a thousand nodes.
    full: Resident,
    reconnections: Reconnections,
}

/// In MiB.
#[derive(Debug, Clone, Copy, Serialize)]
struct Resident {
    apiserver: f64,
    /// Of the apiserver at most, since it started.
    peak: f64,
    etcd: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Rate {
    per_second: f64,
    /// CPU time of apiserver and etcd for each request.
    cpu_ms: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Events {
    /// From the request that changes to the event at each watcher.
    latency_ms: Spread,
    cpu_seconds: f64,
}

/// CPU time of a create by one client, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Policy {
    without_us: f64,
    with_us: f64,
}

/// A restart of a full server whose watchers come back.
#[derive(Debug, Clone, Copy, Serialize)]
struct Reconnections {
    ready_ms: f64,
    memory: Resident,
    /// From the first watcher's return until each had an event of a change after it.
    all_ms: f64,
    cpu_seconds: f64,
    /// Watches that the server could not go on with.
    refused: f64,
}

/// Measures on a host of its own.
pub(crate) async fn run(settings: &Settings) -> Result<Results> {
    let host = Host::bare()?;
    let keys = keys(&host)?;
    let etcd = etcd(settings.peers.as_deref());
    let mut all = vec![Programs::Embedded];
    all.extend(etcd.clone().map(Programs::OnEtcd));
    if let Some(folder) = &settings.peers {
        let etcd = etcd.context("kube-apiserver needs an etcd, in its folder or in PATH")?;
        all.push(Programs::Upstream { apiserver: folder.join("kube-apiserver"), etcd });
    }
    let mut servers = Vec::new();
    for programs in all {
        let measurements = measure(&host, settings, &programs, &keys).await?;
        servers.push(ServerResults { programs: programs.to_string(), measurements });
    }
    host.teardown()?;
    let Settings { maps, pods, watchers, changes, .. } = *settings;
    Ok(Results { maps, pods, watchers, changes, servers })
}

/// A folder with a pair of keys, which our apiserver makes when it has none.
fn keys(host: &Host) -> Result<PathBuf> {
    let mut apiserver = Apiserver::start_alone(host, &[])?;
    let folder = apiserver.client_ca().parent().map(Path::to_owned).unwrap_or_default();
    apiserver.daemon().terminate(Duration::from_secs(10))?;
    let keys = host.dir().join("keys");
    fs::create_dir(&keys)?;
    for name in ["sa.key", "sa.pub"] {
        fs::copy(folder.join(name), keys.join(name)).with_context(|| name.to_owned())?;
    }
    Ok(keys)
}

/// The etcd of a folder, or else of the machine.
fn etcd(folder: Option<&Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folder.map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("etcd")).find(|program| program.is_file())
}

async fn measure(
    host: &Host,
    settings: &Settings,
    programs: &Programs,
    keys: &Path,
) -> Result<Measurements> {
    let say = |what: &str| eprintln!("bench: {programs}: {what}");
    say("start");
    let (mut server, start) = Server::start(host, programs, keys).await?;
    let clients = (0..CLIENTS).map(|_| server.client()).collect::<Result<Vec<_>>>()?;
    let client = &clients[0];
    tokio::time::sleep(SETTLE).await;
    let empty = resident(&mut server)?;
    load::create_namespaces(client).await?;

    say("creates, gets, lists");
    let name = |number: usize| format!("map-{number}");
    let creates = rate(&mut server, &clients, settings.maps, |client, number| async move {
        load::create_map(&client, &name(number)).await
    })
    .await?;
    let gets = rate(&mut server, &clients, 2 * settings.maps, |client, number| async move {
        let path = format!("{}/{}", load::MAPS, name(number / 2));
        load::send(&client, "GET", &path, None).await.map(drop)
    })
    .await?;
    let mut lists = Vec::new();
    for _ in 0..LISTS {
        let began = Instant::now();
        load::send(client, "GET", load::MAPS, None).await?;
        lists.push(milliseconds(began.elapsed()));
    }
    let list_ms = Spread::of(lists).context("no lists")?;

    say("watchers");
    load::create_map(client, CHANGING).await?;
    let events = events(&mut server, client, settings).await?;

    say("a policy");
    let without_us = create_cost(&mut server, client, "free").await?;
    load::create_policy(client).await?;
    let with_us = create_cost(&mut server, client, "checked").await?;

    say("a full store, and a restart");
    load::for_each(&clients, LEASES, |client, number| async move {
        load::create_lease(&client, number).await
    })
    .await?;
    load::for_each(&clients, settings.pods, |client, number| async move {
        load::create_pod(&client, number).await
    })
    .await?;
    tokio::time::sleep(SETTLE).await;
    let full = resident(&mut server)?;
    let reconnections = reconnections(&mut server, settings).await?;
    server.stop()?;
    Ok(Measurements {
        start_ms: start * 1000.0,
        empty,
        creates,
        gets,
        list_ms,
        events,
        policy: Policy { without_us, with_us },
        full,
        reconnections,
    })
}

fn resident(server: &mut Server<'_>) -> Result<Resident> {
    let uses = server.uses()?;
    Ok(Resident {
        apiserver: uses.apiserver.memory.rss,
        peak: uses.apiserver.memory.peak,
        etcd: uses.etcd.map_or(0.0, |etcd| etcd.memory.rss),
    })
}

#[allow(clippy::cast_precision_loss, reason = "a number of requests")]
async fn rate<F: Future<Output = Result<()>>>(
    server: &mut Server<'_>,
    clients: &[Client],
    count: usize,
    request: impl Fn(Client, usize) -> F,
) -> Result<Rate> {
    let before = server.uses()?;
    let seconds = load::for_each(clients, count, request).await?;
    let cpu = server.uses()?.cpu_since(&before);
    Ok(Rate { per_second: count as f64 / seconds, cpu_ms: cpu * 1000.0 / count.max(1) as f64 })
}

/// Microseconds of CPU of a create.
#[allow(clippy::cast_precision_loss, reason = "a number of requests")]
async fn create_cost(server: &mut Server<'_>, client: &Client, prefix: &str) -> Result<f64> {
    let mut costs = Vec::new();
    // Several rounds, since other work of the server falls into some of them.
    for round in 0..5 {
        let before = server.uses()?;
        for number in 0..WRITES / 5 {
            load::create_map(client, &format!("{prefix}-{round}-{number}")).await?;
        }
        costs.push(server.uses()?.cpu_since(&before) * 1e6 / (WRITES / 5) as f64);
    }
    Ok(median(costs))
}

async fn events(server: &mut Server<'_>, client: &Client, settings: &Settings) -> Result<Events> {
    let version = load::version(client).await?;
    let watchers = (0..settings.watchers)
        .map(|_| {
            let watch = load::watch(server.client()?, version.clone(), settings.changes);
            Ok(tokio::spawn(watch))
        })
        .collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server.uses()?;
    let mut sent = Vec::new();
    for number in 0..settings.changes {
        sent.push(Instant::now());
        load::change_map(client, CHANGING, number).await?;
        tokio::time::sleep(PACE).await;
    }
    let mut latencies = Vec::new();
    for watcher in watchers {
        let came = watcher.await??;
        if came.len() != sent.len() {
            bail!("a watcher has {} of {} events", came.len(), sent.len());
        }
        let since = |(came, sent): (&Instant, &Instant)| milliseconds(came.duration_since(*sent));
        latencies.extend(came.iter().zip(&sent).map(since));
    }
    let cpu_seconds = server.uses()?.cpu_since(&before);
    Ok(Events { latency_ms: Spread::of(latencies).context("no events")?, cpu_seconds })
}

#[allow(clippy::cast_precision_loss, reason = "a number of watchers")]
async fn reconnections(server: &mut Server<'_>, settings: &Settings) -> Result<Reconnections> {
    let version = load::version(&server.client()?).await?;
    let ready = server.restart().await?;
    let memory = resident(server)?;
    let (began, before) = (Instant::now(), server.uses()?);
    let watchers = (0..settings.watchers)
        .map(|_| Ok(tokio::spawn(load::watch(server.client()?, version.clone(), 1))))
        .collect::<Result<Vec<_>>>()?;
    load::change_map(&server.client()?, CHANGING, usize::MAX).await?;
    let (mut last, mut refused) = (began, 0_usize);
    for watcher in watchers {
        match watcher.await? {
            Ok(came) => last = came.into_iter().fold(last, Instant::max),
            Err(_) => refused += 1,
        }
    }
    Ok(Reconnections {
        ready_ms: ready * 1000.0,
        memory,
        all_ms: milliseconds(last.duration_since(began)),
        cpu_seconds: server.uses()?.cpu_since(&before),
        refused: refused as f64,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
