//! Requests to the resource managers.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use longshore_pod::qos::{self, QosClass};
use longshore_pod::spec::{self, ContainerKind};
use longshore_topology::{Amounts, ContainerRequest, Kind, PodRequest};

/// The request of a pod.
pub(super) fn of(pod: &Pod) -> PodRequest {
    let Some(pod_spec) = &pod.spec else { return PodRequest::default() };
    PodRequest {
        uid: spec::uid(pod).to_owned(),
        guaranteed: qos::class(pod) == QosClass::Guaranteed && !has_own_resources(pod_spec),
        containers: spec::containers(pod_spec).map(|(kind, own)| container(kind, own)).collect(),
    }
}

fn container(kind: ContainerKind, container: &Container) -> ContainerRequest {
    let requests = qos::requests(container);
    let cpu = qos::milli_of(requests, "cpu");
    let memory = requests.into_iter().flatten().filter(|(name, _)| is_memory(name));
    let bytes = |name: &str| u64::try_from(qos::units_of(requests, name)).unwrap_or(0);
    ContainerRequest {
        name: container.name.clone(),
        kind: match kind {
            ContainerKind::Init => Kind::Init,
            ContainerKind::Sidecar => Kind::Sidecar,
            ContainerKind::Regular | ContainerKind::Ephemeral => Kind::Main,
        },
        cpus: (cpu % 1000 == 0).then(|| usize::try_from(cpu / 1000).unwrap_or(0)),
        memory: memory.map(|(name, _)| (name.clone(), bytes(name))).collect::<Amounts>(),
    }
}

fn is_memory(resource: &str) -> bool {
    resource == "memory" || resource.starts_with("hugepages-")
}

/// Whether the pod has pod-level resources.
fn has_own_resources(pod_spec: &PodSpec) -> bool {
    let lists = pod_spec.resources.iter().flat_map(|own| [&own.requests, &own.limits]);
    lists.flatten().flatten().any(|(name, _)| name == "cpu" || is_memory(name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(spec: Value) -> PodRequest {
        of(&serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap())
    }

    fn container(name: &str, cpu: &str) -> Value {
        let amounts = json!({"cpu": cpu, "memory": "1Mi", "hugepages-2Mi": "2Mi"});
        json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
    }

    #[test]
    fn cpu_request_of_guaranteed_pods() {
        let mut sidecar = container("s", "2000m");
        sidecar["restartPolicy"] = json!("Always");
        let init = [container("i", "1"), sidecar];
        let found =
            request(json!({"initContainers": init, "containers": [container("c", "1500m")]}));
        assert!(found.guaranteed);
        let seen: Vec<_> = found.containers.iter().map(|c| (&*c.name, c.kind, c.cpus)).collect();
        let expected =
            [("i", Kind::Init, Some(1)), ("s", Kind::Sidecar, Some(2)), ("c", Kind::Main, None)];
        assert_eq!(seen, expected);
        let memory = Amounts::from([("memory".into(), 1 << 20), ("hugepages-2Mi".into(), 2 << 20)]);
        assert_eq!(found.containers[2].memory, memory);
    }

    #[test]
    fn cpu_request_of_shared_pods() {
        assert!(!request(json!({"containers": [{"name": "c"}]})).guaranteed);
        let own = json!({"limits": {"cpu": "2", "memory": "2Mi"}});
        let found = request(json!({"resources": own, "containers": [container("c", "1")]}));
        assert!(!found.guaranteed, "the pod has resources of its own");
    }
}
