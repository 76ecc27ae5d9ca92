//! Events about images: of a container, or of the pod for its volumes.

use crate::StartError;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::events::PodEventRecorder;
use longshore_pod::spec::ContainerKind;

/// What a request's outcome is told to.
pub(super) struct Telling<'a> {
    pub(super) pod_events: &'a PodEventRecorder,
    pub(super) pod: &'a Pod,
    pub(super) container: Option<(ContainerKind, &'a str)>,
}

impl Telling<'_> {
    pub(super) fn say(&self, warning: bool, reason: &str, message: &str) {
        match self.container {
            Some((kind, name)) => {
                self.pod_events.container(self.pod, kind, name, warning, reason, message);
            }
            None => self.pod_events.pod(self.pod, warning, reason, message),
        }
    }

    /// A failure that has its event, of that reason and with the message of the waiting state.
    pub(super) fn fails(&self, event: &str, reason: &'static str, message: String) -> StartError {
        self.say(true, event, &message);
        StartError::new(reason, message)
    }
}
