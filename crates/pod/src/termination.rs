//! The order in which the containers of a terminating pod are stopped.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;

use crate::spec;

/// For each container that has to wait, the containers that must have exited before it is sent its
/// stop signal. All others are stopped at once.
///
/// Sidecars are stopped after the regular containers, in the reverse order of their start. A
/// container that is not running delays no other, and the wait counts as part of the grace period:
/// when that is over, nothing waits. preStop hooks run before the wait.
pub fn order(pod_spec: &PodSpec) -> BTreeMap<&str, Vec<&str>> {
    let mut earlier: Vec<&str> =
        pod_spec.containers.iter().map(|container| container.name.as_str()).collect();
    let sidecars = spec::init_containers(pod_spec).iter().filter(|c| spec::is_sidecar(c));
    let mut order = BTreeMap::new();
    for sidecar in sidecars.rev() {
        order.insert(sidecar.name.as_str(), earlier.clone());
        earlier.push(&sidecar.name);
    }
    order
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn termination_order_stops_sidecars_last_and_in_reverse() {
        let pod_spec: PodSpec = serde_json::from_value(json!({
            "initContainers": [
                {"name": "s1", "restartPolicy": "Always"},
                {"name": "i"},
                {"name": "s2", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "a"}, {"name": "b"}],
            "ephemeralContainers": [{"name": "e"}],
        }))
        .unwrap();
        let order = order(&pod_spec);
        assert_eq!(order.get("s2"), Some(&vec!["a", "b"]));
        assert_eq!(order.get("s1"), Some(&vec!["a", "b", "s2"]));
        assert_eq!(order.len(), 2, "no other container waits");
    }
}
