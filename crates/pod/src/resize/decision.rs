//! Whether a pod can be given the resources that it asks for now, and which pod's turn it is.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;

use super::same;
use crate::qos::{self, QosClass};
use crate::resources::{List, requests};
use crate::spec;

/// What of the node forbids a resize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Containers may have swap by their requests (`LimitedSwap`, where the machine has it).
    pub limited_swap: bool,
    /// Guaranteed pods have CPUs of their own, and nothing gives them others while they run.
    pub static_cpus: bool,
    /// The same for memory.
    pub static_memory: bool,
    /// Whether what a pod asks for as a whole can be resized.
    pub pod_level: bool,
}

/// Why a pod can never be given what it asks for. The texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// Its containers may swap as much as follows from what they have.
    #[error("In-place resize of containers with swap is not supported.")]
    Swap,
    /// What it asks for as a whole is not resized here.
    #[error("InPlacePodLevelResourcesVerticalScaling is disabled")]
    PodLevel,
    /// It has CPUs of its own.
    #[error("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"")]
    Cpus,
    /// It has memory of its own.
    #[error("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"")]
    Memory,
}

impl Infeasible {
    /// The label that upstream counts it under.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Swap => "swap_limitation",
            Self::PodLevel => "plr_feature_gate_off",
            Self::Cpus => "guaranteed_pod_cpu_manager_static_policy",
            Self::Memory => "guaranteed_pod_memory_manager_static_policy",
        }
    }
}

/// Why the pod can never be given what it asks for instead of what it has, if it cannot.
pub fn infeasible(pod: &Pod, allocated: &Pod, rules: Rules) -> Option<Infeasible> {
    let (asks, has) = (pod.spec.as_ref()?, allocated.spec.as_ref()?);
    let pairs = || {
        let pairs = spec::containers(asks).zip(spec::containers(has));
        pairs.map(|((_, asks), (_, has))| (asks, has))
    };
    let memory_moves = |(asks, has): (&Container, &Container)| request_moves(asks, has, "memory");
    let swaps = |asks: &Container, has: &Container| {
        memory_moves((asks, has))
            && !restarts(has, "memory")
            && (qos::may_swap(pod, asks) || qos::may_swap(allocated, has))
    };
    if rules.limited_swap && pairs().any(|(asks, has)| swaps(asks, has)) {
        return Some(Infeasible::Swap);
    }
    if !rules.pod_level && !same(asks.resources.as_ref(), has.resources.as_ref()) {
        return Some(Infeasible::PodLevel);
    }
    let guaranteed = qos::class(pod) == QosClass::Guaranteed;
    if guaranteed && rules.static_cpus && pairs().any(|(a, b)| request_moves(a, b, "cpu")) {
        return Some(Infeasible::Cpus);
    }
    if guaranteed && rules.static_memory && pairs().any(memory_moves) {
        return Some(Infeasible::Memory);
    }
    None
}

fn request_moves(asks: &Container, has: &Container, resource: &str) -> bool {
    let request = |of| qos::milli_of(qos::requests(of), resource);
    request(asks) != request(has)
}

/// Whether a change of that resource takes a restart of the container.
pub(crate) fn restarts(container: &Container, resource: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    let own = policies.find(|policy| policy.resource_name == resource);
    own.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

type Count = fn(&List) -> i64;

/// The resources that a resize can change, and how they are counted.
const COUNTED: [Count; 2] = [
    |list| i64::try_from(qos::milli_of(Some(list), "cpu")).unwrap_or(i64::MAX),
    |list| qos::units_of(Some(list), "memory"),
];

/// A pod's place among those that wait to be resized; the least is the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Who asks for no more than it has always fits.
    increases: bool,
    priority: Reverse<i32>,
    burstable: bool,
    /// Who has waited longer.
    since: Timestamp,
}

impl Rank {
    /// The place of a pod that has what `allocated` says, and waits since then.
    pub fn new(pod: &Pod, allocated: &Pod, since: Option<Timestamp>) -> Self {
        let of = |pod: &Pod| pod.spec.as_ref().map(requests).unwrap_or_default();
        let (asks, has) = (of(pod), of(allocated));
        Self {
            increases: COUNTED.iter().any(|count| count(&asks) > count(&has)),
            priority: Reverse(pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)),
            burstable: qos::class(pod) != QosClass::Guaranteed,
            since: since.unwrap_or(Timestamp::MAX),
        }
    }
}
