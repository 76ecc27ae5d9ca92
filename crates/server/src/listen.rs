//! Connections: accepted up to a bound, with limits on what a peer can make us hold or wait for.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::future::Either;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use longshore_base::connections::{
    Connection, ConnectionLimiter, Counted, FIRST_REQUEST_TIMEOUT, Limits, MAX_ERROR_STREAMS,
    MAX_RESET_STREAMS, MAX_STREAMS, RECEIVE_WINDOW,
};
use longshore_base::panics;
use longshore_base::time::later;
use longshore_streams as streams;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::debug;

use super::audit::Audit;
use super::auth::{Certified, Peer};
use super::limits;
use super::tls::Tls;

/// The longest head of a request.
const HEAD: usize = 64 * 1024;
/// How long a connection may be without a request after that.
const IDLE: Duration = Duration::from_secs(90);
/// How long a connection that is to end may take for it.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time without a word a peer is asked whether it is still there, and how often.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBES: u32 = 4;
/// The pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections for ever; with `tls`, encrypted.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    audit: Arc<Audit>,
) {
    let limiter = ConnectionLimiter::new(Limits::DEFAULT);
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("cannot accept: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (tls, router, audit) = (tls.clone(), router.clone(), Arc::clone(&audit));
        let (place, closed) = limiter.accept(address.ip());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(socket, address, place, tls, router, &audit) => {}
                reason = closed => audit.broken(address, &reason.to_string()),
            }
        });
    }
}

async fn connection(
    socket: TcpStream,
    address: SocketAddr,
    place: Arc<Connection>,
    tls: Option<Arc<Tls>>,
    router: Router,
    audit: &Audit,
) {
    tune(&socket);
    let (pace, watched) = watch::channel(Pace::new());
    // an upgrade outlives this, and is still a connection of the port
    let socket = Counted::new(socket, Arc::clone(&place));
    let connection = Some(place);
    let mut peer = Peer { address: Some(address), connection, pace, ..Peer::default() };
    let ended = match tls {
        None => http(socket, peer, watched, router).await,
        Some(tls) => {
            let acceptor = TlsAcceptor::from(tls.server_config());
            match timeout(FIRST_REQUEST_TIMEOUT, acceptor.accept(socket)).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    peer.certified = Some(Certified::new(tls, chain));
                    http(stream, peer, watched, router).await
                }
                Ok(Err(error)) => Err(format!("TLS handshake failed: {error}")),
                Err(_) => Err("TLS handshake took too long".to_owned()),
            }
        }
    };
    if let Err(why) = ended {
        audit.broken(address, &why);
    }
}

/// Answers are whole or streams, and neither gains by waiting for more; a peer that is gone without
/// a word is noticed.
fn tune(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let seconds = KEEP_ALIVE.as_secs().try_into().unwrap_or(u32::MAX);
    let _ = setsockopt(socket, sockopt::KeepAlive, &true);
    let _ = setsockopt(socket, sockopt::TcpKeepIdle, &seconds);
    let _ = setsockopt(socket, sockopt::TcpKeepInterval, &seconds);
    let _ = setsockopt(socket, sockopt::TcpKeepCount, &KEEP_ALIVE_PROBES);
}

