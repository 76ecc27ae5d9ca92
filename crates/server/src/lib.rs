//! The kubelet's HTTP server: 10250 for the control plane (TLS, each request is authorized), the
//! optional read-only port 10255, and the healthz port 10248. The cAdvisor API has its own optional
//! port (`--cadvisor-port`).
//!
//! Responses are built from a [`Host`], the only interface to the rest of the daemon.
//!
//! `router` has the routes, `auth` authentication and authorization, `limits` the limits of concurrent
//! requests, and `audit` the audit log; connections are for `longshore_serving`.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod audit;
mod auth;
mod checkpoint;
mod compress;
mod configz;
mod debug;
mod health;
mod limits;
mod listen;
mod logs;
mod metrics;
mod node_logs;
mod pods;
mod registries;
mod router;
mod stats;
mod streaming;
#[cfg(test)]
mod tests;
mod tls;
mod trace;
mod zpages;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use longshore_base::connections;
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_pod::observed::ObservedPod;
use longshore_serving::tls::Tls;
use tokio::net::TcpListener;
use tracing::info;

use self::audit::Audit;
use self::auth::Auth;
pub use self::auth::NoApiserver;
pub use self::debug::profiles;
pub use self::metrics::Requests;
pub use self::registries::NodeMetrics;
pub use self::stats::{StatsEndpoints, register_provider};
pub use self::tls::TlsError;
pub use self::zpages::{Zpages, zpages};

/// The data that is served, provided by the rest of the daemon.
pub trait Host: Send + Sync + 'static {
    /// All pods of the node, each with its latest status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// The pod of that name with its latest status; for a mirror pod, its static pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// The observed state of the pod with that UID.
    fn observed(&self, uid: &str) -> Option<Arc<ObservedPod>>;

    /// The observed state of all pods.
    fn observed_pods(&self) -> Vec<Arc<ObservedPod>>;

    /// The log file of the container with that runtime ID, if there is one.
    fn log_path(&self, container_id: &str) -> Option<PathBuf>;

    /// Completes when that container of that pod has stopped, and writes no more to its log.
    fn until_ended(&self, uid: &str, container_id: &str) -> BoxFuture<'static, ()>;

    /// The node's metrics.
    fn metrics(&self) -> &NodeMetrics;

    /// Whether the daemon's loops are healthy; the error names the one that is not.
    fn healthy(&self) -> Result<(), String>;

    /// Stats of the machine and its pods; `None` to serve none.
    fn stats_endpoints(&self) -> Option<StatsEndpoints> {
        None
    }
}

/// Why the ports cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Listening failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// An invalid address in the configuration.
    #[error("{0:?} is not an IP address")]
    Address(String),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Webhook authentication or authorization without an apiserver.
    #[error(transparent)]
    Auth(#[from] NoApiserver),
}

/// The open ports.
pub struct Server {
    ports: Vec<Port>,
    audit: Arc<Audit>,
}

struct Port {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
}

impl Server {
    /// Opens the configured ports; `ips` are the node's addresses, for a self-signed certificate.
    /// Requests are served by [`Self::run`].
    pub async fn bind(
        config: &Config,
        ips: &[IpAddr],
        client: Option<&Client>,
        host: Arc<dyn Host>,
        runtime: Runtime,
    ) -> Result<Self, ServerError> {
        let settings = &config.kubelet;
        let (mut ports, audit) = (Vec::new(), Arc::new(Audit::default()));
        if settings.enable_server {
            let reviews = host.metrics().requests.reviews.clone();
            let auth = Arc::new(Auth::new(config, client, Arc::clone(&audit), reviews)?);
            let tls = Arc::new(tls::load(config, ips)?);
            let listener = listen(&settings.address, settings.port)?;
            let tracer = runtime.tracer().clone();
            let router = limits::limited(router::control_plane(config, &host, runtime))
                .layer(from_fn_with_state(auth, auth::authenticate_and_authorize));
            let requests = host.metrics().requests.clone();
            let router = trace::traced(requests.counted(router, "readwrite"), tracer);
            ports.push(Port { listener, tls: Some(tls), router });
            if settings.read_only_port != 0 {
                let listener = listen(&settings.address, settings.read_only_port)?;
                let router =
                    requests.counted(limits::limited(router::read_only(&host)), "readonly");
                ports.push(Port { listener, tls: None, router });
            }
        }
        if let Some(endpoints) = host.stats_endpoints().filter(|_| config.cadvisor_port != 0) {
            let listener = listen(&settings.address, config.cadvisor_port)?;
            let router = limits::limited(stats::cadvisor_routes(endpoints));
            ports.push(Port { listener, tls: None, router });
        }
        if settings.healthz_port != 0 {
            let listener = listen(&settings.healthz_bind_address, settings.healthz_port)?;
            let router = limits::limited(health::routes(host));
            ports.push(Port { listener, tls: None, router });
        }
        Ok(Self { ports, audit })
    }

    /// The addresses of the open ports, in the order: control plane, read-only, cAdvisor, healthz.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().filter_map(|port| port.listener.local_addr().ok()).collect()
    }

    /// Serves requests, forever, if on no port at all; drop it to close the ports.
    pub async fn run(self) {
        if self.ports.is_empty() {
            return std::future::pending().await;
        }
        let ports = self.ports.into_iter().map(|port| {
            listen::serve(port.listener, port.tls, port.router, Arc::clone(&self.audit))
        });
        futures::future::join_all(ports).await;
    }
}

/// Serves a port without TLS and authorization, forever.
pub async fn serve_plain(listener: TcpListener, router: Router) {
    listen::serve(listener, None, limits::limited(router), Arc::default()).await;
}

fn listen(ip: &str, port: i32) -> Result<TcpListener, ServerError> {
    let ip: IpAddr = ip.parse().map_err(|_| ServerError::Address(ip.to_owned()))?;
    let port = u16::try_from(port).unwrap_or_default();
    let address = SocketAddr::new(ip, port);
    let listener =
        connections::listen(address).map_err(|source| ServerError::Listen { address, source })?;
    info!(%address, "listening");
    Ok(listener)
}

/// An error response with a plain text, as upstream's.
struct Refusal(StatusCode, String);

impl Refusal {
    /// The same with a newline, as some of upstream's handlers.
    fn line(status: StatusCode, text: String) -> Self {
        Self(status, text + "\n")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, [("x-content-type-options", "nosniff")], self.1).into_response()
    }
}
