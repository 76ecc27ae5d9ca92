//! Metrics that all components of Kubernetes have in common.

use std::time::Duration;

use crate::Registry;
use crate::family::Family;
use crate::value::{Buckets, Counter, Gauge, Histogram};

/// The version that a component is compatible with, and what it was built as.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a> {
    /// Of Kubernetes, such as `v1.36.1`.
    pub kubernetes: &'a str,
    /// The commit of the build; may be empty.
    pub commit: &'a str,
    /// Such as `linux/amd64`.
    pub platform: &'a str,
}

/// Registers `kubernetes_build_info`.
pub fn register_version(registry: &Registry, version: Version<'_>) {
    let (major, rest) =
        version.kubernetes.trim_start_matches('v').split_once('.').unwrap_or_default();
    let (minor, _) = rest.split_once('.').unwrap_or((rest, ""));
    let labels = [
        "build_date",
        "compiler",
        "git_commit",
        "git_tree_state",
        "git_version",
        "go_version",
        "major",
        "minor",
        "platform",
    ];
    let help = "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git \
         tree state, build date, Go version, and compiler from which Kubernetes was built, and \
         platform on which it is running.";
    let values =
        ["", "rustc", version.commit, "", version.kubernetes, "", major, minor, version.platform];
    registry.gauges("kubernetes_build_info", help, labels).with(values).set(1.0);
}

/// Metrics of apiserver clients: `rest_client_*`.
#[derive(Debug, Clone)]
pub struct RestClient {
    requests: Family<Counter, 3>,
    duration: Family<Histogram, 2>,
    waited: Family<Histogram, 2>,
    sizes: Option<Sizes>,
}

#[derive(Debug, Clone)]
struct Sizes {
    sent: Family<Histogram, 2>,
    answered: Family<Histogram, 2>,
}

impl RestClient {
    /// Registers the families under CoreDNS's names, without those of sizes.
    pub fn of_coredns(registry: &Registry) -> Self {
        let labels = ["verb", "host"];
        Self {
            requests: registry.counters(
                "coredns_kubernetes_rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                ["code", "method", "host"],
            ),
            duration: registry.histograms(
                "coredns_kubernetes_rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb and host.",
                labels,
                Self::buckets(),
            ),
            waited: registry.histograms(
                "coredns_kubernetes_rest_client_rate_limiter_duration_seconds",
                "Client side rate limiter latency in seconds. Broken down by verb and host.",
                labels,
                Self::buckets(),
            ),
            sizes: None,
        }
    }

    fn buckets() -> Buckets {
        Buckets::of(&[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
    }

    /// Registers the families; all clients of a daemon share them.
    pub fn new(registry: &Registry) -> Self {
        let buckets = Self::buckets();
        let sizes = Buckets::of(&[
            64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
            16777216.0,
        ]);
        Self {
            requests: registry.counters(
                "rest_client_requests_total",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
                ["code", "method", "host"],
            ),
            duration: registry.histograms(
                "rest_client_request_duration_seconds",
                "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
                ["verb", "host"],
                buckets.clone(),
            ),
            waited: registry.histograms(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
                ["verb", "host"],
                buckets,
            ),
            sizes: Some(Sizes {
                sent: registry.histograms(
                    "rest_client_request_size_bytes",
                    "[ALPHA] Request size in bytes. Broken down by verb and host.",
                    ["verb", "host"],
                    sizes.clone(),
                ),
                answered: registry.histograms(
                    "rest_client_response_size_bytes",
                    "[ALPHA] Response size in bytes. Broken down by verb and host.",
                    ["verb", "host"],
                    sizes,
                ),
            }),
        }
    }

    /// A request has finished: method, `host:port`, status code (`None` without a response), and latency.
    pub fn request(&self, method: &str, host: &str, status: Option<u16>, took: Duration) {
        let code = status.map(|status| status.to_string());
        self.requests.with([code.as_deref().unwrap_or("<error>"), method, host]).inc();
        self.duration.with([method, host]).took(took);
    }

    /// A request of that size was sent.
    pub fn sent(&self, method: &str, host: &str, bytes: u64) {
        if let Some(sizes) = &self.sizes {
            sizes.sent.with([method, host]).observe(bytes as f64);
        }
    }

    /// A response of that size was received.
    pub fn answered(&self, method: &str, host: &str, bytes: usize) {
        if let Some(sizes) = &self.sizes {
            sizes.answered.with([method, host]).observe(bytes as f64);
        }
    }

    /// A request was delayed by the rate limiter.
    pub fn waited(&self, method: &str, host: &str, waited: Duration) {
        self.waited.with([method, host]).took(waited);
    }
}

/// The remaining lifetimes of the certificates of clients:
/// `apiserver_client_certificate_expiration_seconds`.
#[derive(Debug, Clone)]
pub struct ClientCertificates(Histogram);

impl ClientCertificates {
    /// Registers the family.
    pub fn new(registry: &Registry) -> Self {
        let buckets = Buckets::of(&[
            0.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 172800.0, 345600.0, 604800.0,
            2592000.0, 7776000.0, 15552000.0, 31104000.0,
        ]);
        Self(registry.histogram(
            "apiserver_client_certificate_expiration_seconds",
            "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a \
             request.",
            buckets,
        ))
    }

    /// A request was authenticated by a certificate that is valid for that long.
    pub fn used(&self, remaining: Option<Duration>) {
        if let Some(remaining) = remaining {
            self.0.took(remaining);
        }
    }
}

/// Results of health checks: the page `/metrics/slis`.
#[derive(Debug, Clone)]
pub struct Healthchecks {
    last: Family<Gauge, 2>,
    all: Family<Counter, 3>,
}

impl Healthchecks {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        Self {
            last: registry.gauges(
                "kubernetes_healthcheck",
                "[STABLE] This metric records the result of a single healthcheck.",
                ["name", "type"],
            ),
            all: registry.counters(
                "kubernetes_healthchecks_total",
                "[STABLE] This metric records the results of all healthcheck.",
                ["name", "type", "status"],
            ),
        }
    }

    /// The check of that name was made for that endpoint (`healthz`, `livez` or `readyz`).
    pub fn checked(&self, name: &str, endpoint: &str, passed: bool) {
        let status = if passed { "success" } else { "error" };
        self.last.with([name, endpoint]).set(if passed { 1.0 } else { 0.0 });
        self.all.with([name, endpoint, status]).inc();
    }
}
