//! The changes of a resize, as labels of its metric.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::qos;
use crate::resources::List;
use crate::spec::{self, ContainerKind};

/// One change: the resource, whether of requests or limits, and the operation.
pub type Operation = [&'static str; 3];

type Of = fn(&Container) -> Option<&List>;
const LISTS: [(&str, Of); 2] = [("requests", qos::requests), ("limits", qos::limits)];

/// The changes between two states of a pod, container by container.
pub fn operations(before: &Pod, after: &Pod) -> Vec<Operation> {
    let (before, after) = (resizable(before), resizable(after));
    let mut all = Vec::new();
    for old in before {
        let Some(new) = after.iter().find(|new| new.name == old.name) else { continue };
        for resource in ["memory", "cpu"] {
            for (list, of) in LISTS {
                let amount = |container| qos::milli_of(of(container), resource);
                let operation = match (amount(old), amount(new)) {
                    (old, new) if old == new => continue,
                    (0, _) => "add",
                    (_, 0) => "remove",
                    (old, new) if new < old => "decrease",
                    _ => "increase",
                };
                all.push([resource, list, operation]);
            }
        }
    }
    all
}

fn resizable(pod: &Pod) -> Vec<&Container> {
    let kinds = [ContainerKind::Regular, ContainerKind::Sidecar];
    let containers = pod.spec.iter().flat_map(spec::containers);
    containers.filter(|(kind, _)| kinds.contains(kind)).map(|(_, container)| container).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn resize_operations_are_counted_per_changed_amount() {
        let pod = |init: Value, main: Value| -> Pod {
            serde_json::from_value(json!({"spec": {
                "initContainers": [
                    {"name": "i", "resources": init},
                    {"name": "s", "restartPolicy": "Always", "resources": init},
                ],
                "containers": [{"name": "c", "resources": main}],
            }}))
            .unwrap()
        };
        let small = json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1"}});
        let large = json!({"requests": {"cpu": "0.2"}, "limits": {"cpu": "500m", "memory": "2Gi"}});
        let none = json!({});
        let found = |before: &Pod, after: &Pod| operations(before, after);
        let same = pod(small.clone(), small.clone());
        assert_eq!(found(&same, &same), [] as [Operation; 0]);
        assert_eq!(
            found(&pod(none.clone(), small.clone()), &pod(none.clone(), large)),
            [
                ["memory", "requests", "remove"],
                ["memory", "limits", "add"],
                ["cpu", "requests", "increase"],
                ["cpu", "limits", "decrease"],
            ]
        );
        assert_eq!(
            found(&pod(none.clone(), none.clone()), &pod(small, none)),
            [["memory", "requests", "add"], ["cpu", "requests", "add"], ["cpu", "limits", "add"],],
            "of init containers, sidecars alone are resized"
        );
    }
}
