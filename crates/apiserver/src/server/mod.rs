//! Connections: accepted, limited, put through TLS, served with HTTP/1.1 or HTTP/2, and drained at
//! the end. What a request means is for `routes` to say.

mod body;
mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use longshore_base::budget::Holder;
use longshore_base::connections::{
    Connection, ConnectionLimiter, Counted, FIRST_REQUEST_TIMEOUT, Limits, MAX_ERROR_STREAMS,
    MAX_RESET_STREAMS, MAX_STREAMS, RECEIVE_WINDOW,
};
use longshore_base::time::after;
use longshore_streams as streams;
use longshore_tls::Verdict;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use body::LargeAnswers;
pub(crate) use body::{Body, BoxError, Memory, RequestGuard};
pub(crate) use tls::{Tls, load, provider};
pub use tls::{TlsSettings, TlsVersion};

use crate::routes::Router;

/// Longer than the 90 s after which clients give up an idle connection themselves, so that none of
/// them sends a request into a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const IDLE_CHECK: Duration = Duration::from_secs(30);
/// The interval of keepalive probes of a silent peer.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The interval of repeated probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How much of an answer one stream buffers.
const STREAM_SEND_BUFFER: usize = 64 << 10;
/// How much encrypted text waits for a client that reads slowly.
const SEND_BUFFER: usize = 16 << 10;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The most headers of a request of HTTP/1; in HTTP/2 their size bounds their number.
const MAX_HEADERS: usize = 100;
/// How long requests may take to end after a stop signal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The other end of a connection.
pub(crate) struct Peer {
    /// The result of the verification of its certificate.
    pub(crate) verdict: Verdict,
    /// The same of its certificate as a front proxy's.
    pub(crate) front_proxy: Verdict,
    connection: Arc<Connection>,
    is_http2: bool,
    /// It is to be closed after the responses in flight.
    close: CancellationToken,
    large_answers: LargeAnswers,
}

impl Peer {
    /// A request of this user is authorized, and so is the connection. `false`: there are too many.
    pub(crate) fn authorize(&self, user: &Holder) -> bool {
        let authorized = self.connection.authorize(user);
        if !authorized {
            self.close.cancel();
        }
        authorized
    }

    /// The holder of its requests before they are authenticated.
    pub(crate) fn holder(&self) -> &Holder {
        self.connection.holder()
    }

    /// A request without credentials: its HTTP/2 connection is closed after it, as upstream does since
    /// CVE-2023-44487.
    pub(crate) fn unauthenticated(&self) {
        if self.is_http2 {
            self.close.cancel();
        }
    }
}

/// Serves until `stop`, and then until what is under way has ended.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<Tls>,
    router: Arc<Router>,
    limits: Limits,
    stop: CancellationToken,
) {
    let limiter = ConnectionLimiter::new(limits);
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let (stream, address) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (tls, router, stop, abort) = (tls.clone(), router.clone(), stop.clone(), abort.clone());
        let (tracked, closed) = limiter.accept(address.ip());
        connections.spawn(async move {
            tokio::select! {
                () = abort.cancelled() => {}
                reason = closed => tracing::debug!(%address, %reason, "closed"),
                () = connection(stream, tracked, tls, router, stop) => {}
            }
        });
    }
    drop(listener);
    connections.close();
    if timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "closing connections after the drain timeout"
        );
        abort.cancel();
        connections.wait().await;
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Out of file descriptors, or a connection that was gone before we took it.
                tracing::warn!(%error, "accept");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    tracked: Arc<Connection>,
    tls: Arc<Tls>,
    router: Arc<Router>,
    stop: CancellationToken,
) {
    let keep_alive =
        socket2::TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_INTERVAL);
    let socket = socket2::SockRef::from(&stream);
    if let Err(error) =
        socket.set_tcp_keepalive(&keep_alive).and_then(|()| stream.set_nodelay(true))
    {
        tracing::debug!(%error, "socket options");
    }
    let stream = Counted::new(stream, tracked.clone());
    let handshake = TlsAcceptor::from(tls.config.clone()).accept(stream);
    let mut stream = match timeout(FIRST_REQUEST_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let (verdict, front_proxy, is_http2) = {
        let (_, session) = stream.get_mut();
        session.set_buffer_limit(Some(SEND_BUFFER));
        let chain = session.peer_certificates();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        (tls.verify(chain), tls.verify_front_proxy(chain), is_http2)
    };
    let is_front_proxy = matches!(front_proxy, Verdict::User { .. });
    if let (Verdict::Untrusted(reason), false) = (&verdict, is_front_proxy) {
        tracing::info!(%reason, "untrusted client certificate");
    }
    let peer = Arc::new(Peer {
        verdict,
        front_proxy,
        connection: tracked,
        is_http2,
        close: stop.child_token(),
        large_answers: LargeAnswers::default(),
    });
    // Every request in flight, and every response that is still being sent, holds a clone.
    let activity = Arc::new(());
    let service = service_fn(|request| {
        let (router, peer, activity) = (router.clone(), peer.clone(), activity.clone());
        let is_upgrade = streams::is_upgrade(request.headers());
        // Before it has a task: many requests of a connection may be read before the first is handled.
        let unadmitted = peer.connection.receive();
        async move {
            let mut response = router.handle(&peer, request, unadmitted).await;
            streams::close_on_refusal(is_upgrade, &mut response);
            peer.large_answers.add(response.body());
            Ok::<_, Infallible>(response.map(|body| body.holding(activity)))
        }
    });
    let builder = builder(is_http2);
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut check = pin!(sleep_until(after(FIRST_REQUEST_TIMEOUT)));
    let mut idle = Idle::new();
    let mut is_closing = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection");
                }
                return;
            }
            () = peer.close.cancelled(), if !is_closing => {
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
            () = check.as_mut() => {
                if peer.large_answers.are_stalled() {
                    return tracing::info!("closing a connection whose client does not read its response");
                }
                let is_authorized = peer.connection.is_authorized();
                let requests = peer.connection.requests();
                let idle = idle.time(requests, Arc::strong_count(&activity) > 1);
                let (most, period) = match is_authorized {
                    true => (IDLE_TIMEOUT, IDLE_CHECK),
                    false => (FIRST_REQUEST_TIMEOUT, FIRST_REQUEST_TIMEOUT),
                };
                if idle >= most {
                    if is_closing {
                        // It ignored the graceful shutdown.
                        return;
                    }
                    peer.close.cancel();
                }
                check.as_mut().reset(after(period));
            }
        }
    }
}

/// For how long a connection has had no request, seen from one check to the next.
struct Idle {
    since: Instant,
    requests: u64,
}

impl Idle {
    fn new() -> Idle {
        Idle { since: Instant::now(), requests: 0 }
    }

    /// `requests`: all there were so far. `is_in_use`: one of them is under way.
    fn time(&mut self, requests: u64, is_in_use: bool) -> Duration {
        if is_in_use || requests != self.requests {
            *self = Idle { since: Instant::now(), requests };
        }
        self.since.elapsed()
    }
}

fn builder(is_http2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // The time for a header counts from the end of the last answer: it is the idle time-out too.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_ERROR_STREAMS)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_send_buf_size(STREAM_SEND_BUFFER);
    if is_http2 { builder.http2_only() } else { builder.http1_only() }
}
