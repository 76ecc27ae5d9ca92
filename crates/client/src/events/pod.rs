//! Events about pods and their containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use longshore_pod::spec::{self, ContainerKind};

use super::{EventType, Recorder};

/// Records events about pods. Cheap to clone; never waits.
#[derive(Clone, Debug)]
pub struct PodEventRecorder(Recorder);

impl PodEventRecorder {
    /// Records through that recorder.
    pub fn new(recorder: Recorder) -> Self {
        Self(recorder)
    }

    /// An event about the pod as a whole.
    pub fn pod(&self, pod: &Pod, warning: bool, reason: &str, message: &str) {
        self.event(pod, None, warning, reason, message);
    }

    /// An event about another object than a pod.
    pub fn about(&self, object: ObjectReference, warning: bool, reason: &str, message: &str) {
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        self.0.event(object, kind, reason, message);
    }

    /// A warning about the pod as a whole, with annotations for tools.
    pub fn pod_warning_with(
        &self,
        pod: &Pod,
        reason: &str,
        message: &str,
        annotations: BTreeMap<String, String>,
    ) {
        let about = reference(pod, None);
        self.0.annotated_event(about, EventType::Warning, reason, message, annotations);
    }

    /// An event about one container, which it names by its field path.
    pub fn container(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        name: &str,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        self.event(pod, Some(spec::field_path(kind, name)), warning, reason, message);
    }

    fn event(
        &self,
        pod: &Pod,
        field_path: Option<String>,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        self.about(reference(pod, field_path), warning, reason, message);
    }
}

fn reference(pod: &Pod, field_path: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path,
    }
}
