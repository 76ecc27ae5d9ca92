//! Quality of service classes, and the OOM score that follows from them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub use crate::quantity::{limits, milli, milli_of, requests, units_of};
use crate::{resources, spec};

/// The QoS class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QosClass {
    /// Every container has CPU and memory limits, and its requests equal them.
    Guaranteed,
    /// Some container requests or limits CPU or memory.
    Burstable,
    /// No container does.
    BestEffort,
}

impl QosClass {
    /// The name in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

type List = BTreeMap<String, Quantity>;

/// Whether a container may use swap under `LimitedSwap`: not in critical pods, and only in
/// burstable pods if its memory request differs from its limit.
pub fn may_swap(pod: &Pod, container: &Container) -> bool {
    let amount = |list| units_of(list, "memory");
    !spec::is_critical(pod)
        && class(pod) == QosClass::Burstable
        && amount(requests(container)) != amount(limits(container))
}

/// The class of a pod: the one in its status (it never changes), or the one that follows from its
/// resources.
pub fn class(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => return QosClass::Guaranteed,
        Some("Burstable") => return QosClass::Burstable,
        Some("BestEffort") => return QosClass::BestEffort,
        _ => {}
    }
    let Some(pod_spec) = &pod.spec else { return QosClass::BestEffort };
    let sets: Vec<(Option<&List>, Option<&List>)> = match &pod_spec.resources {
        Some(own) if own.limits.is_some() || own.requests.is_some() => {
            vec![(own.requests.as_ref(), own.limits.as_ref())]
        }
        _ => spec::containers(pod_spec).map(|(_, c)| (requests(c), limits(c))).collect(),
    };
    let mut any = false;
    let mut guaranteed = true;
    for (requests, limits) in sets {
        for resource in ["cpu", "memory"] {
            let (request, limit) = (milli_of(requests, resource), milli_of(limits, resource));
            any |= request > 0 || limit > 0;
            // A request that is not set equals the limit.
            let request = if request == 0 { limit } else { request };
            guaranteed &= limit > 0 && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// The `oom_score_adj` of a container on a node with that much memory (bytes).
///
/// A burstable container that stays within its request should outlive those that do not: the higher
/// its share of the node's memory, the lower its score.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    if spec::is_node_critical(pod) {
        return GUARANTEED;
    }
    let Some(pod_spec) = &pod.spec else { return BEST_EFFORT };
    match class(pod) {
        QosClass::Guaranteed => return GUARANTEED,
        QosClass::BestEffort => return BEST_EFFORT,
        QosClass::Burstable => {}
    }
    let request = |container| i128::from(units_of(requests(container), "memory"));
    let mut requested = request(container);
    let is_sidecar = spec::is_sidecar(container)
        && spec::init_containers(pod_spec).iter().any(|init| init.name == container.name);
    if is_sidecar {
        // A sidecar is killed no sooner than the regular containers.
        requested = requested.max(pod_spec.containers.iter().map(request).min().unwrap_or(0));
    }
    requested += share_of_pod_level(pod_spec);
    let score = 1000 - 1000 * requested / i128::from(memory_capacity.max(1));
    // Never below what is kept for guaranteed pods, never equal to best effort.
    let score = score.clamp(1000 + i128::from(GUARANTEED), i128::from(BEST_EFFORT) - 1);
    i64::try_from(score).unwrap_or(BEST_EFFORT - 1)
}

/// The part of the pod-level memory request above those of its containers, per container (bytes).
fn share_of_pod_level(pod_spec: &PodSpec) -> i128 {
    let own = pod_spec.resources.as_ref().and_then(|own| own.requests.as_ref());
    let whole = i128::from(units_of(own, "memory"));
    let containers = pod_spec.containers.len() + spec::init_containers(pod_spec).len();
    if whole == 0 || containers == 0 {
        return 0;
    }
    let requested = units_of(Some(&resources::container_requests(pod_spec)), "memory");
    (whole - i128::from(requested)) / containers as i128
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: i64 = 1 << 30;

    fn container(name: &str, request: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"memory": request}}})
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    /// The score of the named container on a node with ten GiB.
    fn score(pod: &Pod, name: &str) -> i64 {
        let (_, container) = spec::container(pod, name).unwrap();
        oom_score_adj(pod, &container, 10 * GIB)
    }

    #[test]
    fn oom_score_of_burstable_containers_follows_memory_requests() {
        for (request, expected) in [
            ("0", 999),
            ("1Ki", 999),
            ("1Gi", 900),
            ("5Gi", 500),
            ("9999Mi", 24),
            ("10Gi", 3),
            ("100Gi", 3),
        ] {
            let other = container("other", "1Mi");
            let pod = pod(json!({"containers": [container("c", request), other]}));
            assert_eq!(score(&pod, "c"), expected, "{request}");
        }
    }

    #[test]
    fn oom_score_of_guaranteed_and_best_effort_is_fixed() {
        let exact = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = pod(json!({"containers": [
            {"name": "c", "resources": {"requests": exact, "limits": exact}},
        ]}));
        assert_eq!(score(&guaranteed, "c"), -997);
        assert_eq!(score(&pod(json!({"containers": [{"name": "c"}]})), "c"), 1000);
    }

    #[test]
    fn oom_score_of_critical_pods() {
        for (class, priority, source, expected) in [
            ("system-node-critical", 2_000_001_000, "api", -997),
            ("system-cluster-critical", 2_000_000_000, "api", 1000),
            ("system-node-critical", 0, "api", 1000),
            ("system-node-critical", 0, "file", -997),
            ("", 0, "file", 1000),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"annotations": {spec::SOURCE_ANNOTATION: source}},
                "spec": {
                    "priorityClassName": class, "priority": priority,
                    "containers": [{"name": "c"}],
                },
            }))
            .unwrap();
            assert_eq!(score(&pod, "c"), expected, "{class} {priority} {source}");
        }
    }

    #[test]
    fn oom_score_of_a_sidecar_is_not_above_regular_containers() {
        for (sidecar, regular, expected) in [
            ("1Gi", ["2Gi", "3Gi"], 800),
            ("4Gi", ["2Gi", "3Gi"], 600),
            ("1Gi", ["0", "3Gi"], 900),
            ("0", ["0", "3Gi"], 999),
        ] {
            let mut own = container("sidecar", sidecar);
            own["restartPolicy"] = json!("Always");
            let pod = pod(json!({
                "initContainers": [own],
                "containers": [container("a", regular[0]), container("b", regular[1])],
            }));
            assert_eq!(score(&pod, "sidecar"), expected, "{sidecar} {regular:?}");
        }
    }

    #[test]
    fn oom_score_shares_pod_level_memory() {
        let pod = pod(json!({
            "resources": {"requests": {"memory": "5Gi"}},
            "containers": [container("a", "1Gi"), container("b", "0")],
        }));
        assert_eq!((score(&pod, "a"), score(&pod, "b")), (700, 800));
    }
}
