//! What the node reports to Prometheus: a registry for each page, and the families that
//! belong to no component. All others are the components' own (`metrics.rs` in each): they register
//! them when they are made, and count where a thing happens. Names, labels and buckets are
//! upstream's.

use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_client::certificates::CertificateMetrics;
use longshore_metrics::{Healthchecks, Registry, RestClient, Version};
use longshore_metrics::{tell_version, watch_process, watch_start};
use tokio::runtime::Handle;

use super::metrics::Requests;

/// The node's registries, and the families that several components use. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
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
    pub certificates: CertificateMetrics,
    /// What the node's checks of its own health found.
    pub healthchecks: Healthchecks,
}

impl NodeMetrics {
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
            certificates: CertificateMetrics::new(&node),
            healthchecks: Healthchecks::new(&slis),
            probes,
            node,
            slis,
        }
    }
}
