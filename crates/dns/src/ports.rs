//! The ports for health (`/health`), readiness (`/ready`) and metrics (`/metrics`), as CoreDNS has
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use longshore_base::connections;
use longshore_metrics::{CONTENT_TYPE, Registry};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Connections of one port at once: one more closes the oldest of the address that has the most.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// How long a connection may last: those who scrape come back.
const LIFETIME: Duration = Duration::from_secs(60);
/// How long a request may take to come.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Serves a port until dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let service = TowerToHyperService::new(router);
    let serve = |stream, _| {
        let service = service.clone();
        async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // an error is the client's
            let _ = timeout(LIFETIME, connection).await;
        }
    };
    connections::serve(listener, MAX_CONNECTIONS, serve).await;
}
