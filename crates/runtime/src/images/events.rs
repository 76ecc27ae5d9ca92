//! Events about images: of a container, or of the pod for its volumes.

use crate::StartError;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::events::PodEventRecorder;
use longshore_pod::spec::ContainerKind;

/// Records events about an image.
pub(super) struct ImageEvents<'a> {
    pub(super) pod_events: &'a PodEventRecorder,
    pub(super) pod: &'a Pod,
    pub(super) container: Option<(ContainerKind, &'a str)>,
}

impl ImageEvents<'_> {
    pub(super) fn record(&self, warning: bool, reason: &str, message: &str) {
        match self.container {
            Some((kind, name)) => {
                self.pod_events.container(self.pod, kind, name, warning, reason, message);
            }
            None => self.pod_events.pod(self.pod, warning, reason, message),
        }
    }

    /// Record the event of a failure, and return the error with the same message.
    pub(super) fn failure(&self, event: &str, reason: &'static str, message: String) -> StartError {
        self.record(true, event, &message);
        StartError::new(reason, message)
    }
}
