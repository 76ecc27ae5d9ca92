//! The metrics, under the names and labels of CoreDNS where it has them.
//!
//! Series of the way of each question are found by their position and not by their labels, so that
//! no lock is taken.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hickory_server::proto::op::ResponseCode;
use hickory_server::proto::rr::RecordType;
use longshore_base::version::KUBERNETES_VERSION;
use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};

use crate::message::Transport;

/// The zone of the one server block.
const ZONE: &str = ".";
/// Types with a series of their own; the others share one.
const KINDS: [RecordType; 14] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::PTR,
    RecordType::CNAME,
    RecordType::TXT,
    RecordType::SOA,
    RecordType::NS,
    RecordType::MX,
    RecordType::HTTPS,
    RecordType::SVCB,
    RecordType::DS,
    RecordType::DNSKEY,
    RecordType::NAPTR,
];
const OTHER: &str = "other";

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    /// None: it was refused as it stood.
    None,
    Kubernetes,
    Forward,
    Cache,
}

const PLUGINS: [&str; 4] = ["", "kubernetes", "forward", "cache"];

/// How a question was answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) kind: RecordType,
    pub(crate) wants_signatures: bool,
    pub(crate) code: ResponseCode,
    pub(crate) plugin: Plugin,
    /// Sizes of query and response in bytes.
    pub(crate) sizes: (usize, usize),
    pub(crate) took: Duration,
}

/// Series by position, made on first use.
type Slots<M, const N: usize> = [OnceLock<M>; N];

/// All metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    server: String,
    requests: Family<Counter, 6>,
    requests_at: [[Slots<Counter, { KINDS.len() + 1 }>; 2]; 2],
    responses: Family<Counter, 5>,
    responses_at: [Slots<Counter, { PLUGINS.len() }>; 16],
    request_sizes: [Histogram; 2],
    response_sizes: [Histogram; 2],
    signed: Counter,
    duration: Histogram,
    pub(crate) panics: Counter,
    pub(crate) cache: CacheMetrics,
    pub(crate) forward: ForwardMetrics,
    pub(crate) health: HealthMetrics,
    pub(crate) programming: Family<Histogram, 1>,
}

/// Metrics of the cache of other servers' answers.
#[derive(Debug)]
pub(crate) struct CacheMetrics {
    pub(crate) requests: Counter,
    pub(crate) misses: Counter,
    /// Of answers, and of denials.
    pub(crate) hits: [Counter; 2],
    pub(crate) entries: [Gauge; 2],
    pub(crate) evictions: [Counter; 2],
}

/// Metrics of questions to other servers.
#[derive(Debug)]
pub(crate) struct ForwardMetrics {
    pub(crate) requests: Family<Counter, 1>,
    pub(crate) responses: Family<Counter, 2>,
    pub(crate) duration: Family<Histogram, 3>,
    pub(crate) rejected: Counter,
    /// Questions to servers that stayed without an answer.
    pub(crate) failures: Family<Counter, 2>,
    /// Questions while no server was known to answer.
    pub(crate) broken: Counter,
}

/// Metrics of the port for health, as this process itself sees it.
#[derive(Debug, Clone)]
pub(crate) struct HealthMetrics {
    pub(crate) duration: Histogram,
    pub(crate) failures: Counter,
}

