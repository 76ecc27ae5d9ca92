//! Limits of the connections of a server.
//!
//! A connection is unauthorized until its first request has passed authorization. When there are too many
//! unauthorized connections, the oldest one of the address with the most is closed, so that idle clients
//! do not lock out others. Authorized connections are shared between users by a [`Budget`].

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::SetOnce;
use tokio::task::coop;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::budget::{Budget, Holder, Priority, Share};
use crate::panics;

/// Timeout of the TLS handshake, and of the head of the first request.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Concurrent streams of an HTTP/2 connection, as upstream.
pub const MAX_STREAMS: u32 = 100;
/// HTTP/2 streams that a client has opened and reset before they were accepted. Beyond these the
/// connection is closed
/// (CVE-2023-44487).
pub const MAX_RESET_STREAMS: usize = 20;
/// See [`MAX_RESET_STREAMS`].
pub const MAX_ERROR_STREAMS: usize = 128;
/// Requests of all connections that are not admitted: not authorized yet, or rejected with a response
/// that is not sent yet. Admitted requests have other limits.
const UNADMITTED: (u64, u64) = (4096, 1024);
/// Receive window of an HTTP/2 connection.
pub const RECEIVE_WINDOW: u32 = 256 << 10;

/// How much a connection reads for one unit of the budget that its task has before others have their
/// turn: a read has one unit, whatever it brings, and a MiB of small frames is work for milliseconds.
const READ_UNIT: usize = 1 << 10;

/// Listen backlog, limited by `net.core.somaxconn`.
pub const BACKLOG: u32 = 4096;

/// Listens for connections to this address.
///
/// # Errors
/// The address is in use, not local, or of an unsupported family.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The pause after a connection that could not be accepted: files are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may take to end once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the connections of a listener until `stop`, each in a task of its own; then until what is
/// under way has ended, for at most ten seconds. Of more connections than `limits`, some are closed.
///
/// `work` serves one connection to its end; why it failed goes to `failed`.
pub async fn serve<T>(
    listener: TcpListener,
    limits: Limits,
    stop: CancellationToken,
    work: impl Fn(TcpStream, SocketAddr, Arc<Connection>) -> T,
    failed: impl Fn(SocketAddr, &str) + Clone + Send + 'static,
) where
    T: Future<Output = Result<(), String>> + Send + 'static,
{
    let limiter = ConnectionLimiter::new(limits);
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let (stream, address) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (connection, closed) = limiter.accept(address.ip());
        let (work, failed) = (work(stream, address, connection), failed.clone());
        let (work, abort) = (panics::contain(work), abort.clone());
        connections.spawn(async move {
            let reason = tokio::select! {
                () = abort.cancelled() => return,
                reason = closed => reason.to_string(),
                ended = work => match ended {
                    Ok(Ok(())) => return,
                    Ok(Err(reason)) => reason,
                    Err(panicked) => panicked.to_string(),
                },
            };
            failed(address, &reason);
        });
    }
    drop(listener);
    connections.close();
    if timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        warn!(connections = connections.len(), "closing connections after the drain timeout");
        abort.cancel();
        connections.wait().await;
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // out of file descriptors, or a connection that was gone before it was accepted
                warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Without an authorized request.
    pub unauthorized: usize,
    /// With an authorized request, of all users.
    pub authorized: usize,
    /// Additional ones for users of [`crate::budget::Priority::System`].
    pub reserved: usize,
}

impl Limits {
    /// Limits of a port whose clients show no credentials: of more than `most` connections, the
    /// oldest one of the address with the most is closed.
    #[must_use]
    pub const fn anonymous(most: usize) -> Self {
        Self { unauthorized: most, authorized: 0, reserved: 0 }
    }

    /// Limits without a limit of open files.
    pub const DEFAULT: Self = Self { unauthorized: 256, authorized: 4096, reserved: 1024 };

    /// Limits for a number of open files: at most half of them are connections.
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
    /// It was unauthorized, and evicted for a newer connection.
    #[error("too many unauthorized connections")]
    Evicted,
    /// Its peer sends requests faster than they are authorized, or does not read responses.
    #[error("too many requests of the peer that are not admitted")]
    UnadmittedRequests,
}

/// The connections of a server.
#[derive(Debug)]
pub struct ConnectionLimiter {
    unauthorized: Mutex<Unauthorized>,
    max_unauthorized: usize,
    authorized: Arc<Budget>,
    unadmitted: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Unauthorized {
    /// By a growing number: the first is the oldest.
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
            // the first reason is kept
            let _ = close.set(CloseReason::Evicted);
        }
    }
}

impl ConnectionLimiter {
    /// Without connections.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            unauthorized: Mutex::default(),
            max_unauthorized: limits.unauthorized,
            authorized: Budget::new(limits.authorized as u64, limits.reserved as u64),
            unadmitted: Budget::new(UNADMITTED.0, UNADMITTED.1),
        })
    }

    /// Accepts a connection from this address. The future resolves when the server has to close the
    /// connection, whatever its state.
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
        if unauthorized.connections.len() > self.max_unauthorized {
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
        self.unauthorized.lock()
    }
}

