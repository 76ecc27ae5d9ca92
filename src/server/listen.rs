//! Connections: accepted up to a bound, with limits on what a peer can make us hold or wait for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::debug;

use super::auth::Peer;
use super::tls::Tls;

/// Connections at one time on one port.
const CONNECTIONS: usize = 256;
/// Requests at one time on one connection.
const STREAMS: u32 = 100;
/// The longest head of a request.
const HEAD: usize = 64 * 1024;
/// How long a peer may take to shake hands, or to send a head.
const PATIENCE: Duration = Duration::from_secs(15);
/// The pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections for ever; with `tls`, encrypted.
pub(super) async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("cannot accept: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            connection(socket, peer, tls, router).await;
            drop(place);
        });
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, tls: Option<Arc<Tls>>, router: Router) {
    // answers are whole or streams: neither gains by waiting for more
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return http(socket, Peer::default(), router).await };
    let acceptor = TlsAcceptor::from(tls.server_config());
    match tokio::time::timeout(PATIENCE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let peer = Peer { certified: tls.identify(chain) };
            http(stream, peer, router).await;
        }
        Ok(Err(error)) => debug!(%peer, "TLS handshake failed: {error}"),
        Err(_) => debug!(%peer, "TLS handshake took too long"),
    }
}

async fn http<S>(stream: S, peer: Peer, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&peer));
        router.clone().oneshot(request)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD as u32)
        .keep_alive_interval(Some(PATIENCE * 2))
        .keep_alive_timeout(PATIENCE);
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
    {
        debug!("connection ended: {error}");
    }
}
