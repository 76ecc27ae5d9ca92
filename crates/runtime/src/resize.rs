//! In-place resize of a running pod and its containers.

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_cri::v1;
use longshore_pod::spec::{self, describe};
use tracing::debug;

use super::{Error, PodRuntime, resources};

impl PodRuntime {
    /// Update a running container to the resources of its spec.
    pub async fn resize_container(
        &self,
        pod: &Pod,
        container: &Container,
        id: &str,
        sandbox_id: &str,
    ) -> Result<(), Error> {
        let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
        let resources = resources::container(&self.settings, pod, pod_spec, container);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..v1::UpdateContainerResourcesRequest::default()
        };
        self.cri.update_container_resources(request).await?;
        if let Err(error) = self.observer.inspect_container(spec::uid(pod), id, sandbox_id).await {
            debug!(pod = describe(pod), id, %error, "inspection of a resized container failed");
        }
        self.observer.resized(spec::uid(pod));
        Ok(())
    }

    /// Update the pod's cgroup and sandbox to the resources of its spec.
    pub async fn resize_pod(&self, pod: &Pod, sandbox_id: &str) -> Result<(), Error> {
        let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            overhead: Some(resources::overhead(&self.settings, pod_spec)),
            resources: Some(resources::pod(&self.settings, pod_spec)),
        };
        match self.cri.update_pod_sandbox_resources(request).await {
            // Most runtimes do not implement it, and report that in different ways.
            Err(error) if error.is_unimplemented() || is_missing(&error) => {}
            result => result?,
        }
        self.settings.cgroups.create(&self.managers.without_quota(pod)).await?;
        self.observer.resized(spec::uid(pod));
        Ok(())
    }

    /// The memory usage of the pod, in bytes.
    pub fn memory_of_pod(&self, pod: &Pod) -> Result<i64, Error> {
        let bytes = self.settings.cgroups.memory_of(pod)?;
        Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// The memory usage of a container in bytes, if the runtime reports it.
    pub async fn memory_of_container(&self, id: &str) -> Result<Option<i64>, Error> {
        let memory = self.cri.container_stats(id).await?.memory;
        let usage = memory.and_then(|memory| memory.usage_bytes.or(memory.working_set_bytes));
        Ok(usage.map(|usage| i64::try_from(usage.value).unwrap_or(i64::MAX)))
    }

    /// The memory limit of the pod by its spec, in bytes; 0 is no limit.
    pub fn memory_limit(pod: &Pod) -> i64 {
        pod.spec.as_ref().map_or(0, |spec| resources::pod_amounts(spec).memory_limit)
    }
}

fn is_missing(error: &longshore_cri::Error) -> bool {
    matches!(error, longshore_cri::Error::Status { code: longshore_cri::Code::Unknown, message, .. }
        if message.contains("not implemented"))
}
