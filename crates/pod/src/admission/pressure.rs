//! Admission while the node is under pressure.

use k8s_openapi::api::core::v1::{Pod, Taint};

use super::taints;
use crate::eviction::NodePressure;
use crate::qos::{self, QosClass};
use crate::spec;
use crate::status::Verdict;

/// Why a pod is rejected under pressure. Critical pods never are; under memory pressure alone,
/// neither are pods with requests.
pub(super) fn check(pod: &Pod, pressure: NodePressure, comparisons: bool) -> Option<Verdict> {
    let conditions: Vec<&str> = [
        (pressure.memory, "MemoryPressure"),
        (pressure.disk, "DiskPressure"),
        (pressure.pid, "PIDPressure"),
    ]
    .into_iter()
    .filter_map(|(holds, name)| holds.then_some(name))
    .collect();
    if conditions.is_empty() || spec::is_critical(pod) {
        return None;
    }
    if conditions == ["MemoryPressure"] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let spec = pod.spec.as_ref();
        if qos::class(pod) != QosClass::BestEffort
            || spec.is_some_and(|spec| taints::tolerates(spec, &taint, comparisons))
        {
            return None;
        }
    }
    let message = format!("The node had condition: [{}]. ", conditions.join(" "));
    Some(Verdict::failed("Evicted", message))
}
