//! The metric of container log sizes.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_metrics::{Kind, Labels, Text};
use longshore_pod::spec;
use longshore_resources::stats::Logs;

/// The metric for those pods.
pub(super) fn page(pods: &[Arc<Pod>], logs: &Logs) -> String {
    let there: HashSet<&str> = pods.iter().map(|pod| spec::uid(pod)).collect();
    let known = logs.iter().filter(|(pod, _)| there.contains(spec::uid(pod)));
    let mut known = known.filter(|(_, containers)| !containers.is_empty()).peekable();
    let mut text = Text::new();
    if known.peek().is_some() {
        let help = "Bytes that the logs of a container take.";
        let name = "kubelet_container_log_filesystem_used_bytes";
        let mut samples = text.family(name, help, Kind::Gauge);
        for (pod, containers) in known {
            for (container, space) in containers {
                let labels = [
                    ("uid", spec::uid(pod)),
                    ("namespace", spec::namespace(pod)),
                    ("pod", spec::name(pod)),
                    ("container", container),
                ];
                samples.add(&Labels::new(&labels), space.bytes as f64);
            }
        }
    }
    text.finish()
}
