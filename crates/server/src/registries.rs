//! The metric registries, one per endpoint, and metrics that belong to no component. Other metrics
//! are registered by their components (`metrics.rs`). Names, labels and buckets are upstream's.

use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_client::certificates::CertificateMetrics;
use longshore_metrics::{Healthchecks, Registry, RestClient, Version};
use longshore_metrics::{register_process_metrics, register_start_time, register_version};
use tokio::runtime::Handle;

use super::metrics::Requests;

/// The node's registries, and metrics of several components. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    /// `/metrics`.
    pub node: Registry,
    /// `/metrics/probes`.
    pub probes: Registry,
    /// `/metrics/slis`.
    pub slis: Registry,
    /// Requests of apiserver clients.
    pub rest_client: RestClient,
    /// Requests to the node's ports.
    pub requests: Requests,
    /// The node's certificates.
    pub certificates: CertificateMetrics,
    /// Health check results.
    pub healthchecks: Healthchecks,
}

impl NodeMetrics {
    /// Registries for the node of that name. Must be called inside a tokio runtime.
    pub fn new(node_name: &str) -> Self {
        let node = Registry::default();
        register_process_metrics(&node, Handle::current());
        let platform = format!("linux/{}", go_arch());
        let version = Version { kubernetes: KUBERNETES_VERSION, commit: "", platform: &platform };
        register_version(&node, version);
        let name = node.gauges("kubelet_node_name", "Always 1; the label is the name.", ["node"]);
        name.with([node_name]).set(1.0);
        // Dynamic configuration was removed, but dashboards still use it.
        node.gauge("kubelet_node_config_error", "1 if the node's configuration is at fault.");
        let (probes, slis) = (Registry::default(), Registry::default());
        register_start_time(&probes);
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
