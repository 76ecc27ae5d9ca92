//! The labels and annotations of containers and sandboxes. They are upstream's, so that containers
//! are found when a node changes from one kubelet to the other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{hash, spec};

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: hash of the container's spec, hexadecimal.
pub const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: restart count, decimal.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: the path of the termination message.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the `preStop` hook, as JSON.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports, as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Annotation: `deletionGracePeriodSeconds` of the pod, decimal.
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: `terminationGracePeriodSeconds` of the pod, decimal.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Labels of a sandbox: the pod's own and its identity.
pub fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let own = pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    own.chain(identity(pod)).collect()
}

/// Labels of a container.
pub fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let name = (CONTAINER_NAME.to_owned(), container.name.clone());
    identity(pod).into_iter().chain([name]).collect()
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), spec::name(pod).to_owned()),
        (POD_NAMESPACE.to_owned(), spec::namespace(pod).to_owned()),
        (POD_UID.to_owned(), spec::uid(pod).to_owned()),
    ]
}

/// Annotations of a container: what must be known of it once the pod's object is gone.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([
        (HASH.to_owned(), format!("{:x}", hash::container_hash(container))),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (
            TERMINATION_MESSAGE_PATH.to_owned(),
            container.termination_message_path.clone().unwrap_or_default(),
        ),
        (
            TERMINATION_MESSAGE_POLICY.to_owned(),
            container.termination_message_policy.clone().unwrap_or_default(),
        ),
    ]);
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value);
        }
    };
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    put(DELETION_GRACE, pod.metadata.deletion_grace_period_seconds.map(|s| s.to_string()));
    put(TERMINATION_GRACE, grace.map(|seconds| seconds.to_string()));
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    put(PRE_STOP, pre_stop.and_then(|handler| serde_json::to_string(handler).ok()));
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    put(PORTS, ports.and_then(|ports| serde_json::to_string(ports).ok()));
    annotations
}
