//! What the node tells of itself to Prometheus: a registry for each page, and the families that
//! belong to no room. All others are the rooms' own (`metrics.rs` in each): they register them when
//! they are made, and count where a thing happens. Names, labels and buckets are upstream's.

mod certificates;

use longshore_metrics::{Healthchecks, Kind, Labels, Registry, RestClient, Text, Version};
use longshore_metrics::{tell_version, watch_process, watch_start};
use tokio::runtime::Handle;

pub use certificates::Certificates;

use crate::config::{KUBERNETES_VERSION, go_arch};
use crate::server::Requests;

/// The node's registries, and what all rooms may use. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// `/metrics`.
    pub node: Registry,
    /// `/metrics/probes`.
    pub probes: Registry,
    /// `/metrics/slis`.
    pub slis: Registry,
    /// What clients of the apiserver did.
    pub rest_client: RestClient,
    /// Requests to the node's ports.
    pub requests: Requests,
    /// The node's certificates.
    pub certificates: Certificates,
    /// What the node's checks of its own health found.
    pub healthchecks: Healthchecks,
}

impl Metrics {
    /// Registries for the node of that name. Must be called inside a tokio runtime.
    pub fn new(node_name: &str) -> Self {
        let node = Registry::default();
        watch_process(&node, Handle::current());
        let platform = format!("linux/{}", go_arch());
        let version = Version { kubernetes: KUBERNETES_VERSION, commit: "", platform: &platform };
        tell_version(&node, version);
        let name = node.gauges("kubelet_node_name", "Always 1; the label is the name.", ["node"]);
        name.with([node_name]).set(1.0);
        // Nothing configures nodes from afar any more, but dashboards still ask.
        node.gauge("kubelet_node_config_error", "1 if the node's configuration is at fault.");
        let (probes, slis) = (Registry::default(), Registry::default());
        watch_start(&probes);
        Self {
            rest_client: RestClient::new(&node),
            requests: Requests::new(&node),
            certificates: Certificates::new(&node),
            healthchecks: Healthchecks::new(&slis),
            probes,
            node,
            slis,
        }
    }
}

/// Writes a gauge without labels.
pub(crate) fn gauge(text: &mut Text, name: &str, help: &str, value: f64) {
    text.family(name, help, Kind::Gauge).add(&Labels::NONE, value);
}
