//! How many connections a server holds.
//!
//! A connection is unauthorized until its first request has passed authorization. Few of those are
//! kept, and when there are too many the oldest one of the address that has the most is closed: a
//! crowd that only waits keeps nobody out. Authorized connections are shared out by user, as
//! [`Budget`] does it.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::budget::{Budget, Holder, Priority, Share};

/// How long a peer may take for the TLS handshake, and then for the head of its first request.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Streams of HTTP/2 that a client has opened and reset before the server looked at them, and streams
/// that the server resets because of what a client sent: beyond these the connection ends
/// (CVE-2023-44487).
pub const MAX_RESET_STREAMS: usize = 20;
/// See [`MAX_RESET_STREAMS`].
pub const MAX_ERROR_STREAMS: usize = 128;
/// Refused requests of all connections whose answers have not been sent yet. Requests that are let in
/// have limits of their own; without this one, a client that reads no answers could have any number of
/// requests held.
const REFUSALS: u64 = 1024;
/// How many bytes of request bodies a connection of HTTP/2 buffers that nobody has read yet.
pub const RECEIVE_WINDOW: u32 = 256 << 10;

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

/// The connections of a server.
#[derive(Debug)]
pub struct ConnectionLimiter {
    unauthorized: Mutex<Unauthorized>,
    most_unauthorized: usize,
    authorized: Arc<Budget>,
    refusals: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Unauthorized {
    /// By their number, which grows: the first is the oldest.
    connections: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    next: u64,
}

impl Unauthorized {
    /// Takes out the oldest connection of the address that has the most.
    fn evict(&mut self) -> Option<oneshot::Sender<()>> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in self.connections.values() {
            *counts.entry(*address).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let oldest = self.connections.iter().find(|(_, (address, _))| counts[address] == most);
        let oldest = oldest.map(|(number, _)| *number)?;
        self.connections.remove(&oldest).map(|(_, close)| close)
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
            refusals: Budget::new(REFUSALS, 0),
        })
    }

    /// Takes a new connection from this address. The future ends when the connection has to be
    /// closed in favor of a newer one, and never once it is authorized.
    pub fn accept(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> (Arc<Connection>, impl Future<Output = ()> + Send + use<>) {
        let (close, closed) = oneshot::channel();
        let mut unauthorized = self.unauthorized();
        let number = unauthorized.next;
        unauthorized.next = number.wrapping_add(1);
        let peer = network(address);
        unauthorized.connections.insert(number, (peer, close));
        if unauthorized.connections.len() > self.most_unauthorized
            && let Some(oldest) = unauthorized.evict()
        {
            // one that is gone by itself needs no closing
            let _ = oldest.send(());
        }
        drop(unauthorized);
        let connection = Arc::new(Connection {
            limiter: Arc::clone(self),
            number,
            peer: Holder::new(&peer.to_string(), Priority::Ordinary),
            share: OnceLock::new(),
        });
        let evicted = async move {
            if closed.await.is_err() {
                // it was authorized
                pending::<()>().await;
            }
        };
        (connection, evicted)
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
}

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

    /// A request is refused: to be held until the answer is sent. `None`: the peer has left too many
    /// such answers unread, and its connection is to be closed.
    #[must_use]
    pub fn refuse(&self) -> Option<Share> {
        self.limiter.refusals.take(&self.peer, 1)
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

    type Evicted = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn accept(limiter: &Arc<ConnectionLimiter>, address: &str) -> (Arc<Connection>, Evicted) {
        let (connection, evicted) = limiter.accept(address.parse().unwrap());
        (connection, Box::pin(evicted))
    }

    fn is_over(evicted: &mut Evicted) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(evicted).poll(&mut context).is_ready()
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
    fn answers_that_nobody_reads_are_few() {
        let limiter = ConnectionLimiter::new(Limits::DEFAULT);
        let connections: Vec<_> = (0..20).map(|_| accept(&limiter, "10.0.0.1")).collect();
        let refuse = |connection: &Arc<Connection>| connection.refuse();
        let held: Vec<_> = connections.iter().cycle().map_while(|one| refuse(&one.0)).collect();
        assert_eq!(held.len(), 512, "half of all");
        let (other, _) = accept(&limiter, "10.0.0.2");
        assert!(other.refuse().is_some());
        drop(held);
        assert!(connections[0].0.refuse().is_some(), "those that were sent count no more");
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
