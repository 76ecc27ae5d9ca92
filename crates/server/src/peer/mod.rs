//! The other end of a connection, and the state of the connection, which requests change.

mod certified;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::budget::Holder;
use longshore_base::connections::{Connection, FIRST_REQUEST_TIMEOUT};
use longshore_base::time::later;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

pub(crate) use self::certified::Certified;

/// Idle timeout after the first request.
const IDLE: Duration = Duration::from_secs(90);

/// The peer of a connection.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// The client certificate; `None` without TLS.
    pub(crate) certified: Option<Certified>,
    /// The connection in the port's limiter.
    pub(crate) connection: Option<Arc<Connection>>,
    /// The state of the connection.
    pub(crate) state: watch::Sender<ConnectionState>,
}

impl Peer {
    /// Marks the connection as authorized for this user; `false` if there are too many.
    pub(crate) fn authorize(&self, user: &Holder) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.authorize(user))
    }
}

/// The state of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionState {
    /// Number of active requests.
    active_requests: usize,
    /// Since when it is idle.
    since: Instant,
    /// How long it may be idle.
    idle_timeout: Duration,
    /// Whether to close it after the active requests.
    closing: bool,
}

impl ConnectionState {
    pub(crate) fn new() -> Self {
        Self {
            active_requests: 0,
            since: Instant::now(),
            idle_timeout: FIRST_REQUEST_TIMEOUT,
            closing: false,
        }
    }

    /// Closes a connection after its active requests.
    pub(crate) fn close(state: &watch::Sender<Self>) {
        state.send_modify(|state| state.closing = true);
    }
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self::new()
    }
}

/// Completes when the connection has been idle for too long, or is to be closed.
pub(crate) async fn idle_or_closing(mut state_rx: watch::Receiver<ConnectionState>) {
    loop {
        let state = *state_rx.borrow_and_update();
        if state.closing {
            return;
        }
        tokio::select! {
            () = sleep_until(later(state.since, state.idle_timeout)), if state.active_requests == 0 => return,
            changed = state_rx.changed() => if changed.is_err() { pending::<()>().await },
        }
    }
}

/// An active request, until its response is sent or dropped.
pub(crate) struct ActiveRequest(watch::Sender<ConnectionState>);

impl ActiveRequest {
    pub(crate) fn begin(state: &watch::Sender<ConnectionState>) -> Self {
        state.send_modify(|state| state.active_requests += 1);
        Self(state.clone())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.send_modify(|state| {
            state.active_requests -= 1;
            state.since = Instant::now();
            state.idle_timeout = IDLE;
        });
    }
}
