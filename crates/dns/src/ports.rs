//! The ports for health (`/health`), readiness (`/ready`) and metrics (`/metrics`), as CoreDNS has
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use longshore_base::connections::Limits;
use longshore_metrics::{CONTENT_TYPE, Registry};
use longshore_serving::{Options, Routes};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Connections of one port at once: one more closes the oldest of the address that has the most.
pub(crate) const MAX_CONNECTIONS: usize = 64;

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

/// Serves a port until dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let handler = Arc::new(Routes::new(router));
    longshore_serving::serve(listener, None, handler, OPTIONS, CancellationToken::new()).await;
}
