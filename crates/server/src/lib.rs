//! The node's ports: 10250 for the control plane (TLS, with leave asked for each request), 10255
//! for reading pods when it is switched on, and 10248 for a local look at the daemon's health.
//! cAdvisor's interface has a port of its own (`--cadvisor-port`), if it is wanted.
//!
//! What the answers are made of is asked of a [`Host`]; nothing else of the daemon is known here.
//!
//! `router` says what answers where, `auth` who may ask for it, `limits` how many requests a caller
//! may have under way, `listen` how long connections may last, and `audit` logs who was refused.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod audit;
mod auth;
mod checkpoint;
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
use tokio::net::TcpListener;
use tracing::info;

use self::audit::Audit;
use self::auth::Auth;
pub use self::auth::NoApiserver;
pub use self::metrics::Requests;
pub use self::registries::NodeMetrics;
pub use self::stats::StatsEndpoints;
use self::tls::Tls;
pub use self::tls::TlsError;
pub use self::zpages::Zpages;

/// What the ports tell of; the rest of the daemon answers.
pub trait Host: Send + Sync + 'static {
    /// All pods of the node, each with its latest status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// The pod of that name with its latest status; a mirror pod's name stands for its static pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// What runs of the pod with that UID.
    fn observed(&self, uid: &str) -> Option<Arc<ObservedPod>>;

    /// What runs of all pods.
    fn observed_pods(&self) -> Vec<Arc<ObservedPod>>;

    /// The log file of the container with that id of the runtime's, if there is one.
    fn log_path(&self, container_id: &str) -> Option<PathBuf>;

    /// Done as soon as that container of that pod does not run, and writes no more to its log.
    fn until_ended(&self, uid: &str, container_id: &str) -> BoxFuture<'static, ()>;

    /// What the node tells of itself.
    fn metrics(&self) -> &NodeMetrics;

    /// Whether the daemon's own loops turn; the error says which does not.
    fn healthy(&self) -> Result<(), String>;

    /// What the machine and its pods use; `None` to tell nothing of it.
    fn figures(&self) -> Option<StatsEndpoints> {
        None
    }
}

/// Why the ports cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address is taken, or not this host's.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// An address of the configuration is none.
    #[error("{0:?} is not an IP address")]
    Address(String),
    /// No encryption.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nobody to ask for leave.
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
    /// Opens the ports that `config` asks for; `ips` are the node's own, for a certificate of its
    /// own making. Nothing is answered before it runs.
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
            let told = host.metrics().requests.reviews.clone();
            let auth = Arc::new(Auth::new(config, client, Arc::clone(&audit), told)?);
            let tls = Arc::new(Tls::new(config, ips)?);
            let listener = listen(&settings.address, settings.port)?;
            let router = limits::limited(router::control_plane(config, &host, runtime))
                .layer(from_fn_with_state(auth, auth::gate));
            let requests = host.metrics().requests.clone();
            let router = requests.counted(router, "readwrite");
            ports.push(Port { listener, tls: Some(tls), router });
            if settings.read_only_port != 0 {
                let listener = listen(&settings.address, settings.read_only_port)?;
                let router =
                    requests.counted(limits::limited(router::read_only(&host)), "readonly");
                ports.push(Port { listener, tls: None, router });
            }
        }
        if let Some(figures) = host.figures().filter(|_| config.cadvisor_port != 0) {
            let listener = listen(&settings.address, config.cadvisor_port)?;
            let router = limits::limited(stats::cadvisor_routes(figures));
            ports.push(Port { listener, tls: None, router });
        }
        if settings.healthz_port != 0 {
            let listener = listen(&settings.healthz_bind_address, settings.healthz_port)?;
            let router = limits::limited(health::routes(host));
            ports.push(Port { listener, tls: None, router });
        }
        Ok(Self { ports, audit })
    }

    /// Where it listens, in the order: control plane, read-only, cAdvisor, health; those that are
    /// open.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().filter_map(|port| port.listener.local_addr().ok()).collect()
    }

    /// Answers requests. Never ends; drop it to close the ports.
    pub async fn run(self) {
        let ports = self.ports.into_iter().map(|port| {
            listen::serve(port.listener, port.tls, port.router, Arc::clone(&self.audit))
        });
        futures::future::join_all(ports).await;
    }
}

/// Answers requests of a port without encryption or leave to ask for, for ever.
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

/// An answer that is not what was asked for: a plain text, as upstream's.
struct Refusal(StatusCode, String);

impl Refusal {
    /// A text on a line of its own, as upstream's plainer handlers give it.
    fn line(status: StatusCode, text: String) -> Self {
        Self(status, text + "\n")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, [("x-content-type-options", "nosniff")], self.1).into_response()
    }
}
