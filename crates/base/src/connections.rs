//! How many connections a server holds.
//!
//! A connection is unauthorized until its first request has passed authorization. Few of those are
//! kept, and when there are too many the oldest one of the address that has the most is closed: a
//! crowd that only waits keeps nobody out. Authorized connections are shared out by user, as
//! [`Budget`] does it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::SetOnce;

use crate::budget::{Budget, Holder, Priority, Share};

/// How long a peer may take for the TLS handshake, and then for the head of its first request.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Requests at one time on one connection of HTTP/2, as upstream has it.
pub const MAX_STREAMS: u32 = 100;
/// Streams of HTTP/2 that a client has opened and reset before the server looked at them, and streams
/// that the server resets because of what a client sent: beyond these the connection ends
/// (CVE-2023-44487).
pub const MAX_RESET_STREAMS: usize = 20;
/// See [`MAX_RESET_STREAMS`].
pub const MAX_ERROR_STREAMS: usize = 128;
/// Requests of all connections that are not admitted: nobody has looked at them yet, or they are refused
/// and their answers have not been sent. Those that are admitted have limits of their own.
const UNADMITTED: (u64, u64) = (4096, 1024);
/// How many bytes of request bodies a connection of HTTP/2 buffers that nobody has read yet.
pub const RECEIVE_WINDOW: u32 = 256 << 10;

/// Connections that wait to be accepted, as far as the kernel's `net.core.somaxconn` lets them. One that
/// finds no room is tried again by its client after a second.
pub const BACKLOG: u32 = 4096;

/// Listens for connections to this address.
///
/// # Errors
/// The address is in use, or not one of this host, or of a family that the kernel does not have.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many connections a server holds at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Without an authorized request.
    pub unauthorized: usize,
    /// With one, of all users.
    pub authorized: usize,
    /// With one, and of users of [`crate::budget::Priority::System`], beyond those.
    pub reserved: usize,
}

impl Limits {
    /// What a server takes that may have any number of files open.
    pub const DEFAULT: Self = Self { unauthorized: 256, authorized: 4096, reserved: 1024 };

    /// What a server takes that may have this many files open: at most half of them are connections.
    #[must_use]
    pub fn for_open_files(files: u64) -> Self {
        let part = |most: usize, of: u64| {
            usize::try_from(files.checked_div(of).unwrap_or(0)).unwrap_or(most).clamp(8, most)
        };
        Self {
            unauthorized: part(Self::DEFAULT.unauthorized, 16),
            authorized: part(Self::DEFAULT.authorized, 4),
            reserved: part(Self::DEFAULT.reserved, 8),
        }
    }
}

/// Why a server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// It was unauthorized, and a newer connection takes its place.
    #[error("too many unauthorized connections")]
    Evicted,
    /// Its peer sends requests faster than they are looked at, or does not read the answers.
    #[error("too many requests of the peer that are not admitted")]
    UnadmittedRequests,
}

