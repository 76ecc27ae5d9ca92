//! How soon a machine is a cluster: from `longshore up` to the node Ready, on a host of its own each time, whose
//! container runtime runs.
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use longshore_testkit::{Machine, wait_until};
use serde::Serialize;

use crate::statistics::Spread;

const TIMEOUT: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(60);
/// What `up` prints once the node is Ready, after its services have started.
const READY: &str = "is Ready";

/// How long each round took.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) seconds: Vec<f64>,
}

/// Measures so many rounds.
pub(crate) async fn run(rounds: u16) -> Result<Results> {
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let machine = Machine::start()?;
        seconds.push(until_ready(&machine).await?);
        machine.host.teardown()?;
    }
    Ok(Results { seconds })
}

async fn until_ready(machine: &Machine) -> Result<f64> {
    let start = Instant::now();
    let mut up = machine.host.spawn("up", machine.starting(&["up"])?)?;
    wait_until(TIMEOUT, "the node to be Ready", async || {
        up.check_running().map_err(|error| error.to_string())?;
        if up.log().contains(READY) { Ok(()) } else { Err(up.log_tail(1)) }
    })
    .await?;
    let seconds = start.elapsed().as_secs_f64();
    let reset = machine.command(&["reset", "--yes"])?.output()?;
    if !reset.status.success() {
        bail!("longshore reset: {}", String::from_utf8_lossy(&reset.stderr));
    }
    up.wait(GRACE)?;
    Ok(seconds)
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(spread) = Spread::of(self.seconds.clone()) else { return Ok(()) };
        let (rounds, Spread { p50, max, .. }) = (self.seconds.len(), spread);
        writeln!(
            f,
            "longshore up until the node is Ready: {p50:.2} s, at most {max:.2} s of {rounds} rounds"
        )
    }
}
