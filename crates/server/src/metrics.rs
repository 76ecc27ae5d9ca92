//! The metrics endpoints, and the metrics of HTTP requests.
//!
//! Paths and methods are mapped to a bounded set of labels. Durations are measured up to the
//! response headers, also of streams.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, UPGRADE};
use axum::http::{HeaderMap, Method};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};

use super::Host;
use super::auth::ReviewMetrics;
use super::compress::compressed;

/// The metrics endpoints of the node.
pub(super) fn routes(host: Arc<dyn Host>) -> Router {
    let router = Router::new()
        .route("/metrics", get(async |State(host): Pages| node_page(&*host).await))
        .route("/metrics/probes", get(async |State(host): Pages| page(&host.metrics().probes)))
        .route("/metrics/slis", get(async |State(host): Pages| page(&host.metrics().slis)))
        .with_state(host);
    compressed(router)
}

type Pages = State<Arc<dyn Host>>;

/// The node's metrics, including those that are collected on demand.
async fn node_page(host: &dyn Host) -> Response {
    let disks = match host.stats_endpoints() {
        Some(endpoints) => endpoints.disk_metrics().await,
        None => String::new(),
    };
    text(host.metrics().node.text() + &disks)
}

fn page(registry: &Registry) -> Response {
    text(registry.text())
}

fn text(page: String) -> Response {
    ([(CONTENT_TYPE, longshore_metrics::CONTENT_TYPE)], page).into_response()
}

/// Metrics of HTTP requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Requests {
    all: Family<Counter, 4>,
    durations: Family<Histogram, 4>,
    inflight: Family<Gauge, 4>,
    websockets: Family<Counter, 1>,
    pub(super) reviews: ReviewMetrics,
}

impl Requests {
    /// Registers them.
    pub fn new(registry: &Registry) -> Self {
        let by = ["method", "path", "server_type", "long_running"];
        Self {
            all: registry.counters(
                "kubelet_http_requests_total",
                "Requests to the node's ports.",
                by,
            ),
            durations: registry.histograms(
                "kubelet_http_requests_duration_seconds",
                "How long it took until the answers to requests began, in seconds.",
                by,
                Buckets::usual(),
            ),
            inflight: registry.gauges(
                "kubelet_http_inflight_requests",
                "Requests whose answers have yet to begin.",
                by,
            ),
            websockets: registry.counters(
                "kubelet_websocket_streaming_requests_total",
                "Requests for streams to containers over WebSocket.",
                ["subresource"],
            ),
            reviews: ReviewMetrics::new(registry),
        }
    }

    /// Adds the metrics to a router: `readwrite` for the control plane's port, else `readonly`.
    pub(super) fn counted(&self, router: Router, server_type: &'static str) -> Router {
        router.layer(from_fn_with_state((self.clone(), server_type), count))
    }
}

async fn count(
    State((requests, server_type)): State<(Requests, &'static str)>,
    request: Request,
    next: Next,
) -> Response {
    let path = path_label(request.uri().path());
    let long_running = if LONG_RUNNING.contains(&path) { "true" } else { "false" };
    let labels = [method_label(request.method()), path, server_type, long_running];
    requests.all.with(labels).inc();
    if let Some(subresource) = websocket(path, request.headers()) {
        requests.websockets.with([subresource]).inc();
    }
    // decremented on drop
    let _inflight = Inflight::new(requests.inflight.with(labels));
    let began = Instant::now();
    let response = next.run(request).await;
    requests.durations.with(labels).took(began.elapsed());
    response
}

/// The subresource of a WebSocket request.
fn websocket(path: &'static str, headers: &HeaderMap) -> Option<&'static str> {
    let subresource = match path {
        "portForward" => "portforward",
        "attach" | "exec" => path,
        _ => return None,
    };
    let upgrade = headers.get(UPGRADE)?.to_str().ok()?;
    upgrade.eq_ignore_ascii_case("websocket").then_some(subresource)
}

struct Inflight(Gauge);

impl Inflight {
    fn new(gauge: Gauge) -> Self {
        gauge.add(1.0);
        Self(gauge)
    }
}

impl Drop for Inflight {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

const LONG_RUNNING: [&str; 4] = ["attach", "debug", "exec", "portForward"];

fn path_label(path: &str) -> &'static str {
    const KNOWN: [&str; 20] = [
        "attach",
        "checkpoint",
        "configz",
        "containerLogs",
        "debug",
        "exec",
        "flagz",
        "healthz",
        "logs",
        "metrics",
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "metrics/slis",
        "pods",
        "portForward",
        "run",
        "runningpods",
        "stats",
        "statusz",
    ];
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let root = parts.next().unwrap_or_default();
    let of_metrics = parts.next().filter(|_| root == "metrics");
    let is_it = |known: &&&str| match of_metrics {
        Some(page) => known.strip_prefix("metrics/") == Some(page),
        None => **known == root,
    };
    KNOWN.iter().find(is_it).copied().unwrap_or("other")
}

fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] =
        ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
    KNOWN.iter().find(|known| method.as_str() == **known).copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn http_metrics_path_labels() {
        for (path, expected) in [
            ("/metrics", "metrics"),
            ("/metrics/", "other"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/cadvisor/x", "metrics/cadvisor"),
            ("/metrics/x", "other"),
            ("/exec/ns/p/c", "exec"),
            ("/containerLogs/ns/p/c", "containerLogs"),
            ("/runningpods/", "runningpods"),
            ("/stats/summary", "stats"),
            ("/", "other"),
            ("", "other"),
            ("/Exec", "other"),
            ("/../pods", "other"),
        ] {
            assert_eq!(path_label(path), expected, "{path}");
        }
    }

    #[test]
    fn http_metrics_websocket_streams() {
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static(value))])
        };
        let found = |path, value| websocket(path_label(path), &headers(value));
        assert_eq!(found("/exec/ns/p/c", "websocket"), Some("exec"));
        assert_eq!(found("/portForward/ns/p", "WebSocket"), Some("portforward"));
        assert_eq!(found("/attach/ns/p/c", "SPDY/3.1"), None);
        assert_eq!(found("/containerLogs/ns/p/c", "websocket"), None);
        assert_eq!(websocket("exec", &HeaderMap::new()), None);
    }

    #[test]
    fn http_metrics_cardinality_is_bounded() {
        for n in 0..10_000 {
            assert_eq!(path_label(&format!("/x{n}/y")), "other");
            assert_eq!(path_label(&format!("/metrics/x{n}")), "other");
            let method = Method::from_bytes(format!("M{n}").as_bytes());
            assert!(method.is_ok_and(|method| method_label(&method) == "other"));
        }
    }
}
