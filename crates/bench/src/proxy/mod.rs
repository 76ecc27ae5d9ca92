//! `make bench-proxy`: how soon kube-proxy has the kernel follow, and what that costs: for each
//! variant of iptables and each number of services a cold start, a full sync with nothing to do, and
//! one service or endpoint more or less.
//!
//! The moments are the proxy's own (`…_last_timestamp_seconds`), so another kube-proxy can be put in
//! its place; that packets really arrive is checked after each change.
mod render;
mod report;
mod world;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde::Serialize;

pub(crate) use report::table;
use world::{Backend, Cost, World};

use crate::Args;
use crate::process::Memory;

/// Endpoints of each service.
const ENDPOINTS: usize = 5;
/// Longer than the shortest pause between two syncs: each change finds the proxy idle.
const PAUSE: Duration = Duration::from_millis(2500);

/// What one variant did with so many services.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measurements {
    pub(crate) backend: Backend,
    pub(crate) services: usize,
    /// How long all rules took as text, without the kernel.
    pub(crate) render_seconds: f64,
    pub(crate) phases: Vec<Phase>,
}

/// One thing that was done, as often as it was.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// From the request, or the start, until the rules were in place.
    pub(crate) seconds: Vec<f64>,
    /// The proxy's own CPU time.
    pub(crate) cpu_seconds: Vec<f64>,
    /// With that of the programs it ran.
    pub(crate) all_cpu_seconds: Vec<f64>,
    /// How long the xtables lock was held, where there is one.
    pub(crate) lock_seconds: Option<Vec<f64>>,
    /// Of the proxy, at the end.
    pub(crate) memory: Memory,
}

/// Measures everything; what it started is gone when it returns.
pub(crate) async fn run(args: &Args) -> Result<Vec<Measurements>> {
    let mut results = Vec::new();
    for services in &args.services {
        let render_seconds = render::seconds(*services, ENDPOINTS)?;
        for backend in Backend::ALL {
            say(&format!("{services} services, {backend}"));
            let mut world = World::start(backend).await?;
            let phases = measure(&mut world, *services, args.repeat.into()).await;
            let phases = phases.map_err(|error| world.explain(error))?;
            world.stop()?;
            results.push(Measurements { backend, services: *services, render_seconds, phases });
        }
    }
    Ok(results)
}

async fn measure(world: &mut World, services: usize, repeat: usize) -> Result<Vec<Phase>> {
    say("  services and endpoints");
    world.create(services, ENDPOINTS).await?;
    world.create_probe().await?;

    say("  cold start");
    let (begin, cost) = (now(), world.cost_of_none()?);
    world.start_proxy()?;
    let mut cold = Phase::new("cold");
    cold.add(world.synced_after(begin).await? - begin, world.cost_since(&cost)?);
    ensure!(world.probe_answers(1)?, "the probe's service is not served");
    cold.memory = world.memory()?;

    let mut full = Phase::new("full");
    let (mut more, mut less) = (Phase::new("+1 service"), Phase::new("-1 service"));
    let mut endpoint = Phase::new("+1 endpoint");
    let mut floor = Phase::new("a rule alone");
    world.make_floor()?;
    for round in 0..repeat {
        say(&format!("  round {}/{repeat}", round + 1));
        world.step(&mut full, async |world| world.remove_canary()).await?;
        world.step(&mut more, async |world| world.create_extra().await).await?;
        ensure!(world.extra_answers()?, "a new service is not served");
        world.step(&mut less, async |world| world.delete_extra().await).await?;
        ensure!(!world.extra_answers()?, "a service that is gone is served");
        let pods = round % 2 + 2;
        world.step(&mut endpoint, async |world| world.set_probe(pods).await).await?;
        ensure!(world.probe_answers(pods)?, "an endpoint is not served");
        let (begin, cost) = (now(), world.cost()?);
        world.add_to_floor(round)?;
        floor.add(now() - begin, world.cost_since(&cost)?);
        floor.memory = world.memory()?;
    }
    Ok(vec![cold, full, more, less, endpoint, floor])
}

impl Phase {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            seconds: Vec::new(),
            cpu_seconds: Vec::new(),
            all_cpu_seconds: Vec::new(),
            lock_seconds: None,
            memory: Memory::default(),
        }
    }

    fn add(&mut self, seconds: f64, cost: Cost) {
        self.seconds.push(seconds);
        self.cpu_seconds.push(cost.own);
        self.all_cpu_seconds.push(cost.all);
        if let Some(lock) = cost.lock {
            self.lock_seconds.get_or_insert_default().push(lock);
        }
    }
}

impl World {
    /// Does something to an idle proxy, and takes what came of it into `phase`.
    async fn step(
        &mut self,
        phase: &mut Phase,
        act: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        tokio::time::sleep(PAUSE).await;
        let (begin, cost) = (now(), self.cost()?);
        act(self).await?;
        let seconds = self.synced_after(begin).await? - begin;
        // what a sync does after its rules are in place belongs to it
        tokio::time::sleep(PAUSE / 5).await;
        phase.add(seconds, self.cost_since(&cost)?);
        phase.memory = self.memory()?;
        Ok(())
    }
}

/// Seconds since 1970, as metrics have them.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What goes on, for a person; the results alone go to stdout.
fn say(what: &str) {
    eprintln!("bench-proxy: {what}");
}