/// One peer: an IPv4 address, or a /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

/// A connection, counted until it is dropped.
#[derive(Debug)]
pub struct Connection {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    /// The address of the peer.
    peer: Holder,
    /// Held since the first authorized request.
    share: OnceLock<Share>,
    close: Arc<SetOnce<CloseReason>>,
    requests: AtomicU64,
}

/// A request that is not admitted.
#[derive(Debug)]
pub struct Unadmitted(#[expect(dead_code, reason = "held until it is dropped")] Option<Share>);

impl Connection {
    /// Notes that a request of this user was authorized; later calls have no effect. `false`: there are
    /// too many authorized connections, of this user or in total.
    #[must_use]
    pub fn authorize(&self, user: &Holder) -> bool {
        if self.share.get().is_some() {
            return true;
        }
        let Some(share) = self.limiter.authorized.take(user, 1) else {
            return false;
        };
        // of two concurrent requests, the share of one is released
        let _ = self.share.set(share);
        self.limiter.unauthorized().connections.remove(&self.number);
        true
    }

    /// The address of the peer, as a holder of budgets.
    #[must_use]
    pub fn peer(&self) -> &Holder {
        &self.peer
    }

    /// The holder for its requests: the user once it is authorized, and the address before that.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        self.share.get().map_or(&self.peer, Share::holder)
    }

    /// A request was received: hold the result until it is admitted, or until the error response is
    /// sent. `None`: there are too many of its peer, and the connection is closed.
    #[must_use]
    pub fn receive(&self) -> Option<Unadmitted> {
        // The first is bounded by the number of connections, so that others from the same address are
        // not locked out.
        if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            return Some(Unadmitted(None));
        }
        let share = self.limiter.unadmitted.take(self.holder(), 1);
        if share.is_none() {
            // the first reason is kept
            let _ = self.close.set(CloseReason::UnadmittedRequests);
        }
        share.map(|share| Unadmitted(Some(share)))
    }

    /// Number of received requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a request was authorized.
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

/// A stream that keeps its connection counted, also after an upgrade.
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
        let turn = ready!(coop::poll_proceed(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        turn.made_progress();
        let read = buffer.filled().len().saturating_sub(before);
        for _ in 0..read / READ_UNIT {
            match coop::has_budget_remaining() {
                true => ready!(coop::poll_proceed(context)).made_progress(),
                false => break,
            }
        }
        Poll::Ready(Ok(()))
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
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    fn connection_limit_closes_the_oldest_unauthorized() {
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
    #[tokio::test]
    async fn connection_limit_of_a_port_makes_way_for_the_newest() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let echo = |mut stream: TcpStream, _, connection| async move {
            let _connection: Arc<Connection> = connection;
            let (mut reader, mut writer) = stream.split();
            let copied = tokio::io::copy(&mut reader, &mut writer).await;
            copied.map(drop).map_err(|error| error.to_string())
        };
        let stop = CancellationToken::new();
        let (limits, failed) = (Limits::anonymous(8), |_, _: &str| ());
        let server = tokio::spawn(serve(listener, limits, stop.clone(), echo, failed));
        let mut idle = Vec::new();
        for _ in 0..50 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        for stream in &mut idle[..40] {
            assert!(stream.read_u8().await.is_err(), "the oldest are closed");
        }
        stop.cancel();
        client.write_all(b"y").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'y', "what is under way may end");
        drop((client, idle));
        server.await.unwrap();
    }

    /// Always has something to read.
    struct Flood;

    impl AsyncRead for Flood {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let space = buffer.remaining();
            buffer.put_slice(&vec![0; space]);
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn connection_that_is_flooded_lets_others_have_their_turn() {
        let limiter = ConnectionLimiter::new(Limits::anonymous(1));
        let (connection, _closed) = limiter.accept("10.0.0.1".parse().unwrap());
        let mut flood = Counted::new(Flood, connection);
        let read = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&read);
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            loop {
                let length = flood.read(&mut buffer).await.unwrap();
                counter.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        for turn in 1..=10 {
            tokio::task::yield_now().await;
            let total = read.load(Ordering::Relaxed);
            assert!(total > 0 && total <= turn * (256 << 10), "{total} bytes in {turn} turns");
        }
        reader.abort();
    }

    // Finding 8
    #[test]
    fn connection_limit_is_fair_between_addresses() {
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
    fn connection_limit_of_unadmitted_requests() {
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
    fn connection_limit_reserves_system_connections() {
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
    fn connection_limits_follow_open_files() {
        assert_eq!(Limits::for_open_files(1 << 20), Limits::DEFAULT);
        assert_eq!(Limits::for_open_files(u64::MAX), Limits::DEFAULT);
        for files in [0, 64, 256, 1024, 4096, 10_000] {
            let Limits { unauthorized, authorized, reserved } = Limits::for_open_files(files);
            assert!(unauthorized + authorized + reserved <= (files as usize / 2).max(24));
        }
    }
}
