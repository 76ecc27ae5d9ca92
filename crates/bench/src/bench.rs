//! The whole run: warm-up, rounds of floor and burst, and on the last burst's pods the rest.
use anyhow::Result;
use serde::Serialize;
use serde_json::Map;

use crate::Args;
use crate::bed::Bed;
use crate::burst::{self, Burst};
use crate::cluster::{Cluster, Machine};
use crate::death::{self, Deaths};
use crate::deletion::{self, Deletion};
use crate::device::Plugin;
use crate::floor::{Floor, Limit};
use crate::idle::{self, Idle};
use crate::pressure::{self, Pressure};
use crate::probes::{self, Probes};
use crate::restart::{self, Restart};

/// How many pods may be in the making at once when the floor is searched.
const LIMITS: [Limit; 4] = [Limit::At(4), Limit::At(8), Limit::At(16), Limit::None];
/// Pods that warm the runtime up: its first ones wait for its programs to come from disk.
const WARM_UP: u16 = 8;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measurements {
    pub(crate) machine: Machine,
    pub(crate) pods: u16,
    pub(crate) rounds: Vec<Round>,
    /// The rest is of the last round.
    pub(crate) idle: Idle,
    pub(crate) restart: Restart,
    pub(crate) deaths: Deaths,
    pub(crate) probes: Probes,
    pub(crate) pressure: Pressure,
}

/// The same pods without a node and with it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Round {
    /// The first round tries every limit, the others take the best one of it.
    pub(crate) floors: Vec<Floor>,
    pub(crate) burst: Burst,
    pub(crate) deletion: Deletion,
}

/// Measures everything; what it started is gone when it returns.
pub(crate) async fn run(args: &Args) -> Result<Measurements> {
    say("network namespace, container runtime, images");
    let mut bed = Bed::start(args.runtime)?;
    let results = measure(&mut bed, args).await?;
    bed.teardown()?;
    Ok(results)
}

async fn measure(bed: &mut Bed, args: &Args) -> Result<Measurements> {
    let floor = bed.floor().await?;
    say("warm-up");
    floor.run(&bed.host, WARM_UP, Limit::None).await?;

    let mut rounds: Vec<Round> = Vec::new();
    loop {
        let round = rounds.len() + 1;
        let best = rounds.first().and_then(Round::floor).map(|floor| vec![floor.limit]);
        let limits = best.unwrap_or(LIMITS.to_vec());
        let mut floors = Vec::new();
        for limit in limits {
            say(&format!("round {round}/{}: floor, {limit}", args.repeat));
            floors.push(floor.run(&bed.host, args.pods, limit).await?);
        }

        say(&format!("round {round}/{}: burst", args.repeat));
        let mut cluster = bed.cluster(Map::new()).await?;
        let names: Vec<String> = (0..args.pods).map(|n| format!("bench-{round}-{n}")).collect();
        let mut plugin = match args.device_plugin {
            true => Some(Plugin::start(&cluster, args.pods).await?),
            false => None,
        };
        let burst = burst::run(&mut cluster, &names, plugin.is_some()).await?;
        let last = round >= usize::from(args.repeat);
        let rest = if last { Some(rest(&mut cluster, args, plugin.as_mut()).await?) } else { None };
        say(&format!("round {round}/{}: deletion", args.repeat));
        let deletion = deletion::run(&mut cluster, &floor, &names).await?;
        rounds.push(Round { floors, burst, deletion });
        let machine = cluster.machine().await?;
        if let Some((idle, restart, deaths)) = rest {
            say(&format!("probes: {} turns, then {} pods, {} s", args.turns, args.pods, args.idle));
            let (turns, pods) = (args.turns.into(), args.pods.into());
            let probes = probes::run(&mut cluster, turns, pods, args.idle).await?;
            cluster.stop()?;
            say(&format!("pressure: {} hogs", args.hogs));
            let pressure = pressure::run(bed, args.hogs.into()).await?;
            let pods = args.pods;
            return Ok(Measurements {
                machine,
                pods,
                rounds,
                idle,
                restart,
                deaths,
                probes,
                pressure,
            });
        }
        cluster.stop()?;
    }
}

async fn rest(
    cluster: &mut Cluster<'_>,
    args: &Args,
    plugin: Option<&mut Plugin>,
) -> Result<(Idle, Restart, Deaths)> {
    say(&format!("idle, {} s", args.idle));
    let idle = idle::run(cluster, args.idle).await?;
    say("SIGKILL of the node daemon, and start");
    let restart = restart::run(cluster).await?;
    if let Some(plugin) = plugin {
        plugin.restart().await?;
    }
    say(&format!("SIGKILL of {} containers", args.kills.min(args.pods)));
    let deaths = death::run(cluster, args.kills.into()).await?;
    Ok((idle, restart, deaths))
}

impl Round {
    /// The round's floor with the quickest removal of all pods.
    pub(crate) fn removal_floor(&self) -> Option<&Floor> {
        self.floors.iter().min_by(|a, b| a.removal_seconds.total_cmp(&b.removal_seconds))
    }

    /// The quickest of the round's floors; there is one.
    pub(crate) fn floor(&self) -> Option<&Floor> {
        self.floors.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// What goes on, for a person; the results alone go to stdout.
fn say(what: &str) {
    eprintln!("bench: {what}");
}
