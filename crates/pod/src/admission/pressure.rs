//! Pods that come while the node is short of something.

use k8s_openapi::api::core::v1::{Pod, Taint};

use super::preemption::is_critical;
use super::taints;
use crate::qos::{self, QosClass};
use crate::status::Verdict;

/// What the node is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Memory.
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// Why a pod is not taken in under pressure. What keeps the node alive always is; where only memory
/// is short, so is what says how much it needs.
pub(super) fn refuses(pod: &Pod, pressure: NodePressure, comparisons: bool) -> Option<Verdict> {
    let conditions: Vec<&str> = [
        (pressure.memory, "MemoryPressure"),
        (pressure.disk, "DiskPressure"),
        (pressure.pid, "PIDPressure"),
    ]
    .into_iter()
    .filter_map(|(holds, name)| holds.then_some(name))
    .collect();
    if conditions.is_empty() || is_critical(pod) {
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
