//! One connection: TLS, HTTP, and its end.

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use longshore_base::connections::{
    Counted, FIRST_REQUEST_TIMEOUT, MAX_ERROR_STREAMS, MAX_RESET_STREAMS, MAX_STREAMS,
    RECEIVE_WINDOW,
};
use longshore_streams as streams;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use crate::tls::{ClientCertificate, Tls};
use crate::{Guarded, Handler, Options, Peer};

/// The interval of keepalive probes of a silent peer, of TCP and of HTTP/2.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The interval, in seconds, and the number of repeated probes of TCP.
const KEEP_ALIVE_PROBES: (u32, u32) = (10, 9);
/// How much of a response one HTTP/2 stream buffers.
const STREAM_SEND_BUFFER: usize = 64 << 10;
/// How much encrypted text waits for a client that reads slowly.
const SEND_BUFFER: usize = 16 << 10;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The most headers of a request of HTTP/1; in HTTP/2 their size bounds their number.
const MAX_HEADERS: usize = 100;

/// Serves one connection to its end; why it failed is an error.
pub(crate) async fn serve<H: Handler>(
    socket: TcpStream,
    mut peer: Peer,
    tls: Option<Arc<Tls>>,
    handler: Arc<H>,
    options: Options,
) -> Result<(), String> {
    set_socket_options(&socket);
    let local = socket.local_addr().ok().map(|address| address.ip());
    // upgraded connections outlive this, and still count
    let socket = Counted::new(socket, Arc::clone(&peer.connection));
    let Some(tls) = tls else { return http(socket, peer, handler, options, None).await };
    let acceptor = TlsAcceptor::from(tls.server_config(local));
    let mut stream = match timeout(FIRST_REQUEST_TIMEOUT, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("TLS handshake failed: {error}")),
        Err(_) => return Err("TLS handshake timed out".to_owned()),
    };
    let session = stream.get_mut().1;
    session.set_buffer_limit(Some(SEND_BUFFER));
    peer.is_http2 = session.alpn_protocol() == Some(b"h2");
    let certificate = ClientCertificate::new(tls, session.peer_certificates());
    if let Err(reason) = certificate.user() {
        info!(reason, "untrusted client certificate");
    }
    peer.certificate = Some(certificate);
    let is_http2 = peer.is_http2;
    http(stream, peer, handler, options, Some(is_http2)).await
}

/// Disables Nagle's algorithm, and enables TCP keepalive.
fn set_socket_options(socket: &TcpStream) {
    let (interval, probes) = KEEP_ALIVE_PROBES;
    let idle = KEEP_ALIVE.as_secs().try_into().unwrap_or(u32::MAX);
    let set = || {
        setsockopt(socket, sockopt::KeepAlive, &true)?;
        setsockopt(socket, sockopt::TcpKeepIdle, &idle)?;
        setsockopt(socket, sockopt::TcpKeepInterval, &interval)?;
        setsockopt(socket, sockopt::TcpKeepCount, &probes)
    };
    if let Err(error) = socket.set_nodelay(true).and_then(|()| set().map_err(Into::into)) {
        debug!(%error, "socket options");
    }
}

/// `is_http2`: what TLS has negotiated; without TLS the client's first bytes decide.
async fn http<S, H>(
    stream: S,
    peer: Peer,
    handler: Arc<H>,
    options: Options,
    is_http2: Option<bool>,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let peer = Arc::new(peer);
    let service = service_fn(|request: Request<Incoming>| {
        let active = peer.begin();
        let is_upgrade = streams::is_upgrade(request.headers());
        // before it has a task: many requests may be read before the first is handled
        let answer = match peer.connection.receive() {
            None => Either::Left(ready(handler.too_many())),
            Some(unadmitted) => {
                let (handler, peer) = (Arc::clone(&handler), Arc::clone(&peer));
                Either::Right(handler.handle(peer, request, unadmitted))
            }
        };
        async move {
            let mut response = answer.await;
            streams::close_on_refusal(is_upgrade, &mut response);
            Ok::<_, Infallible>(response.map(|body| Guarded::new(body, active)))
        }
    });
    let builder = builder(is_http2);
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| chain(error.as_ref())),
        () = peer.stalled() => return Err(STALLED.to_owned()),
        () = peer.idle_or_closing(&options) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => ended.map_err(|error| chain(error.as_ref())),
        () = peer.stalled() => Err(STALLED.to_owned()),
        () = peer.unused_for(options.close_timeout), if options.completes_requests => Ok(()),
        () = sleep(options.close_timeout), if !options.completes_requests => Ok(()),
    }
}

const STALLED: &str = "its client does not read a response";

fn builder(is_http2: Option<bool>) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // timeouts of headers are those of idle connections: from the end of one request to the headers
    // of the next
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .keep_alive_timeout(FIRST_REQUEST_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_ERROR_STREAMS)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_send_buf_size(STREAM_SEND_BUFFER);
    match is_http2 {
        None => builder,
        Some(true) => builder.http2_only(),
        Some(false) => builder.http1_only(),
    }
}

/// An error with its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
