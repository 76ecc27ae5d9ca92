//! Connections: limited in number, with limits of sizes and timeouts.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::future::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use longshore_base::connections::{
    Connection, ConnectionLimiter, Counted, FIRST_REQUEST_TIMEOUT, Limits, MAX_ERROR_STREAMS,
    MAX_RESET_STREAMS, MAX_STREAMS, RECEIVE_WINDOW,
};
use longshore_base::panics;
use longshore_streams as streams;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::debug;

use super::audit::Audit;
use super::body::Tracked;
use super::limits;
use super::peer::{ActiveRequest, Certified, ConnectionState, Peer, idle_or_closing};
use super::tls::Tls;

/// Maximum size of a request's headers.
const MAX_HEADER_SIZE: usize = 64 * 1024;
/// Timeout of a graceful shutdown of a connection.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// TCP keep-alive interval and number of probes.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBES: u32 = 4;
/// Pause after a failed accept, such as with too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Serves connections, forever; with TLS if `tls` is given.
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
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let (tls, router, audit) = (tls.clone(), router.clone(), Arc::clone(&audit));
        let (handle, closed) = limiter.accept(address.ip());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(socket, address, handle, tls, router, &audit) => {}
                reason = closed => audit.connection_failed(address, &reason.to_string()),
            }
        });
    }
}

async fn connection(
    socket: TcpStream,
    address: SocketAddr,
    handle: Arc<Connection>,
    tls: Option<Arc<Tls>>,
    router: Router,
    audit: &Audit,
) {
    set_socket_options(&socket);
    let (state, state_rx) = watch::channel(ConnectionState::new());
    // upgraded connections outlive this, and still count
    let socket = Counted::new(socket, Arc::clone(&handle));
    let connection = Some(handle);
    let mut peer = Peer { address: Some(address), connection, state, ..Peer::default() };
    let ended = match tls {
        None => http(socket, peer, state_rx, router).await,
        Some(tls) => {
            let acceptor = TlsAcceptor::from(tls.server_config());
            match timeout(FIRST_REQUEST_TIMEOUT, acceptor.accept(socket)).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    peer.certified = Some(Certified::new(tls, chain));
                    http(stream, peer, state_rx, router).await
                }
                Ok(Err(error)) => Err(format!("TLS handshake failed: {error}")),
                Err(_) => Err("TLS handshake timed out".to_owned()),
            }
        }
    };
    if let Err(why) = ended {
        audit.connection_failed(address, &why);
    }
}

/// Disables Nagle's algorithm, and enables TCP keep-alive.
fn set_socket_options(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let seconds = KEEP_ALIVE.as_secs().try_into().unwrap_or(u32::MAX);
    let _ = setsockopt(socket, sockopt::KeepAlive, &true);
    let _ = setsockopt(socket, sockopt::TcpKeepIdle, &seconds);
    let _ = setsockopt(socket, sockopt::TcpKeepInterval, &seconds);
    let _ = setsockopt(socket, sockopt::TcpKeepCount, &KEEP_ALIVE_PROBES);
}

/// Serves one connection to its end; protocol errors are returned.
async fn http<S>(
    stream: S,
    peer: Peer,
    state_rx: watch::Receiver<ConnectionState>,
    router: Router,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&peer));
        let active_requests = ActiveRequest::begin(&peer.state);
        let is_upgrade = streams::is_upgrade(request.headers());
        let unadmitted = peer.connection.as_ref().map(|connection| connection.receive());
        let answer = match unadmitted {
            // the connection is being closed
            Some(None) => Either::Left(ready(limits::too_many().into_response())),
            _ => Either::Right(catch_panics(router.clone().oneshot(request))),
        };
        async move {
            let mut answer = answer.await;
            streams::close_on_refusal(is_upgrade, &mut answer);
            let is_refused = answer.status().is_client_error() || answer.status().is_server_error();
            let refused = unadmitted.filter(|_| is_refused);
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, (active_requests, refused))))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // header timeouts are handled here, from the end of one request to the headers of the next
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(MAX_HEADER_SIZE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_ERROR_STREAMS)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_header_list_size(MAX_HEADER_SIZE as u32)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .keep_alive_timeout(FIRST_REQUEST_TIMEOUT);
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| chain(error.as_ref())),
        () = idle_or_closing(state_rx) => {}
    }
    connection.as_mut().graceful_shutdown();
    // the rest is an incomplete request, or a response that is not read
    let _ = timeout(SHUTDOWN_TIMEOUT, connection).await;
    Ok(())
}

/// Contains a panic to its request. The request's future is boxed and dropped as soon as it has a
/// response, so that the connection needs less memory while the response is sent.
fn catch_panics(
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

#[cfg(test)]
mod tests {
    use super::*;

    // Finding 2: a panic in one request ended the daemon
    #[tokio::test]
    async fn panic_in_a_request_is_contained() {
        let panics = async { if true { panic!("here") } else { Ok(Response::new(Body::empty())) } };
        assert_eq!(catch_panics(panics).await.status(), 500);
        let fine = async { Ok(Response::new(Body::empty())) };
        assert_eq!(catch_panics(fine).await.status(), 200);
    }
}
