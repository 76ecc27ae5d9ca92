//! Lines of the log that tell who was refused, and who reached into a pod or changed the daemon.
//!
//! A line holds who, from where and which path, but neither a query nor a header: commands and
//! tokens are in those. A flood of refusals is told as its beginning and a count.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use tracing::info;

/// Lines about refusals in one [`WINDOW`].
const MOST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
/// How much of a path or a reason is told.
const LONGEST: usize = 200;

/// Tells of requests, and of refusals in bounded number.
#[derive(Debug)]
pub(super) struct Audit(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Instant,
    told: u32,
    untold: u64,
}

/// Who asks for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) address: Option<SocketAddr>,
    /// Empty: not known.
    pub(super) user: &'a str,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
}

impl Default for Audit {
    fn default() -> Self {
        Self(Mutex::new(Window { began: Instant::now(), told: 0, untold: 0 }))
    }
}

impl Audit {
    /// A request was let through that runs something, opens a way into a pod, or changes the daemon.
    pub(super) fn admitted(&self, asked: &Asked<'_>) {
        let Asked { user, method, .. } = asked;
        info!(address = asked.from(), user, %method, path = cut(asked.path), "request");
    }

    /// A request was refused, and why.
    pub(super) fn refused(&self, asked: &Asked<'_>, status: StatusCode, why: &str) {
        self.limited(|| {
            let Asked { user, method, .. } = asked;
            let (path, code) = (cut(asked.path), status.as_u16());
            let why = cut(why);
            info!(address = asked.from(), user, %method, path, code, why, "request refused");
        });
    }

    /// A connection ended before it asked for anything that could be understood.
    pub(super) fn broken(&self, address: SocketAddr, why: &str) {
        self.limited(|| info!(%address, why = cut(why), "connection ended"));
    }

    fn limited(&self, tell: impl FnOnce()) {
        let Some(untold) = self.take_line(Instant::now()) else { return };
        if untold > 0 {
            info!(count = untold, "more refused requests and connections were not told");
        }
        tell();
    }

    /// Whether there may be another line now, and if so, how many before it were left out.
    fn take_line(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.told) = (now, 0);
        }
        if window.told < MOST {
            window.told += 1;
            return Some(std::mem::take(&mut window.untold));
        }
        window.untold = window.untold.saturating_add(1);
        None
    }
}

impl Asked<'_> {
    fn from(&self) -> String {
        self.address.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// The start of a text, on one line whatever is in it.
fn cut(text: &str) -> String {
    text.chars().take(LONGEST).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let (audit, now) = (Audit::default(), Instant::now());
        let told = (0..1000).filter_map(|_| audit.take_line(now)).collect::<Vec<_>>();
        assert_eq!(told, vec![0; MOST as usize]);
        assert_eq!(audit.take_line(now + WINDOW), Some(1000 - u64::from(MOST)));
        assert_eq!(audit.take_line(now + WINDOW), Some(0));
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(cut("/a\n\u{1b}[31m"), "/a\\n\\u{1b}[31m");
        assert_eq!(cut(&"x".repeat(9999)).len(), LONGEST);
    }
}
