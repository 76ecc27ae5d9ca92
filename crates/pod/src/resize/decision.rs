//! Whether the requested resources of a pod can be allocated, and the order of pending resizes.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;

use super::same;
use crate::qos::{self, QosClass};
use crate::resources::{List, requests};
use crate::spec;

/// Properties of the node that forbid resizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Containers may swap in proportion to their requests (`LimitedSwap`, if the machine has
    /// swap).
    pub limited_swap: bool,
    /// Guaranteed pods have exclusive CPUs, which do not change while they run.
    pub static_cpus: bool,
    /// The same for memory.
    pub static_memory: bool,
    /// Whether pod-level resources can be resized.
    pub pod_level: bool,
}

/// Why a resize is infeasible. The texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// The swap limits of its containers depend on their requests.
    #[error("In-place resize of containers with swap is not supported.")]
    Swap,
    /// Pod-level resources cannot be resized.
    #[error("InPlacePodLevelResourcesVerticalScaling is disabled")]
    PodLevel,
    /// It has exclusive CPUs.
    #[error("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"")]
    Cpus,
    /// It has exclusive memory.
    #[error("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"")]
    Memory,
}

impl Infeasible {
    /// The label in upstream's metric.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Swap => "swap_limitation",
            Self::PodLevel => "plr_feature_gate_off",
            Self::Cpus => "guaranteed_pod_cpu_manager_static_policy",
            Self::Memory => "guaranteed_pod_memory_manager_static_policy",
        }
    }
}

/// Why the pod cannot be resized from `allocated` to its spec, if it cannot.
pub fn infeasible(pod: &Pod, allocated: &Pod, rules: Rules) -> Option<Infeasible> {
    let (requested, current) = (pod.spec.as_ref()?, allocated.spec.as_ref()?);
    let pairs = || {
        let pairs = spec::containers(requested).zip(spec::containers(current));
        pairs.map(|((_, requested), (_, current))| (requested, current))
    };
    let memory_changes = |(requested, current): (&Container, &Container)| {
        request_changes(requested, current, "memory")
    };
    let swaps = |requested: &Container, current: &Container| {
        memory_changes((requested, current))
            && !restarts(current, "memory")
            && (qos::may_swap(pod, requested) || qos::may_swap(allocated, current))
    };
    if rules.limited_swap && pairs().any(|(requested, current)| swaps(requested, current)) {
        return Some(Infeasible::Swap);
    }
    if !rules.pod_level && !same(requested.resources.as_ref(), current.resources.as_ref()) {
        return Some(Infeasible::PodLevel);
    }
    let guaranteed = qos::class(pod) == QosClass::Guaranteed;
    if guaranteed && rules.static_cpus && pairs().any(|(a, b)| request_changes(a, b, "cpu")) {
        return Some(Infeasible::Cpus);
    }
    if guaranteed && rules.static_memory && pairs().any(memory_changes) {
        return Some(Infeasible::Memory);
    }
    None
}

fn request_changes(requested: &Container, current: &Container, resource: &str) -> bool {
    let request = |of| qos::milli_of(qos::requests(of), resource);
    request(requested) != request(current)
}

/// Whether a change of that resource requires a restart of the container.
pub(crate) fn restarts(container: &Container, resource: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    let own = policies.find(|policy| policy.resource_name == resource);
    own.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

type Count = fn(&List) -> i64;

/// The resources that can be resized, and how they are counted.
const COUNTED: [Count; 2] = [
    |list| i64::try_from(qos::milli_of(Some(list), "cpu")).unwrap_or(i64::MAX),
    |list| qos::units_of(Some(list), "memory"),
];

/// The order of pending resizes; the least is the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// A resize that increases nothing always fits.
    increases: bool,
    priority: Reverse<i32>,
    burstable: bool,
    /// The one that has waited longest first.
    since: Timestamp,
}

impl Rank {
    /// The rank of a pod with the resources of `allocated` that has waited since then.
    pub fn new(pod: &Pod, allocated: &Pod, since: Option<Timestamp>) -> Self {
        let of = |pod: &Pod| pod.spec.as_ref().map(requests).unwrap_or_default();
        let (requested, current) = (of(pod), of(allocated));
        Self {
            increases: COUNTED.iter().any(|count| count(&requested) > count(&current)),
            priority: Reverse(pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)),
            burstable: qos::class(pod) != QosClass::Guaranteed,
            since: since.unwrap_or(Timestamp::MAX),
        }
    }
}
