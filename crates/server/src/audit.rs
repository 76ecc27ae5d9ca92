//! The audit log: refused requests, and requests that access a pod or change the daemon.
//!
//! A line has the user, address and path, but no query or headers, which may contain commands and
//! tokens. Refusals are rate limited.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use parking_lot::Mutex;
use tracing::info;

/// Maximum number of refusals that are logged in one [`WINDOW`].
const MAX_LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum length of a logged path or reason.
const MAX_LENGTH: usize = 200;

/// Logs requests, with a rate limit on refusals.
#[derive(Debug)]
pub(super) struct Audit(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Instant,
    logged: u32,
    suppressed: u64,
}

/// The logged properties of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestInfo<'a> {
    pub(super) address: Option<SocketAddr>,
    /// Empty if unknown.
    pub(super) user: &'a str,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
}

impl Default for Audit {
    fn default() -> Self {
        Self(Mutex::new(Window { began: Instant::now(), logged: 0, suppressed: 0 }))
    }
}

impl Audit {
    /// Logs an admitted request that accesses a pod or changes the daemon.
    pub(super) fn admitted(&self, request: &RequestInfo<'_>) {
        let RequestInfo { user, method, .. } = request;
        info!(address = request.from(), user, %method, path = sanitize(request.path), "request");
    }

    /// Logs a refused request.
    pub(super) fn refused(&self, request: &RequestInfo<'_>, status: StatusCode, why: &str) {
        self.limited(|| {
            let RequestInfo { user, method, .. } = request;
            let (path, code) = (sanitize(request.path), status.as_u16());
            let why = sanitize(why);
            info!(address = request.from(), user, %method, path, code, why, "request refused");
        });
    }

    /// Logs a connection that failed before a valid request.
    pub(super) fn connection_failed(&self, address: SocketAddr, why: &str) {
        self.limited(|| info!(%address, why = sanitize(why), "connection ended"));
    }

    fn limited(&self, log: impl FnOnce()) {
        let Some(suppressed) = self.take_line(Instant::now()) else { return };
        if suppressed > 0 {
            info!(count = suppressed, "refused requests and connections were not logged");
        }
        log();
    }

    /// `None` if the limit is reached; otherwise the number of suppressed lines before.
    fn take_line(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock();
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.logged) = (now, 0);
        }
        if window.logged < MAX_LINES {
            window.logged += 1;
            return Some(std::mem::take(&mut window.suppressed));
        }
        window.suppressed = window.suppressed.saturating_add(1);
        None
    }
}

impl RequestInfo<'_> {
    fn from(&self) -> String {
        self.address.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// Truncates and escapes a text.
fn sanitize(text: &str) -> String {
    text.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_log_is_rate_limited() {
        let (audit, now) = (Audit::default(), Instant::now());
        let logged = (0..1000).filter_map(|_| audit.take_line(now)).collect::<Vec<_>>();
        assert_eq!(logged, vec![0; MAX_LINES as usize]);
        assert_eq!(audit.take_line(now + WINDOW), Some(1000 - u64::from(MAX_LINES)));
        assert_eq!(audit.take_line(now + WINDOW), Some(0));
    }

    #[test]
    fn audit_log_escapes_newlines() {
        assert_eq!(sanitize("/a\n\u{1b}[31m"), "/a\\n\\u{1b}[31m");
        assert_eq!(sanitize(&"x".repeat(9999)).len(), MAX_LENGTH);
    }
}
