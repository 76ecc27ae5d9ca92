//! The ports, served by routers.

use std::sync::Arc;

use axum::Router;
use longshore_serving::tls::Tls;
use longshore_serving::{Options, Routes, serve as serve_connections};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::audit::Audit;

/// Serves connections, forever; with TLS if `tls` is given.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    audit: Arc<Audit>,
) {
    let handler = Routes::new(router)
        .reporting(move |address, reason| audit.connection_failed(address, reason));
    let never = CancellationToken::new();
    serve_connections(listener, tls, Arc::new(handler), Options::DEFAULT, never).await;
}
