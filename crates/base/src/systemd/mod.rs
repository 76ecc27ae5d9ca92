//! Notifications to systemd: `READY=1` after the start (`Type=notify`), and `WATCHDOG=1` while the program
//! is healthy (`WatchdogSec=`).

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::time;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

/// Shortest supported watchdog interval.
const SHORTEST: Duration = Duration::from_secs(1);
/// Delay before a failed notification is retried.
const PAUSE: Duration = Duration::from_secs(1);

/// Invalid settings of the watchdog.
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

/// Notifies systemd, if configured, that the program is ready.
pub fn notify_ready() {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, "READY=1") {
        warn!(%error, "cannot notify systemd of readiness");
    }
}

/// The systemd watchdog of this process.
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
            // Twice per interval, as systemd recommends.
            Self { socket, period: time::part(limit, 2) }
        }))
    }

    /// Notifies the watchdog while the node is `healthy`. Never ends; drop it to stop.
    pub async fn run(self, healthy: impl Fn() -> Result<(), String>) {
        info!(period = ?self.period, "systemd watchdog enabled");
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(reason) = healthy() {
                error!(reason, "node is not healthy, systemd watchdog not notified");
                continue;
            }
            if send(&self.socket, "WATCHDOG=1").is_err() {
                sleep(PAUSE).await;
                if let Err(error) = send(&self.socket, "WATCHDOG=1") {
                    error!(%error, "cannot notify the systemd watchdog");
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
        // Inherited from a parent process.
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
    // Sending must not block.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}
