//! The metrics of kube-proxy's own port, under upstream's names.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_config::FeatureGates;
use longshore_metrics::{
    Buckets, Counter, Family as Series, Gauge, Healthchecks, Histogram, Kind, Labels, Registry,
    RestClient, Version, register_process_metrics, register_version,
};
use longshore_proxy::Family;
use longshore_proxy::accounting;
use longshore_proxy::proxier::{Failed, Rules, Synced};
use parking_lot::Mutex;

const FAMILY: [&str; 1] = ["ip_family"];

/// All that is counted. Clones count into the same.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pub(super) registry: Registry,
    /// The page `/metrics/slis`.
    pub(super) slis: Registry,
    pub(super) rest_client: RestClient,
    pub(super) packets: Packets,
    checks: Healthchecks,
    sync: Series<Histogram, 1>,
    full: Series<Histogram, 1>,
    partial: Series<Histogram, 1>,
    synced_at: Series<Gauge, 1>,
    queued_at: Series<Gauge, 1>,
    programming: Series<Histogram, 1>,
    endpoint_changes: Counter,
    endpoint_pending: Gauge,
    service_changes: Counter,
    service_pending: Gauge,
    failures: Series<Counter, 1>,
    partial_failures: Series<Counter, 1>,
    rules: Series<Gauge, 2>,
    written: Series<Gauge, 2>,
    no_local: Series<Gauge, 2>,
    conntrack: Series<Histogram, 1>,
    flows: Series<Counter, 1>,
    healthz: Series<Counter, 1>,
    livez: Series<Counter, 1>,
}

/// The kernel's counters, with what they were when they were read last.
#[derive(Debug, Clone, Default)]
pub(super) struct Packets(Arc<[Mutex<Option<u64>>; PACKETS.len()]>);

/// Counters by their name in the kernel, as metrics.
const PACKETS: [(&str, &str, &str); 2] = [
    (
        accounting::INVALID_DROPPED,
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "packets dropped by iptables to work around conntrack problems",
    ),
    (
        accounting::LOCALHOST_NODE_PORTS,
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "Number of packets accepted on nodeports of loopback interface",
    ),
];

impl Packets {
    fn new(registry: &Registry) -> Self {
        let packets = Self::default();
        let read = packets.clone();
        registry.collect(move |text| {
            for ((_, name, help), value) in PACKETS.iter().zip(&*read.0) {
                if let Some(value) = *value.lock() {
                    text.family(name, help, Kind::Counter).add(&Labels::NONE, value as f64);
                }
            }
        });
        packets
    }

    /// Reads them; one that the kernel does not have is left out.
    pub(super) async fn read(&self) {
        for ((counter, ..), value) in PACKETS.iter().zip(&*self.0) {
            let packets = accounting::packets(counter).await.unwrap_or_default();
            *value.lock() = packets;
        }
    }
}

/// What something changed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    Service,
    Endpoints,
}

