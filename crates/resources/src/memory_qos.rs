//! The feature `MemoryQoS` for containers: `memory.min`/`memory.low` and `memory.high`. On cgroup
//! v2 only.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_pod::qos::{self, QosClass, units_of};

/// How memory of containers is protected and throttled.
#[derive(Clone, Debug)]
pub struct MemoryQos {
    /// Whether memory requests are protected.
    pub tiered: bool,
    /// The position of `memory.high` between request and limit, from 0 to 1.
    pub throttling_factor: f64,
    /// Bytes used as the limit of containers without one.
    pub allocatable: i64,
}

impl MemoryQos {
    /// Add a container's values by the names of the kernel's files.
    pub fn apply(&self, pod: &Pod, container: &Container, unified: &mut BTreeMap<String, String>) {
        let request = units_of(qos::requests(container), "memory");
        let limit = units_of(qos::limits(container), "memory");
        let mut set = |file: &str, value: i64| unified.insert(file.to_owned(), value.to_string());
        match (self.tiered && request != 0, qos::class(pod)) {
            (true, QosClass::Guaranteed) => drop(set("memory.min", request)),
            (true, _) => drop(set("memory.low", request)),
            (false, _) => {
                set("memory.min", 0);
                set("memory.low", 0);
            }
        }
        // No throttling if the limit equals the request.
        if request == limit {
            return;
        }
        let most = if limit == 0 { self.allocatable } else { limit };
        let high = request as f64 + most.saturating_sub(request) as f64 * self.throttling_factor;
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let high = ((high / page as f64).floor() as i64).saturating_mul(page);
        if most > 0 && high > request {
            set("memory.high", high);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_qos_memory_high() {
        let page = i64::try_from(rustix::param::page_size()).unwrap();
        let pages = |count: i64| (count * page).to_string();
        // What is requested and may be used at most, in pages; 0 for nothing said.
        for (tiered, request, limit, expected) in [
            (true, 100, 200, vec![("memory.high", 190), ("memory.low", 100)]),
            (false, 100, 200, vec![("memory.high", 190), ("memory.low", 0), ("memory.min", 0)]),
            // By the node's allocatable, 1000 pages.
            (true, 100, 0, vec![("memory.high", 910), ("memory.low", 100)]),
            (true, 0, 200, vec![("memory.high", 180), ("memory.low", 0), ("memory.min", 0)]),
            (true, 1, 2, vec![("memory.low", 1)]),
            (true, 100, 100, vec![("memory.min", 100)]),
            (true, 2000, 0, vec![("memory.low", 2000)]),
        ] {
            let amounts = |count: i64| match count {
                0 => json!({}),
                count => json!({"memory": pages(count), "cpu": "1"}),
            };
            let resources = json!({"requests": amounts(request), "limits": amounts(limit)});
            let pod: Pod = serde_json::from_value(json!({
                "spec": {"containers": [{"name": "c", "resources": resources}]},
            }))
            .unwrap();
            let qos = MemoryQos { tiered, throttling_factor: 0.9, allocatable: 1000 * page };
            let mut unified = BTreeMap::new();
            qos.apply(&pod, &pod.spec.as_ref().unwrap().containers[0], &mut unified);
            let expected: BTreeMap<_, _> =
                expected.into_iter().map(|(file, n)| (file.to_owned(), pages(n))).collect();
            assert_eq!(unified, expected, "{tiered} {request} {limit}");
        }
    }
}
