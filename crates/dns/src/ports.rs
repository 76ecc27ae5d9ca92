//! The ports for health (`/health`), readiness (`/ready`) and metrics (`/metrics`), as CoreDNS has
//! them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use longshore_base::connections::Limits;
use longshore_metrics::{CONTENT_TYPE, Registry};
use longshore_serving::{Options, Routes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::metrics::HealthMetrics;

/// Connections of one port at once: one more closes the oldest of the address that has the most.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// How often this process asks for its own health, and how long that may take, as CoreDNS.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);
/// The start of the answer.
const HEALTHY: &[u8; 12] = b"HTTP/1.1 200";

/// Few connections: those who scrape come back.
const OPTIONS: Options = Options {
    limits: Limits { unauthorized: MAX_CONNECTIONS, authorized: 0, reserved: 0 },
    idle_timeout: Duration::from_secs(60),
    unauthorized_idle_timeout: Duration::from_secs(60),
    ..Options::DEFAULT
};

/// Whether the server can answer for the cluster. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ready(Arc<AtomicBool>);

impl Ready {
    pub(crate) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The process is alive.
pub(crate) fn health() -> Router {
    Router::new().route("/health", get(async || "OK"))
}

/// The server is ready; those that it waits for are named else.
pub(crate) fn ready(ready: Ready) -> Router {
    let answer = async move || match ready.is_set() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "kubernetes"),
    };
    Router::new().route("/ready", get(answer))
}

/// The metrics.
pub(crate) fn metrics(registry: Registry) -> Router {
    let page = async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], registry.text());
    Router::new().route("/metrics", get(page))
}

/// Asks for the health at that address once a second, as others do, and counts how that goes.
pub(crate) async fn watch_health(address: SocketAddr, metrics: HealthMetrics) {
    let mut tick = interval(HEALTH_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let began = Instant::now();
        let asked = timeout(HEALTH_TIMEOUT, ask_health(address)).await;
        metrics.duration.took(began.elapsed());
        if !matches!(asked, Ok(Ok(true))) {
            metrics.failures.inc();
            warn!(%address, ?asked, "the health of this process cannot be asked for");
        }
    }
}

/// Whether the answer is that all is well.
async fn ask_health(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n").await?;
    let mut status = [0; HEALTHY.len()];
    stream.read_exact(&mut status).await?;
    Ok(status == *HEALTHY)
}

/// Where a port that listens there can be reached from this process.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Serves a port until dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let handler = Arc::new(Routes::new(router));
    longshore_serving::serve(listener, None, handler, OPTIONS, CancellationToken::new()).await;
}
