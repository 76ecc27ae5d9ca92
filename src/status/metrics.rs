//! Metrics of pod statuses.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};

type Of = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;
/// The kinds of containers, as labelled.
const KINDS: [(&str, Of); 3] = [
    ("init_container", |status| &status.init_container_statuses),
    ("container", |status| &status.container_statuses),
    ("ephemeral_container", |status| &status.ephemeral_container_statuses),
];

/// Metrics of the status writer.
#[derive(Debug)]
pub(super) struct Metrics {
    /// From a change of a status to its acknowledgement.
    pub(super) durations: Histogram,
    terminated: Family<Counter, 3>,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            durations: registry.histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "From when a pod's status changed to when the apiserver took it, in seconds.",
                Buckets::of(&[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0]),
            ),
            terminated: registry.counters(
                "kubelet_terminated_containers_total",
                "Containers that have ended, by their kind, their exit code and the reason.",
                ["container_type", "exit_code", "reason"],
            ),
        }
    }

    /// Counts the containers that have terminated between two statuses.
    pub(super) fn observe(&self, before: &PodStatus, now: &PodStatus) {
        for (kind, of) in KINDS {
            for container in of(now).iter().flatten() {
                let mut known = of(before).iter().flatten();
                let known = known.find(|known| known.name == container.name).and_then(ended);
                if let (Some(end), None) = (ended(container), known) {
                    let (code, reason) = (end.exit_code.to_string(), end.reason.as_deref());
                    self.terminated.with([kind, &code, reason.unwrap_or_default()]).inc();
                }
            }
        }
    }
}

fn ended(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::parse;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn status_metrics_count_terminated_containers_once() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        let status = |init: Value, main: Value| -> PodStatus {
            let of = |name: &str, state: &Value| {
                json!({"name": name, "ready": false,
                "restartCount": 0, "image": "", "imageID": "", "state": state})
            };
            serde_json::from_value(json!({
                "initContainerStatuses": [of("i", &init)],
                "containerStatuses": [of("c", &main), of("d", &json!({"running": {}}))],
            }))
            .unwrap()
        };
        let (waits, runs) = (json!({"waiting": {}}), json!({"running": {}}));
        let end =
            |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
        let statuses = [
            PodStatus::default(),
            status(end(0, "Completed"), waits.clone()),
            status(end(0, "Completed"), runs.clone()),
            status(end(0, "Completed"), end(137, "OOMKilled")),
            status(end(0, "Completed"), end(137, "OOMKilled")),
            status(end(0, "Completed"), runs),
            status(end(0, "Completed"), end(137, "OOMKilled")),
        ];
        for pair in statuses.windows(2) {
            metrics.observe(&pair[0], &pair[1]);
        }
        let page = parse(&registry.text()).unwrap();
        let count = |kind, code, reason| {
            let labels = [("container_type", kind), ("exit_code", code), ("reason", reason)];
            page.sum("kubelet_terminated_containers_total", &labels)
        };
        assert_eq!(count("init_container", "0", "Completed"), Some(1.0));
        assert_eq!(count("container", "137", "OOMKilled"), Some(2.0));
        assert_eq!(page.sum("kubelet_terminated_containers_total", &[]), Some(3.0));
    }
}
