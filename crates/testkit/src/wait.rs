//! Waiting for something to come true, with a deadline and the last reason why it had not.
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const PAUSE: Duration = Duration::from_millis(50);

/// Deadlines are for machines as they are now; `LONGSHORE_SLOWNESS` says how many times slower this
/// one is, such as a virtual one.
fn scaled(timeout: Duration) -> Duration {
    let slowness = std::env::var("LONGSHORE_SLOWNESS").ok().and_then(|text| text.parse().ok());
    timeout.saturating_mul(slowness.unwrap_or(1))
}

/// Asks `probe` every 50 ms until it gives a value; an error means "not yet, because".
///
/// # Errors
/// [`Error::Timeout`] with what the last attempt said. A probe that hangs is cut off as well.
pub async fn wait_until<T, E: std::fmt::Display>(
    timeout: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let timeout = scaled(timeout);
    let deadline = tokio::time::Instant::now() + timeout;
    let mut last = String::new();
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = format!(": {error:#}"),
            Err(_) => last.push_str(" (the last attempt hung)"),
        }
        if tokio::time::Instant::now() + PAUSE >= deadline {
            return Err(Error::Timeout { what: what.into(), after: timeout, last });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// [`wait_until`] for code that blocks (set-up and tear-down, which must work in `Drop`).
///
/// # Errors
/// [`Error::Timeout`] with what the last attempt said; a fatal error at once.
pub(crate) fn poll_until<T>(
    timeout: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let timeout = scaled(timeout);
    let deadline = Instant::now() + timeout;
    loop {
        match probe()? {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= deadline => {
                let last = format!(": {last}");
                return Err(Error::Timeout { what: what.into(), after: timeout, last });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
