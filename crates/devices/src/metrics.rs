//! Metrics of plugins and of the PodResources API.

use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};

/// Metrics of this crate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) registrations: Family<Counter, 1>,
    pub(crate) allocations: Family<Histogram, 1>,
    pub(crate) requests: Family<Counter, 1>,
    pub(crate) lists: Family<Counter, 1>,
    pub(crate) allocatables: Family<Counter, 1>,
    pub(crate) gets: Family<Counter, 1>,
    pub(crate) get_errors: Family<Counter, 1>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let version = ["server_api_version"];
        // Upstream has families for the errors of these two, which never fail.
        for (name, help) in [
            (
                "kubelet_pod_resources_endpoint_errors_list",
                "Requests to list the resources of pods that failed, by the version of the API.",
            ),
            (
                "kubelet_pod_resources_endpoint_errors_get_allocatable",
                "Requests for the node's resources that failed, by the version of the API.",
            ),
        ] {
            registry.counters(name, help, version);
        }
        Self {
            registrations: registry.counters(
                "kubelet_device_plugin_registration_total",
                "Registrations of device plugins, by their resource.",
                ["resource_name"],
            ),
            allocations: registry.histograms(
                "kubelet_device_plugin_alloc_duration_seconds",
                "How long device plugins took to allocate devices, in seconds, by their resource.",
                ["resource_name"],
                Buckets::usual(),
            ),
            requests: registry.counters(
                "kubelet_pod_resources_endpoint_requests_total",
                "Requests to the PodResources API, by its version.",
                version,
            ),
            lists: registry.counters(
                "kubelet_pod_resources_endpoint_requests_list",
                "Requests to list the resources of pods, by the version of the API.",
                version,
            ),
            allocatables: registry.counters(
                "kubelet_pod_resources_endpoint_requests_get_allocatable",
                "Requests for the node's resources, by the version of the API.",
                version,
            ),
            gets: registry.counters(
                "kubelet_pod_resources_endpoint_requests_get",
                "Requests for the resources of a pod, by the version of the API.",
                version,
            ),
            get_errors: registry.counters(
                "kubelet_pod_resources_endpoint_errors_get",
                "Requests for the resources of a pod that failed, by the version of the API.",
                version,
            ),
        }
    }
}
