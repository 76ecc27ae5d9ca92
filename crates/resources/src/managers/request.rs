//! Requests to the resource managers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::qos::{self, QosClass};
use longshore_pod::spec::{self, ContainerKind};
use longshore_topology::{Amounts, ContainerRequest, Kind, OwnRequest, PodRequest};

/// The request of a pod. `manages_pods`: pod-level resources are managed (gate `PodLevelResourceManagers`).
pub(super) fn of(pod: &Pod, manages_pods: bool) -> PodRequest {
    let Some(pod_spec) = &pod.spec else { return PodRequest::default() };
    let has_own = has_own_resources(pod_spec);
    let is_managed = has_own && manages_pods;
    let container = |(kind, own)| match is_managed && !would_be_guaranteed(own) {
        true => sharing(kind, own),
        false => container(kind, own),
    };
    PodRequest {
        uid: spec::uid(pod).to_owned(),
        guaranteed: qos::class(pod) == QosClass::Guaranteed && (!has_own || manages_pods),
        own: is_managed.then(|| of_pod(pod_spec)),
        containers: spec::containers(pod_spec).map(container).collect(),
    }
}

/// The pod-level requests.
fn of_pod(pod_spec: &PodSpec) -> OwnRequest {
    let requests = pod_spec.resources.as_ref().and_then(|own| own.requests.as_ref());
    let mut memory = memory_of(requests);
    memory.retain(|_, size| *size > 0);
    OwnRequest { cpus: whole_cpus(requests).unwrap_or(0), memory }
}

/// Whether a pod of this container alone would be Guaranteed.
fn would_be_guaranteed(container: &Container) -> bool {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|own| own.limits.as_ref());
    let requests = qos::requests(container);
    ["cpu", "memory"].into_iter().all(|name| {
        let request = qos::milli_of(requests, name);
        request > 0 && request == qos::milli_of(limits, name)
    })
}

/// Requests by resource.
type Requests<'a> = Option<&'a BTreeMap<String, Quantity>>;

/// The CPUs, if their number is an integer.
fn whole_cpus(requests: Requests<'_>) -> Option<usize> {
    let cpu = qos::milli_of(requests, "cpu");
    (cpu % 1000 == 0).then(|| usize::try_from(cpu / 1000).unwrap_or(0))
}

fn memory_of(requests: Requests<'_>) -> Amounts {
    let names = requests.into_iter().flat_map(BTreeMap::keys).filter(|name| is_memory(name));
    let bytes = |name: &str| u64::try_from(qos::units_of(requests, name)).unwrap_or(0);
    names.map(|name| (name.clone(), bytes(name))).collect()
}

/// A container that requests nothing for itself.
fn sharing(kind: ContainerKind, container: &Container) -> ContainerRequest {
    let all = self::container(kind, container);
    ContainerRequest { cpus: None, memory: Amounts::new(), ..all }
}

fn container(kind: ContainerKind, container: &Container) -> ContainerRequest {
    let requests = qos::requests(container);
    ContainerRequest {
        name: container.name.clone(),
        kind: match kind {
            ContainerKind::Init => Kind::Init,
            ContainerKind::Sidecar => Kind::Sidecar,
            ContainerKind::Regular | ContainerKind::Ephemeral => Kind::Main,
        },
        cpus: whole_cpus(requests),
        memory: memory_of(requests),
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

    fn request_with(spec: Value, manages_pods: bool) -> PodRequest {
        let pod = json!({"metadata": {"uid": "u"}, "spec": spec});
        of(&serde_json::from_value(pod).unwrap(), manages_pods)
    }

    fn request(spec: Value) -> PodRequest {
        request_with(spec, false)
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

    #[test]
    fn pod_level_requests_are_managed_with_their_gate() {
        let amounts = json!({"cpu": "4", "memory": "8Mi", "hugepages-2Mi": "0"});
        let own = json!({"requests": amounts, "limits": amounts});
        let mut no_memory = container("m", "1");
        no_memory["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
        let mut burstable = container("b", "1");
        burstable["resources"]["requests"]["memory"] = json!("512Ki");
        let pod = json!({"resources": own, "containers": [
            container("own", "2"), {"name": "shares"}, burstable, no_memory, container("part", "500m"),
        ]});
        let found = request_with(pod.clone(), true);
        assert!(found.guaranteed);
        let memory = Amounts::from([("memory".to_owned(), 8 << 20)]);
        assert_eq!(found.own, Some(OwnRequest { cpus: 4, memory }));
        let seen: Vec<_> =
            found.containers.iter().map(|c| (&*c.name, c.cpus, c.memory.len())).collect();
        let expected = [
            ("own", Some(2), 2),
            ("shares", None, 0),
            ("b", None, 0),
            ("m", None, 0),
            ("part", None, 2),
        ];
        assert_eq!(seen, expected);
        let without = request_with(pod, false);
        assert_eq!((without.guaranteed, without.own), (false, None));
        let part = json!({"requests": {"cpu": "1500m", "memory": "1Mi"}, "limits": {"cpu": "1500m", "memory": "1Mi"}});
        let found = request_with(json!({"resources": part, "containers": [{"name": "c"}]}), true);
        assert_eq!(found.own.unwrap().cpus, 0, "not an integer");
        // Without pod-level resources nothing changes.
        let plain = json!({"containers": [container("c", "1"), {"name": "d"}]});
        assert_eq!(request_with(plain.clone(), true), request_with(plain, false));
    }
}
