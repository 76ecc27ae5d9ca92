//! `make bench-cluster`: scheduler and controllers on our apiserver, with nodes that are objects and
//! leases without a daemon behind them; upstream's programs in the same way, where they are given.
//!
//! Three phases for each set of programs, on an apiserver of its own:
//!
//! - bindings: all pods are there when the scheduler starts; bindings are counted by the apiserver;
//! - idle: scheduler and controllers with a hundred pods and their services, for a while;
//! - changes: a pod becomes ready and not ready again and again, with few other services and with many.
//!
//! Current limitations: what the apiserver costs is shown, but it is always ours.
mod fleet;
mod program;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use longshore_testkit::Host;
use serde::Serialize;

use self::fleet::Fleet;
use self::program::{Program, Programs};
use crate::process::{self, Memory, Use};

/// Nodes and pods while nothing happens, and while one pod changes.
const IDLE_NODES: usize = 10;
const IDLE_PODS: usize = 100;
/// How long programs are left alone before they count as idle.
const SETTLE: Duration = Duration::from_secs(10);
/// How often bindings are counted.
const COUNT_EVERY: Duration = Duration::from_millis(100);
/// How long no pod may be bound before the run fails.
const STALL: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    /// Seconds of the idle phase.
    pub(crate) idle: u16,
    /// Services beside those that select the pod that changes.
    pub(crate) services: usize,
    /// How often the pod changes.
    pub(crate) changes: usize,
    /// A folder with upstream's kube-scheduler and kube-controller-manager.
    pub(crate) peers: Option<PathBuf>,
}

/// The results of all programs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) services: usize,
    pub(crate) ours: Measurements,
    pub(crate) upstream: Option<Measurements>,
}

/// The results of one set of programs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measurements {
    pub(crate) bindings: Bindings,
    pub(crate) idle: Idle,
    pub(crate) changes: Changes,
}

/// All pods bound.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bindings {
    /// From the first count with a binding to the last.
    pub(crate) seconds: f64,
    pub(crate) per_second: f64,
    pub(crate) scheduler_cpu_seconds: f64,
    pub(crate) apiserver_cpu_seconds: f64,
    /// Of the scheduler, at the end.
    pub(crate) memory: Memory,
    pub(crate) apiserver_memory: Memory,
}

/// Scheduler and controllers while nothing happens.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) seconds: f64,
    /// Of all programs together.
    pub(crate) millicores: f64,
    pub(crate) memory: Memory,
    pub(crate) apiserver_millicores: f64,
}

/// CPU time of scheduler and controllers for one change of a pod, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Changes {
    pub(crate) few_services_ms: f64,
    pub(crate) many_services_ms: f64,
}

/// Measures on hosts of its own.
pub(crate) async fn run(settings: &Settings) -> Result<Results> {
    let ours = measure(settings, &Programs::Ours).await?;
    let upstream = match &settings.peers {
        None => None,
        Some(folder) => Some(measure(settings, &Programs::Upstream(folder.clone())).await?),
    };
    let Settings { nodes, pods, services, .. } = *settings;
    Ok(Results { nodes, pods, services, ours, upstream })
}

async fn measure(settings: &Settings, programs: &Programs) -> Result<Measurements> {
    let (nodes, pods) = (settings.nodes, settings.pods);
    say(&format!("{programs}: {pods} pods on {nodes} nodes"));
    let host = Host::bare()?;
    let mut fleet = Fleet::start(&host, nodes).await?;
    fleet.create_pods(pods).await?;
    let bindings = bindings(&mut fleet, programs, pods).await?;
    fleet.stop()?;
    host.teardown()?;

    say(&format!("{programs}: idle with {IDLE_PODS} pods, {} s", settings.idle));
    let host = Host::bare()?;
    let mut fleet = Fleet::start(&host, IDLE_NODES).await?;
    let mut all = programs.start_all(&host, fleet.apiserver())?;
    fleet.create_pods(IDLE_PODS).await?;
    until_bound(&fleet, IDLE_PODS).await?;
    fleet.create_services(IDLE_NODES).await?;
    let heartbeat = fleet.keep_leases();
    tokio::time::sleep(SETTLE).await;
    let idle = idle(&mut fleet, &mut all, settings.idle).await?;
    say(&format!("{programs}: changes of a pod"));
    let few_services_ms = change(&fleet, &mut all, settings.changes).await?;
    fleet.create_others(settings.services).await?;
    tokio::time::sleep(SETTLE).await;
    let many_services_ms = change(&fleet, &mut all, settings.changes).await?;
    heartbeat.abort();
    for program in all {
        program.stop()?;
    }
    fleet.stop()?;
    host.teardown()?;
    let changes = Changes { few_services_ms, many_services_ms };
    Ok(Measurements { bindings, idle, changes })
}

