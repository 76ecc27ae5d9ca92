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

/// Why the pod can never be given what it asks for instead of what it has, if it cannot.
pub fn infeasible(pod: &Pod, allotted: &Pod, rules: Rules) -> Option<String> {
    let (asks, has) = (pod.spec.as_ref()?, allotted.spec.as_ref()?);
    let pairs = || {
        let pairs = spec::containers(asks).zip(spec::containers(has));
        pairs.map(|((_, asks), (_, has))| (asks, has))
    };
    let memory_moves = |(asks, has): (&Container, &Container)| request_moves(asks, has, "memory");
    let swaps = |asks: &Container, has: &Container| {
        memory_moves((asks, has))
            && !restarts(has, "memory")
            && (qos::may_swap(pod, asks) || qos::may_swap(allotted, has))
    };
    if rules.limited_swap && pairs().any(|(asks, has)| swaps(asks, has)) {
        return Some("In-place resize of containers with swap is not supported.".to_owned());
    }
    if !rules.pod_level && !same(asks.resources.as_ref(), has.resources.as_ref()) {
        return Some("InPlacePodLevelResourcesVerticalScaling is disabled".to_owned());
    }
    let guaranteed = qos::class(pod) == QosClass::Guaranteed;
    if guaranteed && rules.static_cpus && pairs().any(|(a, b)| request_moves(a, b, "cpu")) {
        return Some(stands_against("CPU", "static"));
    }
    if guaranteed && rules.static_memory && pairs().any(memory_moves) {
        return Some(stands_against("Memory", "Static"));
    }
    None
}

fn stands_against(manager: &str, policy: &str) -> String {
    format!(
        "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy {policy:?}"
    )
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
    /// The place of a pod that has what `allotted` says, and waits since then.
    pub fn new(pod: &Pod, allotted: &Pod, since: Option<Timestamp>) -> Self {
        let of = |pod: &Pod| pod.spec.as_ref().map(requests).unwrap_or_default();
        let (asks, has) = (of(pod), of(allotted));
        Self {
            increases: COUNTED.iter().any(|count| count(&asks) > count(&has)),
            priority: Reverse(pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)),
            burstable: qos::class(pod) != QosClass::Guaranteed,
            since: since.unwrap_or(Timestamp::MAX),
        }
    }
}
