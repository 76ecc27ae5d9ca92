//! The UID of a static pod whose manifest has none: a hash of the whole pod as the Go kubelet
//! prints it. It must be exactly upstream's, or every static pod, the control plane included, is
//! restarted when a node changes from one kubelet to the other.
//!
//! The printer (crate `godump`) walks the pod's JSON along a table of Go's internal types
//! (`types.txt`); what conversion from v1 changes is done to the JSON before that.
//!
//! Current limitations: three fields are not printed as upstream does it, and give a UID that is
//! stable but not upstream's. Times (`creationTimestamp` and the like), for Go prints its data on
//! the machine's time zone with them; `fieldsV1`; and pod-level requests that are a sum over
//! containers.

use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::Pod;
use longshore_godump::{Fnv128a, Types, print};
use serde_json::{Value, json};

/// The UID of a static pod with defaults applied and without the node's name. `origin` is its
/// source in upstream's format.
pub(super) fn uid(pod: &Pod, origin: fmt::Arguments<'_>) -> String {
    let mut hasher = Fnv128a::default();
    // Parsed for each changed manifest and dropped again, as that is rare.
    let types = Types::parse(include_str!("types.txt"));
    // Writing to a hasher cannot fail.
    let _ = print(&types, "*core.Pod", &internal(pod), &mut hasher);
    let _ = hasher.write_fmt(origin);
    format!("{:032x}", hasher.finish())
}

/// Annotations by which init containers were declared in early versions.
const INIT_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// The pod in upstream's internal form, which differs from v1 in a few fields.
fn internal(pod: &Pod) -> Value {
    let mut pod = serde_json::to_value(pod).unwrap_or_default();
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|name, _| !INIT_ANNOTATIONS.contains(&name.as_str()));
    }
    let spec = &mut pod["spec"];
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        spec["securityContext"][field] = spec[field].take();
    }
    if spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        spec["serviceAccountName"] = spec["serviceAccount"].take();
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    let status = &mut pod["status"];
    if status["podIP"].as_str().is_some_and(|ip| !ip.is_empty())
        && status["podIP"] != status["podIPs"][0]["ip"]
    {
        status["podIPs"] = json!([{ "ip": status["podIP"] }]);
    }
    pod
}

#[cfg(test)]
mod tests;