/// Starts the scheduler, and counts until all pods are bound.
#[allow(clippy::cast_precision_loss, reason = "a number of pods")]
async fn bindings(fleet: &mut Fleet<'_>, programs: &Programs, pods: usize) -> Result<Bindings> {
    let apiserver = fleet.used()?;
    let mut scheduler = programs.start_scheduler(fleet.host(), fleet.apiserver())?;
    let mut first: Option<(Instant, usize)> = None;
    let (mut last, mut count) = (Instant::now(), 0);
    while count < pods {
        tokio::time::sleep(COUNT_EVERY).await;
        let now = fleet.bound().await?;
        if now > count {
            (last, count) = (Instant::now(), now);
            first.get_or_insert((last, now));
        }
        scheduler.check()?;
        if last.elapsed() > STALL {
            bail!("{count} of {pods} pods are bound, and no more\n{}", scheduler.log_tail());
        }
    }
    let (began, before) = first.context("no pod was bound")?;
    // Counts come late by up to one interval, the first as the last.
    let seconds = last.duration_since(began).as_secs_f64().max(COUNT_EVERY.as_secs_f64());
    let (own, after) = (scheduler.used()?, fleet.used()?);
    scheduler.stop()?;
    Ok(Bindings {
        seconds,
        per_second: count.saturating_sub(before).max(1) as f64 / seconds,
        scheduler_cpu_seconds: own.cpu_seconds,
        apiserver_cpu_seconds: after.cpu_seconds - apiserver.cpu_seconds,
        memory: own.memory,
        apiserver_memory: after.memory,
    })
}

async fn until_bound(fleet: &Fleet<'_>, pods: usize) -> Result<()> {
    let began = Instant::now();
    while fleet.bound().await? < pods {
        if began.elapsed() > STALL {
            bail!("not all of {pods} pods are bound");
        }
        tokio::time::sleep(COUNT_EVERY).await;
    }
    Ok(())
}

async fn idle(fleet: &mut Fleet<'_>, all: &mut [Program], seconds: u16) -> Result<Idle> {
    let (began, before, apiserver) = (Instant::now(), total(all)?, fleet.used()?);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let (after, apiserver_after) = (total(all)?, fleet.used()?);
    let seconds = began.elapsed().as_secs_f64();
    let millicores =
        |before: Use, after: Use| (after.cpu_seconds - before.cpu_seconds) * 1000.0 / seconds;
    Ok(Idle {
        seconds,
        millicores: millicores(before, after),
        memory: after.memory,
        apiserver_millicores: millicores(apiserver, apiserver_after),
    })
}

/// Milliseconds of CPU for a change of one pod, beyond what the programs use anyway.
#[allow(clippy::cast_precision_loss, reason = "a number of changes")]
async fn change(fleet: &Fleet<'_>, all: &mut [Program], changes: usize) -> Result<f64> {
    const PACE: Duration = Duration::from_millis(20);
    let idle = PACE.saturating_mul(u32::try_from(changes).unwrap_or(u32::MAX));
    let before = total(all)?.cpu_seconds;
    tokio::time::sleep(idle).await;
    let between = total(all)?.cpu_seconds;
    for number in 0..changes {
        fleet.set_ready(0, number % 2 == 0).await?;
        tokio::time::sleep(PACE).await;
    }
    // the last ones are worked off
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = total(all)?.cpu_seconds;
    let cost = (after - between) - (between - before);
    Ok(cost.max(0.0) * 1000.0 / changes.max(1) as f64)
}

/// What programs use together.
fn total(all: &mut [Program]) -> Result<Use> {
    let mut sum = Use { cpu_seconds: 0.0, memory: Memory::default() };
    for program in all {
        program.check()?;
        let own = process::look(program.pid())?;
        sum.cpu_seconds += own.cpu_seconds;
        sum.memory.rss += own.memory.rss;
        sum.memory.pss += own.memory.pss;
        sum.memory.peak += own.memory.peak;
    }
    Ok(sum)
}

/// What goes on, for a person; the results alone go to stdout.
fn say(what: &str) {
    eprintln!("bench: {what}");
}