impl Metrics {
    pub(super) fn new(gates: &FeatureGates) -> Self {
        let registry = Registry::default();
        gates.register_metrics(&registry);
        let slis = Registry::default();
        register_process_metrics(&registry, tokio::runtime::Handle::current());
        let platform = format!("linux/{}", go_arch());
        let version = Version { kubernetes: KUBERNETES_VERSION, commit: "", platform: &platform };
        register_version(&registry, version);
        let durations = || Buckets::exponential(0.001, 2.0, 15);
        let duration = |name, help| registry.histograms(name, help, FAMILY, durations());
        Self {
            sync: duration(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
            ),
            full: duration(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            ),
            partial: duration(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            ),
            synced_at: registry.gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                FAMILY,
            ),
            queued_at: registry.gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                FAMILY,
            ),
            programming: registry.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                FAMILY,
                Buckets::linear(0.25, 0.25, 2)
                    .then(&Buckets::linear(1.0, 1.0, 59))
                    .then(&Buckets::linear(60.0, 5.0, 12))
                    .then(&Buckets::linear(120.0, 30.0, 7)),
            ),
            endpoint_changes: registry.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Cumulative proxy rules Endpoint changes",
            ),
            endpoint_pending: registry.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Pending proxy rules Endpoint changes",
            ),
            service_changes: registry.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Cumulative proxy rules Service changes",
            ),
            service_pending: registry.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Pending proxy rules Service changes",
            ),
            failures: registry.counters(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "Cumulative proxy iptables restore failures",
                FAMILY,
            ),
            partial_failures: registry.counters(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "Cumulative proxy iptables partial restore failures",
                FAMILY,
            ),
            rules: registry.gauges(
                "kubeproxy_sync_proxy_rules_iptables_total",
                "Total number of iptables rules owned by kube-proxy",
                ["table", "ip_family"],
            ),
            written: registry.gauges(
                "kubeproxy_sync_proxy_rules_iptables_last",
                "Number of iptables rules written by kube-proxy in last sync",
                ["table", "ip_family"],
            ),
            no_local: registry.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Number of services with a Local traffic policy and no endpoints",
                ["traffic_policy", "ip_family"],
            ),
            conntrack: duration(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            ),
            flows: registry.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                FAMILY,
            ),
            healthz: registry.counters(
                "kubeproxy_proxy_healthz_total",
                "Cumulative proxy healthz HTTP status",
                ["code"],
            ),
            livez: registry.counters(
                "kubeproxy_proxy_livez_total",
                "Cumulative proxy livez HTTP status",
                ["code"],
            ),
            rest_client: RestClient::new(&registry),
            packets: Packets::new(&registry),
            checks: Healthchecks::new(&slis),
            registry,
            slis,
        }
    }

    /// Something changed that requires a sync of some families.
    pub(super) fn changed(&self, what: Changed, families: impl IntoIterator<Item = Family>) {
        let (total, pending) = match what {
            Changed::Service => (&self.service_changes, &self.service_pending),
            Changed::Endpoints => (&self.endpoint_changes, &self.endpoint_pending),
        };
        total.inc();
        pending.add(1.0);
        let now = now();
        for family in families {
            self.queued_at.with([family.as_str()]).set(now);
        }
    }

    /// A sync takes what has changed so far.
    pub(super) fn sync_started(&self) {
        self.endpoint_pending.set(0.0);
        self.service_pending.set(0.0);
    }

    pub(super) fn synced(&self, synced: &Synced) {
        let family = synced.family.as_str();
        self.took(synced.family, synced.full, synced.duration);
        self.synced_at.with([family]).set(seconds(synced.at));
        for trigger in synced.triggers.values() {
            let latency = synced.at.duration_since(*trigger).as_secs_f64();
            self.programming.with([family]).observe(latency.max(0.0));
        }
        for (table, Rules { total, written }) in [("filter", synced.filter), ("nat", synced.nat)] {
            self.rules.with([table, family]).set(total as f64);
            self.written.with([table, family]).set(written as f64);
        }
        let no_local = synced.no_local_endpoints;
        self.no_local.with(["internal", family]).set(no_local.internal as f64);
        self.no_local.with(["external", family]).set(no_local.external as f64);
        if let Some(took) = synced.flows_duration {
            self.conntrack.with([family]).took(took);
            self.flows.with([family]).add(synced.stale_flows as u64);
        }
    }

    pub(super) fn failed(&self, failed: &Failed) {
        let family = failed.family.as_str();
        self.took(failed.family, failed.full, failed.duration);
        self.failures.with([family]).inc();
        if !failed.full {
            self.partial_failures.with([family]).inc();
        }
    }

    /// A request for `/healthz` or `/livez` of the proxy was answered with that status.
    pub(super) fn health_request(&self, endpoint: &'static str, status: u16) {
        let answers = if endpoint == "livez" { &self.livez } else { &self.healthz };
        answers.with([&status.to_string()]).inc();
        self.checks.checked("proxy", endpoint, status == 200);
    }

    fn took(&self, family: Family, full: bool, duration: Duration) {
        let family = family.as_str();
        self.sync.with([family]).took(duration);
        (if full { &self.full } else { &self.partial }).with([family]).took(duration);
    }
}

fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e9
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
