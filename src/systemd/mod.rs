//! What systemd is told of the node it started: that it is up (`Type=notify`), and, as long as its
//! own loops turn, that it is alive (`WatchdogSec=`).

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use longshore_base::time;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

/// A watchdog that wants to hear more often cannot be answered in time.
const SHORTEST: Duration = Duration::from_secs(1);
/// The pause before an answer that could not be sent is sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// The watchdog is set up in a way that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `WATCHDOG_USEC` is no interval.
    #[error("WATCHDOG_USEC: {0:?} is not a positive number of microseconds")]
    Interval(String),
    /// `WATCHDOG_PID` is no process.
    #[error("WATCHDOG_PID: {0:?} is not a process id")]
    Process(String),
    /// `WatchdogSec=` is too short.
    #[error("WatchdogSec of the unit: {0:?} is too short, it must be more than {SHORTEST:?}")]
    TooShort(Duration),
}

/// Tell systemd, if it is listening, that the node is up.
pub fn notify_ready() {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, "READY=1") {
        warn!(%error, "systemd was not told that the node is ready");
    }
}

/// A watchdog of systemd that waits for signs of life.
#[derive(Debug, PartialEq, Eq)]
pub struct Watchdog {
    socket: OsString,
    period: Duration,
}

impl Watchdog {
    /// The watchdog of this process, if its unit has one.
    pub fn from_env() -> Result<Option<Self>, Error> {
        let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let (limit, process) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        let limit = limit_of(limit.as_deref(), process.as_deref(), std::process::id())?;
        Ok(limit.zip(env::var_os("NOTIFY_SOCKET")).map(|(limit, socket)| {
            // Twice within the limit, so that one sign may come late.
            Self { socket, period: time::part(limit, 2) }
        }))
    }

    /// Give signs of life for as long as the node is `healthy`. Never ends; drop it to stop.
    pub async fn answer(self, healthy: impl Fn() -> Result<(), String>) {
        info!(period = ?self.period, "systemd's watchdog is answered");
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(reason) = healthy() {
                error!(reason, "systemd's watchdog gets no answer: the node is not healthy");
                continue;
            }
            if send(&self.socket, "WATCHDOG=1").is_err() {
                sleep(PAUSE).await;
                if let Err(error) = send(&self.socket, "WATCHDOG=1") {
                    error!(%error, "systemd's watchdog cannot be answered");
                }
            }
        }
    }
}

/// How long the watchdog of the process `own` waits, from the variables that systemd sets.
fn limit_of(
    limit: Option<&str>,
    process: Option<&str>,
    own: u32,
) -> Result<Option<Duration>, Error> {
    let Some(text) = limit.filter(|text| !text.is_empty()) else { return Ok(None) };
    let microseconds = text.parse().ok().filter(|number| *number > 0);
    let microseconds = microseconds.ok_or_else(|| Error::Interval(text.to_owned()))?;
    if let Some(text) = process.filter(|text| !text.is_empty()) {
        let process: u32 = text.parse().map_err(|_| Error::Process(text.to_owned()))?;
        // Set for a parent, and handed on.
        if process != own {
            return Ok(None);
        }
    }
    let limit = Duration::from_micros(microseconds);
    if limit > SHORTEST { Ok(Some(limit)) } else { Err(Error::TooShort(limit)) }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A systemd that does not read must not hold up the node.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}
