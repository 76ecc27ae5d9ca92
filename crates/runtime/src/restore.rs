//! Restores what must be known of a pod whose object is gone from the annotations of its
//! containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Lifecycle, Pod, PodSpec};
use longshore_pod::labels;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec::describe;
use tracing::debug;

use super::PodRuntime;

impl PodRuntime {
    /// The pod with the names and preStop hooks of its running containers, and its grace period.
    /// Invalid annotations are ignored.
    pub async fn restore(&self, pod: &Pod, observed: &ObservedPod) -> Pod {
        let mut pod = pod.clone();
        for run in observed.containers.iter().filter(|run| run.may_run()) {
            match self.cri.container_status(&run.id).await {
                Ok(status) => add(&mut pod, &run.name, &status.annotations),
                Err(error) => {
                    debug!(pod = describe(&pod), container = run.name, %error, "cannot restore a container from its annotations");
                }
            }
        }
        pod
    }
}

fn add(pod: &mut Pod, name: &str, annotations: &BTreeMap<String, String>) {
    let seconds = |key: &str| annotations.get(key).and_then(|text| text.parse::<i64>().ok());
    let deletion_grace = seconds(labels::DELETION_GRACE);
    let pre_stop =
        annotations.get(labels::PRE_STOP).and_then(|text| serde_json::from_str(text).ok());
    let container = Container {
        name: name.to_owned(),
        lifecycle: pre_stop.map(|hook| Lifecycle { pre_stop: Some(hook), ..Lifecycle::default() }),
        ports: annotations.get(labels::PORTS).and_then(|text| serde_json::from_str(text).ok()),
        ..Container::default()
    };
    if let Some(seconds) = deletion_grace {
        pod.metadata.deletion_grace_period_seconds = Some(seconds);
    }
    let pod_spec = pod.spec.get_or_insert_with(PodSpec::default);
    if let Some(seconds) = seconds(labels::TERMINATION_GRACE) {
        pod_spec.termination_grace_period_seconds = Some(seconds);
    }
    pod_spec.containers.push(container);
}

#[cfg(test)]
mod tests {
    use longshore_pod::spec;
    use serde_json::json;

    use super::*;

    #[test]
    fn restore_from_container_annotations() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"terminationGracePeriodSeconds": 7, "containers": [{
                "name": "c",
                "ports": [{"containerPort": 80, "name": "web"}],
                "lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/bye"}}},
            }]},
        }))
        .unwrap();
        let made = pod.spec.as_ref().unwrap().containers.first().unwrap();
        let annotations = labels::container_annotations(&pod, made, 0);
        let mut restored = Pod { metadata: pod.metadata.clone(), ..Pod::default() };
        add(&mut restored, "c", &annotations);
        assert_eq!(restored, pod);
        add(&mut restored, "d", &BTreeMap::from([(labels::PRE_STOP.to_owned(), "{".to_owned())]));
        let (_, other) = spec::container(&restored, "d").unwrap();
        assert_eq!(other.lifecycle, None, "what cannot be read is left out");
    }
}