/// The connections of a server.
#[derive(Debug)]
pub struct ConnectionLimiter {
    unauthorized: Mutex<Unauthorized>,
    most_unauthorized: usize,
    authorized: Arc<Budget>,
    unadmitted: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Unauthorized {
    /// By their number, which grows: the first is the oldest.
    connections: BTreeMap<u64, (IpAddr, Arc<SetOnce<CloseReason>>)>,
    next: u64,
}

impl Unauthorized {
    /// Closes the oldest connection of the address that has the most.
    fn evict(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in self.connections.values() {
            *counts.entry(*address).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let oldest = self
            .connections
            .iter()
            .find(|(_, (address, _))| counts.get(address).copied() == most)
            .map(|(number, _)| *number);
        if let Some((_, close)) = oldest.and_then(|number| self.connections.remove(&number)) {
            // the first reason counts
            let _ = close.set(CloseReason::Evicted);
        }
    }
}

impl ConnectionLimiter {
    /// A limiter with no connections yet.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            unauthorized: Mutex::default(),
            most_unauthorized: limits.unauthorized,
            authorized: Budget::new(limits.authorized as u64, limits.reserved as u64),
            unadmitted: Budget::new(UNADMITTED.0, UNADMITTED.1),
        })
    }

    /// Takes a new connection from this address. The future ends when the connection is to be closed,
    /// and the server closes it then, whatever is under way on it.
    pub fn accept(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> (Arc<Connection>, impl Future<Output = CloseReason> + Send + use<>) {
        let close = Arc::new(SetOnce::new());
        let mut unauthorized = self.unauthorized();
        let number = unauthorized.next;
        unauthorized.next = number.wrapping_add(1);
        let peer = network(address);
        unauthorized.connections.insert(number, (peer, Arc::clone(&close)));
        if unauthorized.connections.len() > self.most_unauthorized {
            unauthorized.evict();
        }
        drop(unauthorized);
        let connection = Arc::new(Connection {
            limiter: Arc::clone(self),
            number,
            peer: Holder::new(&peer.to_string(), Priority::Ordinary),
            share: OnceLock::new(),
            close: Arc::clone(&close),
            requests: AtomicU64::new(0),
        });
        let closed = async move { *close.wait().await };
        (connection, closed)
    }

    fn unauthorized(&self) -> MutexGuard<'_, Unauthorized> {
        self.unauthorized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts as one peer: an IPv4 address, or a /64 of IPv6, which one machine has all of.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

/// One connection; it counts until it is dropped.
#[derive(Debug)]
pub struct Connection {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    /// The address that it comes from.
    peer: Holder,
    /// Held from the first authorized request on.
    share: OnceLock<Share>,
    close: Arc<SetOnce<CloseReason>>,
    requests: AtomicU64,
}

/// A request that is not admitted.
#[derive(Debug)]
pub struct Unadmitted(#[expect(dead_code, reason = "held until it is dropped")] Option<Share>);

impl Connection {
    /// Notes that a request of this user passed authorization; later ones change nothing. `false`:
    /// there are too many authorized connections, of this user or of all.
    #[must_use]
    pub fn authorize(&self, user: &Holder) -> bool {
        if self.share.get().is_some() {
            return true;
        }
        let Some(share) = self.limiter.authorized.take(user, 1) else {
            return false;
        };
        // when two requests come at once, the share of one of them is given back
        let _ = self.share.set(share);
        self.limiter.unauthorized().connections.remove(&self.number);
        true
    }

    /// The address that it comes from, as a holder of budgets.
    #[must_use]
    pub fn peer(&self) -> &Holder {
        &self.peer
    }

    /// Who its requests are counted for: the user, once it is authorized, and before that the address.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        self.share.get().map_or(&self.peer, Share::holder)
    }

    /// A request has come: to be held until it is admitted, or until the answer that refuses it is sent.
    /// `None`: its peer has too many of these, and the connection is closed.
    #[must_use]
    pub fn receive(&self) -> Option<Unadmitted> {
        // The first is bounded by the number of connections: so a crowd cannot keep out others that
        // come from its address.
        if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            return Some(Unadmitted(None));
        }
        let share = self.limiter.unadmitted.take(self.holder(), 1);
        if share.is_none() {
            // the first reason counts
            let _ = self.close.set(CloseReason::UnadmittedRequests);
        }
        share.map(|share| Unadmitted(Some(share)))
    }

    /// How many requests have come.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a request passed authorization.
    #[must_use]
    pub fn is_authorized(&self) -> bool {
        self.share.get().is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.share.get().is_none() {
            self.limiter.unauthorized().connections.remove(&self.number);
        }
    }
}

/// A stream that keeps its connection counted for as long as it exists, also after an upgrade has
/// taken it out of the server's hands.
#[derive(Debug)]
pub struct Counted<S> {
    stream: S,
    _connection: Arc<Connection>,
}

