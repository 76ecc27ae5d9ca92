//! The page `/metrics/resources`: what pods request and are limited to, as the scheduler counts it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use longshore_metrics::{Kind, Labels, Text};
use longshore_pod::quantity::milli;
use longshore_pod::resources::{List, limits, requests};

const REQUESTS: &str = "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.";
const LIMITS: &str = "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.";

/// The unit of a resource; none for what is counted.
fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        _ if resource.starts_with("hugepages-") => "bytes",
        _ if resource.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

/// Whether the pod has ended, so that it counts no more.
fn has_ended(pod: &Pod, spec: &PodSpec) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    spec.node_name.as_ref().is_some_and(|node| !node.is_empty())
        && matches!(phase, Some("Succeeded" | "Failed"))
}

/// Writes the families of these pods.
pub(crate) fn write(text: &mut Text, pods: &[Arc<Pod>]) {
    family(text, "kube_pod_resource_limit", LIMITS, limits, pods);
    family(text, "kube_pod_resource_request", REQUESTS, requests, pods);
}

fn family(text: &mut Text, name: &str, help: &str, of: fn(&PodSpec) -> List, pods: &[Arc<Pod>]) {
    let mut samples = text.family(name, help, Kind::Gauge);
    for pod in pods {
        let Some(spec) = pod.spec.as_ref().filter(|spec| !has_ended(pod, spec)) else { continue };
        let string = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (string(&pod.metadata.namespace), string(&pod.metadata.name));
        let (node, scheduler) = (string(&spec.node_name), string(&spec.scheduler_name));
        let priority = spec.priority.map(|priority| priority.to_string()).unwrap_or_default();
        for (resource, amount) in of(spec) {
            let Some(amount) = milli(&amount).filter(|amount| *amount != 0) else { continue };
            let labels = Labels::new(&[
                ("namespace", &namespace),
                ("pod", &name),
                ("node", &node),
                ("scheduler", &scheduler),
                ("priority", &priority),
                ("resource", &resource),
                ("unit", unit(&resource)),
            ]);
            samples.add(&labels, amount as f64 / 1000.0);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resource_metrics_have_requests_and_limits_of_pods() {
        let pod = |name: &str, node: &str, phase: &str| -> Arc<Pod> {
            let pod = json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {
                    "nodeName": node, "schedulerName": "default-scheduler", "priority": 7,
                    "overhead": {"cpu": "250m"},
                    "containers": [{"name": "c", "resources": {
                        "requests": {"cpu": "500m", "memory": "1Ki", "example.com/x": "2"},
                        "limits": {"memory": "2Ki", "hugepages-2Mi": "0"},
                    }}],
                },
                "status": {"phase": phase},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let pods = [
            pod("waits", "", "Pending"),
            pod("ended", "n", "Succeeded"),
            pod("runs", "n", "Running"),
        ];
        let mut text = Text::new();
        write(&mut text, &pods);
        let page = text.finish();
        let of = |pod: &str, node: &str, resource: &str, unit: &str, amount: &str| {
            format!(
                "{{namespace=\"ns\",pod=\"{pod}\",node=\"{node}\",scheduler=\"default-scheduler\",priority=\"7\",resource=\"{resource}\",unit=\"{unit}\"}} {amount}\n"
            )
        };
        for (pod, node) in [("waits", ""), ("runs", "n")] {
            for (resource, unit, amount) in
                [("cpu", "cores", "0.75"), ("memory", "bytes", "1024"), ("example.com/x", "", "2")]
            {
                let line =
                    format!("kube_pod_resource_request{}", of(pod, node, resource, unit, amount));
                assert!(page.contains(&line), "{line}{page}");
            }
            let line =
                format!("kube_pod_resource_limit{}", of(pod, node, "memory", "bytes", "2048"));
            assert!(page.contains(&line), "{line}{page}");
        }
        assert!(!page.contains("ended") && !page.contains("hugepages"), "{page}");
    }
}
