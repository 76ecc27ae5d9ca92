//! Calls about stats and metrics.

use crate::v1::{
    ContainerStats, ContainerStatsFilter, ContainerStatsRequest, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    MetricDescriptor, PodSandboxMetrics, PodSandboxStats, PodSandboxStatsFilter,
    PodSandboxStatsRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// The stats of one container.
    pub async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let call = self.call("ContainerStats", "container_stats");
        let request = call.request(ContainerStatsRequest { container_id: id.to_owned() });
        let response = call.response(self.runtime().container_stats(request)).await?;
        call.required(response.stats, "stats")
    }

    /// The stats of the containers that match the filter.
    pub async fn list_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>> {
        let call = self.call("ListContainerStats", "list_container_stats");
        let request = call.request(ListContainerStatsRequest { filter });
        let response = call.response(self.runtime().list_container_stats(request)).await?;
        Ok(response.stats)
    }

    /// The stats of one sandbox.
    pub async fn pod_sandbox_stats(&self, id: &str) -> Result<PodSandboxStats> {
        let call = self.call("PodSandboxStats", "podsandbox_stats");
        let request = call.request(PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() });
        let response = call.response(self.runtime().pod_sandbox_stats(request)).await?;
        call.required(response.stats, "stats")
    }

    /// The stats of the sandboxes that match the filter.
    pub async fn list_pod_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>> {
        let call = self.call("ListPodSandboxStats", "list_podsandbox_stats");
        let request = call.request(ListPodSandboxStatsRequest { filter });
        let response = call.response(self.runtime().list_pod_sandbox_stats(request)).await?;
        Ok(response.stats)
    }

    /// The descriptors of the metrics of [`Runtime::list_pod_sandbox_metrics`].
    pub async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>> {
        let call = self.call("ListMetricDescriptors", "list_metric_descriptors");
        let request = call.request(ListMetricDescriptorsRequest {});
        let response = call.response(self.runtime().list_metric_descriptors(request)).await?;
        Ok(response.descriptors)
    }

    /// The runtime's own metrics of sandboxes.
    pub async fn list_pod_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>> {
        let call = self.call("ListPodSandboxMetrics", "list_podsandbox_metrics");
        let request = call.request(ListPodSandboxMetricsRequest {});
        let response = call.response(self.runtime().list_pod_sandbox_metrics(request)).await?;
        Ok(response.pod_metrics)
    }
}
