//! The other end of a connection, and the state of the connection.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_base::budget::Holder;
use longshore_base::connections::{Connection, ConnectionLimiter, FIRST_REQUEST_TIMEOUT, Limits};
use longshore_base::time::later;
use longshore_tls::{ClientCa, User, Verdict};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::tls::ClientCertificate;

/// How often responses are checked that may be stalled.
const MONITOR_INTERVAL: Duration = Duration::from_secs(30);

/// A response that is being sent, and that may keep more memory than its client deserves.
pub trait Monitored: Send + Sync {
    /// Whether the client does not read it: its connection is closed.
    fn is_stalled(&self) -> bool;
}

/// The other end of a connection.
pub struct Peer {
    /// Its address; `None` without a connection.
    pub address: Option<SocketAddr>,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) is_http2: bool,
    pub(crate) connection: Arc<Connection>,
    /// It is to be closed after the responses in flight.
    pub(crate) close: CancellationToken,
    state: watch::Sender<State>,
    monitored: Mutex<Vec<Weak<dyn Monitored>>>,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug)]
struct State {
    active_requests: usize,
    /// Whether it had a request.
    used: bool,
    /// Since when there is no active request.
    since: Instant,
    /// Whether responses are monitored.
    monitored: bool,
}

impl Default for Peer {
    /// The peer of a request without a connection.
    fn default() -> Self {
        let limiter = ConnectionLimiter::new(Limits::DEFAULT);
        let (connection, _) = limiter.accept(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Self { address: None, ..Self::of(connection, CancellationToken::new()) }
    }
}

impl Peer {
    pub(crate) fn new(
        address: SocketAddr,
        connection: Arc<Connection>,
        close: CancellationToken,
    ) -> Self {
        Self { address: Some(address), ..Self::of(connection, close) }
    }

    fn of(connection: Arc<Connection>, close: CancellationToken) -> Self {
        let state =
            State { active_requests: 0, used: false, since: Instant::now(), monitored: false };
        Self {
            address: None,
            certificate: None,
            is_http2: false,
            connection,
            close,
            state: watch::Sender::new(state),
            monitored: Mutex::default(),
        }
    }

    /// The user of its certificate, if there is one.
    ///
    /// # Errors
    /// Why the certificate is not trusted now.
    pub fn user(&self) -> Result<Option<User>, String> {
        self.certificate.as_ref().map_or(Ok(None), ClientCertificate::user)
    }

    /// How long its certificate is valid from now on, if it has a user.
    #[must_use]
    pub fn certificate_remaining(&self) -> Option<Duration> {
        self.certificate.as_ref().and_then(ClientCertificate::remaining)
    }

    /// The verdict of another CA than that of clients on its certificate.
    #[must_use]
    pub fn verify(&self, authority: &ClientCa) -> Verdict {
        self.certificate
            .as_ref()
            .map_or(Verdict::Nothing, |certificate| certificate.verify(authority))
    }

    /// A request of this user is authorized, and so is the connection. `false`: there are too many.
    #[must_use]
    pub fn authorize(&self, user: &Holder) -> bool {
        self.connection.authorize(user)
    }

    /// The holder of its requests before they are authenticated.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        self.connection.holder()
    }

    /// Its address, as a holder of budgets.
    #[must_use]
    pub fn address_holder(&self) -> &Holder {
        self.connection.peer()
    }

    /// Whether the connection has HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// Closes the connection after its active requests.
    pub fn close(&self) {
        self.close.cancel();
    }

    /// Watches a response until it is dropped.
    pub fn monitor(&self, response: Weak<dyn Monitored>) {
        self.monitored.lock().push(response);
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.monitored, true));
    }

    /// A request is active until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.state.send_modify(|state| {
            state.active_requests = state.active_requests.saturating_add(1);
            state.used = true;
        });
        ActiveRequest(Arc::clone(self))
    }

    /// Completes when the connection has been idle for too long, or is to be closed.
    pub(crate) async fn idle_or_closing(&self, options: &Options) {
        let end = |state: State| {
            let timeout = match state.used {
                false => FIRST_REQUEST_TIMEOUT,
                true if self.connection.is_authorized() => options.idle_timeout,
                true => options.unauthorized_idle_timeout,
            };
            later(state.since, timeout)
        };
        tokio::select! {
            () = self.idle_until(end) => {}
            () = self.close.cancelled() => {}
        }
    }

    /// Completes when the connection has had no active request for this long.
    pub(crate) async fn unused_for(&self, time: Duration) {
        // the time begins now, whatever was before
        let now = Instant::now();
        self.idle_until(|state| later(state.since.max(now), time)).await;
    }

    async fn idle_until(&self, end: impl Fn(State) -> Instant) {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            tokio::select! {
                () = sleep_until(end(state)), if state.active_requests == 0 => return,
                changed = changes.changed() => if changed.is_err() { pending::<()>().await },
            }
        }
    }

    /// Completes when a response that is monitored is stalled.
    pub(crate) async fn stalled(&self) {
        let mut changes = self.state.subscribe();
        loop {
            if changes.wait_for(|state| state.monitored).await.is_err() {
                pending::<()>().await;
            }
            sleep(MONITOR_INTERVAL).await;
            let mut monitored = self.monitored.lock();
            monitored.retain(|response| response.strong_count() > 0);
            if monitored.iter().filter_map(Weak::upgrade).any(|response| response.is_stalled()) {
                return;
            }
            if monitored.is_empty() {
                self.state.send_modify(|state| state.monitored = false);
            }
        }
    }
}

/// An active request, until its response is sent or dropped.
pub(crate) struct ActiveRequest(Arc<Peer>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| {
            state.active_requests = state.active_requests.saturating_sub(1);
            state.since = Instant::now();
        });
    }
}
