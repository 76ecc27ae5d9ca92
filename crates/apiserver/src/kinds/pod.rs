//! Pod.

use serde_json::{Value, json};

use super::prepare::restore;
use super::{Deletion, Kind, Strategy, defaults, printers, qos, validate, warnings};
use crate::api_types::{
    CONNECT, CREATE, Fields, Gvk, PROXY, READ_WRITE, Resource, Subresource, core, status,
};
use crate::schema::value::{default, is_zero, items, map_mut};

const FIELDS: Fields = &[
    ("spec.nodeName", "spec.nodeName"),
    ("spec.restartPolicy", "spec.restartPolicy"),
    ("spec.schedulerName", "spec.schedulerName"),
    ("spec.serviceAccountName", "spec.serviceAccountName"),
    ("spec.hostNetwork", "spec.hostNetwork"),
    ("status.phase", "status.phase"),
    ("status.podIP", "status.podIP"),
    ("status.podIPs", "status.podIP"),
    ("status.nominatedNodeName", "status.nominatedNodeName"),
    // the name of v1beta3, which upstream still takes
    ("spec.host", "spec.nodeName"),
];

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["po"],
        categories: &["all"],
        subresources: &[
            Subresource { name: "attach", gvk: Gvk::core("PodAttachOptions"), verbs: CONNECT },
            Subresource { name: "binding", gvk: Gvk::core("Binding"), verbs: CREATE },
            Subresource { name: "ephemeralcontainers", gvk: Gvk::core("Pod"), verbs: READ_WRITE },
            Subresource { name: "eviction", gvk: Gvk::v1("policy", "Eviction"), verbs: CREATE },
            Subresource { name: "exec", gvk: Gvk::core("PodExecOptions"), verbs: CONNECT },
            Subresource { name: "log", gvk: Gvk::core("Pod"), verbs: &["get"] },
            Subresource {
                name: "portforward",
                gvk: Gvk::core("PodPortForwardOptions"),
                verbs: CONNECT,
            },
            Subresource { name: "proxy", gvk: Gvk::core("PodProxyOptions"), verbs: PROXY },
            Subresource { name: "resize", gvk: Gvk::core("Pod"), verbs: READ_WRITE },
            status("Pod"),
        ],
        counts_generation: true,
        fields: Some(FIELDS),
        ..core("pods", "pod", "Pod", "pods")
    },
    strategy: Strategy {
        default: defaults::pod::pod,
        derive: set_qos,
        prepare_create: |pod| {
            let status = new_status(pod.get("spec").unwrap_or(&Value::Null));
            pod.insert("status".into(), status);
        },
        prepare_status,
        validate: |pod, old, causes| match old {
            None => validate::pod::create(pod, causes),
            Some(old) => validate::pod_update::update(pod, old, causes),
        },
        validate_status: validate::pod_update::status,
        printer: &printers::PODS,
        deletion: Deletion::Graceful,
        returned_when_deleted: true,
        reset_by_status: &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"],
        warnings: warnings::pod,
        ..Strategy::PLAIN
    },
};

fn new_status(spec: &Value) -> Value {
    let mut status = json!({"phase": "Pending", "qosClass": qos::class(spec)});
    if !items(&spec["schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    status
}

fn prepare_status(pod: &mut Value, old: &Value) {
    let Some(map) = pod.as_object_mut() else { return };
    // old kubelets wrote owner references wrongly, and dropped the QoS class of a pod they refused
    if let Some(metadata) = map_mut(map, "metadata") {
        restore(metadata, &old["metadata"], "ownerReferences");
    }
    if let Some(status) = map_mut(map, "status") {
        for field in ["qosClass", "observedGeneration"] {
            if let Some(value) = old["status"].get(field).filter(|v| !is_zero(v)) {
                default(status, field, value.clone());
            }
        }
    }
}

/// The annotation of a pod that a node made from a manifest of its own.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a node made the pod from a manifest of its own.
pub(crate) fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][MIRROR].is_string()
}

/// The QoS class of a new pod, by what its containers request now.
fn set_qos(pod: &mut Value) {
    pod["status"]["qosClass"] = qos::class(&pod["spec"]).into();
}
