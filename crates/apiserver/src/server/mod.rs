//! Connections: accepted, limited, put through TLS, served with HTTP/1.1 or HTTP/2, and drained at
//! the end. What a request means is for `routes` to say.

mod body;
mod tls;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use longshore_streams as streams;
use longshore_tls::Verdict;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use body::{Body, BoxError};
pub(crate) use tls::{Tls, load, provider};

use crate::routes::Router;

const MAX_CONNECTIONS: usize = 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than the 90 s after which clients give up an idle connection themselves, so that none of
/// them sends a request into a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const IDLE_CHECK: Duration = Duration::from_secs(30);
/// A silent peer is asked for a sign of life this often.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const MAX_STREAMS: u32 = 250;
/// How much encrypted text waits for a client that reads slowly.
const SEND_BUFFER: usize = 16 << 10;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// What is still running this long after a stop signal is cut off.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `stop`, and then until what is under way has ended.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<Tls>,
    router: Arc<Router>,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let (permit, stream) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &permits) => match accepted {
                Some(accepted) => accepted,
                None => break,
            },
        };
        let (tls, router, stop, abort) = (tls.clone(), router.clone(), stop.clone(), abort.clone());
        connections.spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = abort.cancelled() => {}
                () = connection(stream, tls, router, stop) => {}
            }
        });
    }
    drop(listener);
    connections.close();
    if timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "cutting off what does not end");
        abort.cancel();
        connections.wait().await;
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(tokio::sync::OwnedSemaphorePermit, TcpStream)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((permit, stream)),
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
    tls: Arc<Tls>,
    router: Arc<Router>,
    stop: CancellationToken,
) {
    let keep_alive =
        socket2::TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 3);
    let socket = socket2::SockRef::from(&stream);
    if let Err(error) =
        socket.set_tcp_keepalive(&keep_alive).and_then(|()| stream.set_nodelay(true))
    {
        tracing::debug!(%error, "socket options");
    }
    let mut stream = match timeout(
        HANDSHAKE_TIMEOUT,
        TlsAcceptor::from(tls.config.clone()).accept(stream),
    )
    .await
    {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let (peer, is_http2) = {
        let (_, session) = stream.get_mut();
        session.set_buffer_limit(Some(SEND_BUFFER));
        (tls.judge(session.peer_certificates()), session.alpn_protocol() == Some(b"h2"))
    };
    if let Verdict::Untrusted(reason) = &peer {
        tracing::info!(%reason, "a client shows a certificate that is not to be trusted");
    }
    let peer = Arc::new(peer);
    // Every request under way, and every answer that is still being sent, holds a clone.
    let activity = Arc::new(());
    let service = service_fn(|request| {
        let (router, peer, activity) = (router.clone(), peer.clone(), activity.clone());
        let is_upgrade = streams::is_upgrade(request.headers());
        async move {
            let mut response = router.handle(&peer, request).await;
            streams::end_refused(is_upgrade, &mut response);
            Ok::<_, Infallible>(response.map(|body| body.holding(activity)))
        }
    });
    let builder = builder(is_http2);
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut check = interval(IDLE_CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut active = Instant::now();
    let mut is_closing = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection");
                }
                return;
            }
            () = stop.cancelled(), if !is_closing => {
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = check.tick() => {
                if Arc::strong_count(&activity) > 1 {
                    active = Instant::now();
                } else if active.elapsed() > IDLE_TIMEOUT + IDLE_CHECK {
                    // Did not go when asked.
                    return;
                } else if active.elapsed() > IDLE_TIMEOUT && !is_closing {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn builder(is_http2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // The time for a header counts from the end of the last answer: it is the idle time-out too.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_send_buf_size(64 << 10);
    if is_http2 { builder.http2_only() } else { builder.http1_only() }
}
