//! The node's ports: 10250 for the control plane (TLS, with leave asked for each request), 10255
//! for reading pods when it is switched on, and 10248 for a local look at the daemon's health.
//!
//! What the answers are made of is asked of a [`Host`]; nothing else of the daemon is known here.
//!
//! Current limitations: of the control plane's port there are logs, commands, port-forwarding, pods,
//! health and the node's own metrics; stats come with their own parts.

mod auth;
mod listen;
mod logs;
mod metrics;
mod streaming;
#[cfg(test)]
mod tests;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use longshore_cri::Runtime;
use longshore_pod::observed::ObservedPod;
use serde::Serialize;
use tokio::net::TcpListener;
use tracing::info;

use self::auth::Auth;
pub use self::auth::NoApiserver;
pub use self::metrics::Requests;
use self::tls::Tls;
pub use self::tls::TlsError;
use crate::config::Config;
use crate::metrics::Metrics;

/// What the ports tell of; the rest of the daemon answers.
pub trait Host: Send + Sync + 'static {
    /// All pods of the node, each with its latest status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// The pod of that name with its latest status; a mirror pod's name stands for its static pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// What runs of the pod with that UID.
    fn observed(&self, uid: &str) -> Option<Arc<ObservedPod>>;

    /// The log file of the container with that id of the runtime's, if there is one.
    fn log_path(&self, container_id: &str) -> Option<PathBuf>;

    /// Done as soon as that container of that pod does not run, and writes no more to its log.
    fn until_ended(&self, uid: &str, container_id: &str) -> BoxFuture<'static, ()>;

    /// What the node tells of itself.
    fn metrics(&self) -> &Metrics;

    /// Whether the daemon's own loops turn; the error says which does not.
    fn healthy(&self) -> Result<(), String>;
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
        let mut ports = Vec::new();
        if settings.enable_server {
            let auth = Arc::new(Auth::new(config, client)?);
            let tls = Arc::new(Tls::new(config, ips)?);
            let listener = listen(&settings.address, settings.port).await?;
            let debugging = match settings.enable_debugging_handlers {
                true => logs::routes(config, Arc::clone(&host)).merge(streaming::routes(
                    config,
                    Arc::clone(&host),
                    runtime,
                )),
                false => disabled(),
            };
            let router = read_only(Arc::clone(&host))
                .merge(debugging)
                .layer(from_fn_with_state(auth, auth::gate));
            let requests = host.metrics().requests.clone();
            let router = requests.counted(router, "readwrite");
            ports.push(Port { listener, tls: Some(tls), router });
            if settings.read_only_port != 0 {
                let listener = listen(&settings.address, settings.read_only_port).await?;
                let router = requests.counted(read_only(Arc::clone(&host)), "readonly");
                ports.push(Port { listener, tls: None, router });
            }
        }
        if settings.healthz_port != 0 {
            let listener = listen(&settings.healthz_bind_address, settings.healthz_port).await?;
            ports.push(Port { listener, tls: None, router: health(host) });
        }
        Ok(Self { ports })
    }

    /// Where it listens, in the order: control plane, read-only, health; those that are open.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().filter_map(|port| port.listener.local_addr().ok()).collect()
    }

    /// Answers requests. Never ends; drop it to close the ports.
    pub async fn run(self) {
        let ports =
            self.ports.into_iter().map(|port| listen::serve(port.listener, port.tls, port.router));
        futures::future::join_all(ports).await;
    }
}

/// Answers requests of a port without encryption or leave to ask for, for ever.
pub(crate) async fn serve_plain(listener: TcpListener, router: Router) {
    listen::serve(listener, None, router).await;
}

async fn listen(ip: &str, port: i32) -> Result<TcpListener, ServerError> {
    let ip: IpAddr = ip.parse().map_err(|_| ServerError::Address(ip.to_owned()))?;
    let port = u16::try_from(port).unwrap_or_default();
    let address = SocketAddr::new(ip, port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Listen { address, source })?;
    info!(%address, "listening");
    Ok(listener)
}

fn health(host: Arc<dyn Host>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/healthz/{check}", get(healthz_one))
        .with_state(host)
}

fn read_only(host: Arc<dyn Host>) -> Router {
    let pods = Router::new().route("/pods", get(pods)).with_state(Arc::clone(&host));
    health(Arc::clone(&host)).merge(pods).merge(metrics::routes(host))
}

/// What stands in for handlers that the settings do not want.
fn disabled() -> Router {
    let refuse = async || {
        Refusal(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.".to_owned())
    };
    let paths = ["run", "exec", "attach", "portForward", "containerLogs"];
    paths.iter().fold(Router::new(), |router, path| {
        router.route(&format!("/{path}/{{*rest}}"), any(refuse))
    })
}

/// An answer that is not what was asked for: a plain text, as upstream's.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, [("x-content-type-options", "nosniff")], self.1).into_response()
    }
}

async fn pods(State(host): State<Arc<dyn Host>>) -> Result<Response, Refusal> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct PodList<'a> {
        kind: &'a str,
        api_version: &'a str,
        metadata: serde_json::Map<String, serde_json::Value>,
        items: Vec<&'a Pod>,
    }
    let pods = host.pods();
    let list = PodList {
        kind: "PodList",
        api_version: "v1",
        metadata: serde_json::Map::new(),
        items: pods.iter().map(Arc::as_ref).collect(),
    };
    let text = serde_json::to_string(&list)
        .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([("content-type", "application/json")], text).into_response())
}

async fn healthz(
    State(host): State<Arc<dyn Host>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    match host.healthy() {
        Ok(()) if verbose => {
            "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n".into_response()
        }
        Ok(()) => "ok".into_response(),
        Err(reason) => {
            tracing::warn!(reason, "not healthy");
            let text = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
            Refusal(StatusCode::INTERNAL_SERVER_ERROR, text.to_owned()).into_response()
        }
    }
}

async fn healthz_one(State(host): State<Arc<dyn Host>>, Path(check): Path<String>) -> Response {
    match check.as_str() {
        "ping" | "log" => "ok".into_response(),
        "syncloop" => match host.healthy() {
            Ok(()) => "ok".into_response(),
            Err(reason) => {
                let text = format!("internal server error: {reason}\n");
                Refusal(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
            }
        },
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