impl<S> Counted<S> {
    /// The stream of this connection.
    pub fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, _connection: connection }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;
    use crate::budget::Priority;

    type Closed = Pin<Box<dyn Future<Output = CloseReason> + Send>>;

    fn accept(limiter: &Arc<ConnectionLimiter>, address: &str) -> (Arc<Connection>, Closed) {
        let (connection, closed) = limiter.accept(address.parse().unwrap());
        (connection, Box::pin(closed))
    }

    fn is_over(closed: &mut Closed) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(closed).poll(&mut context).is_ready()
    }

    fn user(name: &str) -> Holder {
        Holder::new(name, Priority::Ordinary)
    }

    // Finding 8
    #[test]
    fn the_oldest_unauthorized_connection_is_closed_for_a_new_one() {
        let limiter =
            ConnectionLimiter::new(Limits { unauthorized: 2, authorized: 2, reserved: 0 });
        let (first, mut first_evicted) = accept(&limiter, "10.0.0.1");
        let (second, mut second_evicted) = accept(&limiter, "10.0.0.1");
        assert!(first.authorize(&user("a")) && first.authorize(&user("a")));
        assert!(!second.authorize(&user("a")), "half of two is one");
        assert!(first.is_authorized() && !second.is_authorized());
        let (_third, mut third_evicted) = accept(&limiter, "10.0.0.1");
        assert!(!is_over(&mut second_evicted));
        let (fourth, _evicted) = accept(&limiter, "10.0.0.1");
        assert!(is_over(&mut second_evicted));
        assert!(!is_over(&mut first_evicted), "an authorized connection stays");
        drop(fourth);
        let (_fifth, _evicted) = accept(&limiter, "10.0.0.1");
        assert!(!is_over(&mut third_evicted), "there was a free place");
        drop((first, second));
        let (sixth, _evicted) = accept(&limiter, "10.0.0.1");
        assert!(sixth.authorize(&user("a")), "the place of an authorized one is free again");
        assert!(is_over(&mut third_evicted), "the sixth came in its place");
        assert_eq!(limiter.unauthorized().connections.len(), 1);
    }

    // Finding 8
    #[test]
    fn a_crowd_from_one_address_only_closes_its_own_connections() {
        let limiter =
            ConnectionLimiter::new(Limits { unauthorized: 4, authorized: 8, reserved: 0 });
        let (_honest, mut honest_evicted) = accept(&limiter, "10.0.0.2");
        for address in ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"] {
            let crowd: Vec<_> = (0..100).map(|_| accept(&limiter, address)).collect();
            assert!(!is_over(&mut honest_evicted), "{address}");
            drop(crowd);
        }
        let mut next = 0u32..;
        let crowd: Vec<_> =
            next.by_ref().take(100).map(|i| accept(&limiter, &format!("fd00::{i:x}"))).collect();
        assert!(!is_over(&mut honest_evicted), "a /64 is one peer");
        drop(crowd);
    }

    // Finding 8
    #[test]
    fn requests_that_are_not_admitted_are_few() {
        let limiter = ConnectionLimiter::new(Limits::DEFAULT);
        let (crowd, mut crowd_closed) = accept(&limiter, "10.0.0.1");
        let held: Vec<_> = std::iter::from_fn(|| crowd.receive()).collect();
        assert_eq!(held.len(), 1 + 2048, "half of all, and the first");
        assert!(is_over(&mut crowd_closed));
        let (other, mut other_closed) = accept(&limiter, "10.0.0.2");
        assert!(other.receive().is_some() && other.receive().is_some());
        assert!(!is_over(&mut other_closed));
        let (neighbor, mut neighbor_closed) = accept(&limiter, "10.0.0.1");
        assert!(neighbor.receive().is_some(), "the first of a connection is always looked at");
        assert!(neighbor.authorize(&user("a")) && neighbor.receive().is_some());
        assert!(!is_over(&mut neighbor_closed), "it is counted by its user then");
        drop(held);
        let (next, mut next_closed) = accept(&limiter, "10.0.0.1");
        assert!((0..1000).all(|_| next.receive().is_some()), "those that are sent count no more");
        assert!(!is_over(&mut next_closed));
    }

    #[test]
    fn users_of_the_system_have_connections_of_their_own() {
        let limiter =
            ConnectionLimiter::new(Limits { unauthorized: 64, authorized: 8, reserved: 4 });
        let mut held = Vec::new();
        for i in 0..40 {
            let (connection, _) = accept(&limiter, "10.0.0.1");
            if connection.authorize(&user(&i.to_string())) {
                held.push(connection);
            }
        }
        assert_eq!(held.len(), 8);
        let (node, _) = accept(&limiter, "10.0.0.1");
        assert!(node.authorize(&Holder::new("system:node:n1", Priority::System)));
    }

    #[test]
    fn limits_follow_the_open_files() {
        assert_eq!(Limits::for_open_files(1 << 20), Limits::DEFAULT);
        assert_eq!(Limits::for_open_files(u64::MAX), Limits::DEFAULT);
        for files in [0, 64, 256, 1024, 4096, 10_000] {
            let Limits { unauthorized, authorized, reserved } = Limits::for_open_files(files);
            assert!(unauthorized + authorized + reserved <= (files as usize / 2).max(24));
        }
    }
}
