//! kube-proxy's own ports: 10256 for health checks, 10249 for metrics.
//! Only these paths are served, and `/debug/pprof/` where `enableProfiling` is set; all else is 404.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use longshore_base::connections;
use longshore_config::ProxyConfig;
use longshore_metrics::CONTENT_TYPE;
use longshore_proxy::config::Mode;
use longshore_proxy::health::{Health, HealthResponse, Time};
use longshore_server::{Zpages, profiles, serve_plain, zpages};
use parking_lot::Mutex;
use serde_json::json;
use tracing::{info, warn};

use super::COMPONENT;
use super::metrics::Metrics;

/// What it is and how it was started, on the port of the metrics.
const ZPAGES: Zpages = Zpages {
    component: COMPONENT,
    paths: &[
        "/configz",
        "/flagz",
        "/healthz",
        "/healthz/ping",
        "/metrics",
        "/metrics/slis",
        "/proxyMode",
    ],
};
/// The pause before a port that is taken is tried again.
const BACKOFF: Duration = Duration::from_secs(5);
const NO_SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

/// A port cannot be opened, and `bindAddressHardFail` is set.
#[derive(Debug, thiserror::Error)]
#[error("{what} at {address}: {source}")]
pub struct Error {
    /// Whose port.
    pub(super) what: Port,
    address: String,
    source: io::Error,
}

/// The ports that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    Health,
    Metrics,
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Health => "healthz server",
            Self::Metrics => "metrics server",
        })
    }
}

/// The health state, shared.
#[derive(Debug, Clone)]
pub(super) struct SharedHealth(Arc<Mutex<Health>>);

impl SharedHealth {
    pub(super) fn new(health: Health) -> Self {
        Self(Arc::new(Mutex::new(health)))
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Health, Time) -> T) -> T {
        f(&mut self.0.lock(), Time::now())
    }
}

/// An answer as axum has it.
pub(super) fn respond(answer: HealthResponse) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut response = (status, answer.body).into_response();
    for (name, value) in answer.headers {
        let value = HeaderValue::from_str(&value);
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// `/healthz` for load balancers, `/livez` for liveness probes.
pub(super) fn health_routes(health: &SharedHealth, metrics: &Metrics) -> Router {
    let route = |endpoint: &'static str, answer: fn(&Health, Time) -> HealthResponse| {
        let (health, metrics) = (health.clone(), metrics.clone());
        get(async move || {
            let answer = health.with(|health, now| answer(health, now));
            metrics.health_request(endpoint, answer.status);
            respond(answer)
        })
    };
    Router::new()
        .route("/healthz", route("healthz", Health::healthz))
        .route("/livez", route("livez", Health::livez))
}

/// Metrics, configuration and other endpoints about the process.
pub(super) fn metrics_routes(config: &ProxyConfig, metrics: &Metrics) -> Router {
    let slis = {
        let slis = metrics.slis.clone();
        get(async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], slis.text()))
    };
    let counted = {
        let metrics = metrics.clone();
        get(async move || {
            metrics.packets.read().await;
            ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.registry.text())
        })
    };
    let text = |text: String| {
        get(async move || {
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), NO_SNIFF], text.clone())
        })
    };
    let settings = json!({"kubeproxy.config.k8s.io": config.settings.to_tree()}).to_string();
    let configz = get(async move || {
        ([(header::CONTENT_TYPE, "application/json"), NO_SNIFF], settings.clone())
    });
    let mode = match config.settings.mode {
        Mode::Userspace => "userspace",
        _ => "iptables",
    };
    let ok = || text("ok".to_owned());
    let debug = if config.settings.enable_profiling { profiles() } else { Router::new() };
    Router::new()
        .route("/metrics", counted)
        .route("/metrics/slis", slis)
        .route("/proxyMode", text(mode.to_owned()))
        .route("/configz", configz)
        .route("/healthz", ok())
        .route("/healthz/ping", ok())
        .route("/livez", ok())
        .merge(zpages(ZPAGES, &config.gates, &config.flags))
        .merge(debug)
}

/// Serves a port until dropped. One that cannot be opened is an error if `hard`, else it is tried
/// again and again. No address: never.
pub(super) async fn serve(what: Port, address: &str, router: Router, hard: bool) -> Error {
    loop {
        let listening = match address.parse::<SocketAddr>() {
            Ok(address) => connections::listen(address),
            // checked when the settings were read: it is empty
            Err(_) => std::future::pending().await,
        };
        match listening {
            Ok(listener) => {
                info!(address, "{what}");
                serve_plain(listener, router.clone()).await;
            }
            Err(source) if hard => return Error { what, address: address.to_owned(), source },
            Err(error) => {
                warn!(address, %error, "{what} cannot listen, retrying");
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}
