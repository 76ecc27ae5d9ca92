//! Calls about figures and metrics.

use crate::v1::{
    ContainerStats, ContainerStatsFilter, ContainerStatsRequest, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    MetricDescriptor, PodSandboxMetrics, PodSandboxStats, PodSandboxStatsFilter,
    PodSandboxStatsRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// The figures of one container.
    pub async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let call = self.call("ContainerStats", "container_stats");
        let request = call.request(ContainerStatsRequest { container_id: id.to_owned() });
        let answer = call.answer(self.runtime().container_stats(request)).await?;
        call.required(answer.stats, "stats")
    }

    /// The figures of the containers that match; of all with no filter.
    pub async fn list_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>> {
        let call = self.call("ListContainerStats", "list_container_stats");
        let request = call.request(ListContainerStatsRequest { filter });
        let answer = call.answer(self.runtime().list_container_stats(request)).await?;
        Ok(answer.stats)
    }

    /// The figures of one sandbox.
    pub async fn pod_sandbox_stats(&self, id: &str) -> Result<PodSandboxStats> {
        let call = self.call("PodSandboxStats", "podsandbox_stats");
        let request = call.request(PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() });
        let answer = call.answer(self.runtime().pod_sandbox_stats(request)).await?;
        call.required(answer.stats, "stats")
    }

    /// The figures of the sandboxes that match; of all with no filter.
    pub async fn list_pod_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>> {
        let call = self.call("ListPodSandboxStats", "list_podsandbox_stats");
        let request = call.request(ListPodSandboxStatsRequest { filter });
        let answer = call.answer(self.runtime().list_pod_sandbox_stats(request)).await?;
        Ok(answer.stats)
    }

    /// What the metrics of [`Runtime::list_pod_sandbox_metrics`] mean.
    pub async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>> {
        let call = self.call("ListMetricDescriptors", "list_metric_descriptors");
        let request = call.request(ListMetricDescriptorsRequest {});
        let answer = call.answer(self.runtime().list_metric_descriptors(request)).await?;
        Ok(answer.descriptors)
    }

    /// The metrics that the runtime makes up itself.
    pub async fn list_pod_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>> {
        let call = self.call("ListPodSandboxMetrics", "list_podsandbox_metrics");
        let request = call.request(ListPodSandboxMetricsRequest {});
        let answer = call.answer(self.runtime().list_pod_sandbox_metrics(request)).await?;
        Ok(answer.pod_metrics)
    }
}