impl Metrics {
    /// The metrics of the server of this port.
    pub(crate) fn new(port: u16) -> Arc<Self> {
        let registry = Registry::default();
        let server = format!("dns://:{port}");
        let times = || Buckets::exponential(0.000_25, 2.0, 16);
        let sizes = Buckets::of(&[
            0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3,
            48e3, 64e3,
        ]);
        let by_protocol = ["server", "zone", "view", "proto"];
        let both = |family: &Family<Histogram, 4>| {
            ["udp", "tcp"].map(|protocol| family.with([&server, ZONE, "", protocol]))
        };
        let request_sizes = both(&registry.histograms(
            "coredns_dns_request_size_bytes",
            "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
            by_protocol,
            sizes.clone(),
        ));
        let response_sizes = both(&registry.histograms(
            "coredns_dns_response_size_bytes",
            "Size of the returned response in bytes.",
            by_protocol,
            sizes,
        ));
        let signed = registry.counters(
            "coredns_dns_do_requests_total",
            "Counter of DNS requests with DO bit set per zone.",
            ["server", "zone", "view"],
        );
        let duration = registry.histograms(
            "coredns_dns_request_duration_seconds",
            "Histogram of the time (in seconds) each request took per zone.",
            ["server", "zone", "view"],
            times(),
        );
        let enabled = registry.gauges(
            "coredns_plugin_enabled",
            "A metric that indicates whether a plugin is enabled on per server and zone basis.",
            ["server", "zone", "view", "name"],
        );
        for name in
            ["cache", "errors", "forward", "kubernetes", "loadbalance", "loop", "prometheus"]
        {
            enabled.with([&server, ZONE, "", name]).set(1.0);
        }
        let build = registry.gauges(
            "coredns_build_info",
            "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
            ["version", "revision", "goversion"],
        );
        build.with([KUBERNETES_VERSION, "", ""]).set(1.0);
        let zones = ["server", "zones", "view"];
        let counter = |name, help| registry.counters(name, help, zones).with([&server, ZONE, ""]);
        let typed = ["server", "type", "zones", "view"];
        let counters = |name, help| {
            let family = registry.counters(name, help, typed);
            ["success", "denial"].map(|kind| family.with([&server, kind, ZONE, ""]))
        };
        let entries =
            registry.gauges("coredns_cache_entries", "The number of elements in the cache.", typed);
        let cache = CacheMetrics {
            requests: counter("coredns_cache_requests_total", "The count of cache requests."),
            misses: counter(
                "coredns_cache_misses_total",
                "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.",
            ),
            hits: counters("coredns_cache_hits_total", "The count of cache hits."),
            entries: ["success", "denial"].map(|kind| entries.with([&server, kind, ZONE, ""])),
            evictions: counters("coredns_cache_evictions_total", "The count of cache evictions."),
        };
        let forward = ForwardMetrics {
            requests: registry.counters(
                "coredns_forward_requests_total",
                "Counter of requests made per upstream.",
                ["to"],
            ),
            responses: registry.counters(
                "coredns_forward_responses_total",
                "Counter of responses received per upstream.",
                ["to", "rcode"],
            ),
            duration: registry.histograms(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                ["proxy_name", "to", "rcode"],
                times(),
            ),
            rejected: registry.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
            ),
            failures: registry.counters(
                "coredns_proxy_healthcheck_failures_total",
                "Counter of the number of failed healthchecks.",
                ["proxy_name", "to"],
            ),
            broken: registry.counter(
                "coredns_forward_healthcheck_broken_total",
                "Counter of the number of complete failures of the healthchecks.",
            ),
        };
        let health = HealthMetrics {
            duration: registry.histogram(
                "coredns_health_request_duration_seconds",
                "Histogram of the time (in seconds) each request took.",
                Buckets::exponential(0.000_25, 10.0, 5),
            ),
            failures: registry.counter(
                "coredns_health_request_failures_total",
                "The number of times the health check failed.",
            ),
        };
        Arc::new(Self {
            requests: registry.counters(
                "coredns_dns_requests_total",
                "Counter of DNS requests made per zone, protocol and family.",
                ["server", "zone", "view", "proto", "family", "type"],
            ),
            requests_at: Default::default(),
            responses: registry.counters(
                "coredns_dns_responses_total",
                "Counter of response status codes.",
                ["server", "zone", "view", "rcode", "plugin"],
            ),
            responses_at: Default::default(),
            request_sizes,
            response_sizes,
            signed: signed.with([&server, ZONE, ""]),
            duration: duration.with([&server, ZONE, ""]),
            panics: registry
                .counter("coredns_panics_total", "A metrics that counts the number of panics."),
            programming: registry.histograms(
                "coredns_kubernetes_dns_programming_duration_seconds",
                "Histogram of the time (in seconds) it took to program a dns instance.",
                ["service_kind"],
                Buckets::exponential(0.001, 2.0, 20),
            ),
            cache,
            forward,
            health,
            registry,
            server,
        })
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, answered: &Answered) {
        let transport = match answered.transport {
            Transport::Udp => 0,
            Transport::Tcp => 1,
        };
        let family = usize::from(answered.is_v6);
        let kind = KINDS.iter().position(|kind| *kind == answered.kind).unwrap_or(KINDS.len());
        let slot = &self.requests_at[transport][family][kind];
        slot.get_or_init(|| {
            let protocol = ["udp", "tcp"][transport];
            let family = ["1", "2"][family];
            let kind = KINDS.get(kind).map_or(OTHER, |kind| (*kind).into());
            self.requests.with([&self.server, ZONE, "", protocol, family, kind])
        })
        .inc();
        let plugin = answered.plugin as usize;
        let code = u16::from(answered.code);
        let at = usize::from(code).min(self.responses_at.len() - 1);
        let slot = &self.responses_at[at][plugin];
        slot.get_or_init(|| {
            let code = code_name(answered.code);
            self.responses.with([&self.server, ZONE, "", code, PLUGINS[plugin]])
        })
        .inc();
        if answered.wants_signatures {
            self.signed.inc();
        }
        self.request_sizes[transport].observe(answered.sizes.0 as f64);
        self.response_sizes[transport].observe(answered.sizes.1 as f64);
        self.duration.took(answered.took);
    }
}

/// A response code as others write it.
pub(crate) fn code_name(code: ResponseCode) -> &'static str {
    match u16::from(code) {
        0 => "NOERROR",
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        6 => "YXDOMAIN",
        7 => "YXRRSET",
        8 => "NXRRSET",
        9 => "NOTAUTH",
        10 => "NOTZONE",
        16 => "BADVERS",
        _ => OTHER,
    }
}