/// Serves one connection to its end; the error is of a peer that does not keep to HTTP.
async fn http<S>(
    stream: S,
    peer: Peer,
    watched: watch::Receiver<Pace>,
    router: Router,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&peer));
        let running = Running::begin(&peer.pace);
        let is_upgrade = streams::is_upgrade(request.headers());
        let unadmitted = peer.connection.as_ref().map(|connection| connection.receive());
        let answer = match unadmitted {
            // the connection is being closed
            Some(None) => Either::Left(ready(limits::too_many().into_response())),
            _ => Either::Right(contained(router.clone().oneshot(request))),
        };
        async move {
            let mut answer = answer.await;
            streams::end_refused(is_upgrade, &mut answer);
            let is_refused = answer.status().is_client_error() || answer.status().is_server_error();
            let refused = unadmitted.filter(|_| is_refused);
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, (running, refused))))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // the pace of heads is watched here, from the end of one request to the next one's head
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_ERROR_STREAMS)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_header_list_size(HEAD as u32)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .keep_alive_timeout(FIRST_REQUEST_TIMEOUT);
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| chain(error.as_ref())),
        () = over(watched) => {}
    }
    connection.as_mut().graceful_shutdown();
    // what is still unsaid then is half a head, or an answer that nobody takes
    let _ = timeout(SHUTDOWN_TIMEOUT, connection).await;
    Ok(())
}

/// A panic ends its request, and nothing else. The request is put on the heap, and is gone from there
/// when it has its answer: a connection holds the little that is left until the answer is sent.
fn contained(
    request: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> impl Future<Output = Response<Body>> {
    let request = panics::contain(request);
    async {
        match request.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(never)) => match never {},
            Err(_) => {
                let mut answer = Response::new(Body::from("Internal Server Error"));
                *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                answer
            }
        }
    }
}

/// An error with its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a connection does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Requests that are being answered.
    running: usize,
    /// Since when there is none.
    since: Instant,
    /// How long there may be none.
    patience: Duration,
    /// It is to end as soon as it has its answers.
    unwanted: bool,
}

impl Pace {
    fn new() -> Self {
        Self { running: 0, since: Instant::now(), patience: FIRST_REQUEST_TIMEOUT, unwanted: false }
    }

    /// Has a connection end after what it has asked for so far.
    pub(super) fn turn_away(pace: &watch::Sender<Self>) {
        pace.send_modify(|pace| pace.unwanted = true);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

/// Ends when the connection has been without a request for too long, or is not wanted.
async fn over(mut watched: watch::Receiver<Pace>) {
    loop {
        let pace = *watched.borrow_and_update();
        if pace.unwanted {
            return;
        }
        tokio::select! {
            () = sleep_until(later(pace.since, pace.patience)), if pace.running == 0 => return,
            changed = watched.changed() => if changed.is_err() { pending::<()>().await },
        }
    }
}

/// A request that is being answered, until all of its answer is sent or dropped.
struct Running(watch::Sender<Pace>);

impl Running {
    fn begin(pace: &watch::Sender<Pace>) -> Self {
        pace.send_modify(|pace| pace.running += 1);
        Self(pace.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|pace| {
            pace.running -= 1;
            pace.since = Instant::now();
            pace.patience = IDLE;
        });
    }
}

/// A body that holds something until it is sent or dropped. A panic in it ends it alone.
pub(super) struct Tracked<T> {
    body: Body,
    _held: T,
}

impl<T> Tracked<T> {
    pub(super) fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> HttpBody for Tracked<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        panics::contain_sync(|| Pin::new(&mut self.body).poll_frame(context)).unwrap_or_else(
            |panicked| {
                self.body = Body::empty();
                Poll::Ready(Some(Err(axum::Error::new(panicked))))
            },
        )
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    // Finding 2: a panic in one request ended the daemon
    #[tokio::test]
    async fn a_panic_ends_its_request_alone() {
        let panics = async { if true { panic!("here") } else { Ok(Response::new(Body::empty())) } };
        assert_eq!(contained(panics).await.status(), 500);
        let fine = async { Ok(Response::new(Body::empty())) };
        assert_eq!(contained(fine).await.status(), 200);
    }

    #[tokio::test]
    async fn a_panic_ends_its_answer_alone() {
        let frames = futures::stream::poll_fn(|_| -> Poll<Option<Result<Bytes, axum::Error>>> {
            panic!("here")
        });
        let (pace, _watched) = watch::channel(Pace::new());
        let mut body = Tracked::new(Body::from_stream(frames), Running::begin(&pace));
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
    }
}
