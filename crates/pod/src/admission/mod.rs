//! Whether the node takes a pod in: what the kernel and the runtime can do for it, whether it fits
//! beside the pods that are there, and who has to make way if it must come in. Asked before
//! anything is done for a pod; the answer is told as its status.
//!
//! Current limitations: resources that DRA stands for are counted like any other.

mod abilities;
mod affinity;
mod amounts;
mod fit;
mod ledger;
mod ports;
mod preemption;
mod pressure;
mod sysctls;
mod taints;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::spec;
use crate::status::Verdict;

pub use crate::eviction::NodePressure;
pub use abilities::Abilities;
pub use affinity::selects_node;
pub use amounts::Amounts;
pub use fit::NodeView;
pub use ledger::{Ledger, Reservation, Ticket};
pub use preemption::preempted;
pub use sysctls::{Error, Sysctls};

/// What is decided about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It is taken in.
    Admit {
        /// Pods that have to end for it.
        victims: Vec<Ticket>,
        /// Whether it needs what victims, these or those of an earlier pod, hold until they end.
        waits: bool,
        /// What victims have to end for: the first resource that is short.
        lacking: Option<String>,
    },
    /// It is not.
    Refuse {
        /// What its status says.
        verdict: Verdict,
        /// Whether nothing but the labels of the node speaks against it.
        by_labels: bool,
    },
}

/// What a decision depends on besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionContext<'a> {
    /// What can be done for pods here.
    pub abilities: &'a Abilities,
    /// The node as it is now.
    pub node: &'a NodeView<'a>,
    /// The pods that are there.
    pub ledger: &'a Ledger,
    /// What the node is short of.
    pub pressure: NodePressure,
}

/// Decide about a new pod, in upstream's order: the first thing that speaks against it is told.
/// `managers` say whether it can have CPUs and memory for itself, and are asked in their turn.
/// Nobody has to make way for a pod that is refused all the same.
pub fn decide(
    pod: &Pod,
    terms: &AdmissionContext<'_>,
    managers: impl FnOnce(&Pod) -> Result<(), Verdict>,
) -> Decision {
    let refuse = |verdict| Decision::Refuse { verdict, by_labels: false };
    let Some(pod_spec) = &pod.spec else {
        return Decision::Admit { victims: vec![], waits: false, lacking: None };
    };
    let first = pressure::refuses(pod, terms.pressure, terms.abilities.toleration_comparisons)
        .or_else(|| terms.abilities.refuses_first(pod, pod_spec))
        .or_else(|| managers(pod).err());
    if let Some(verdict) = first {
        return refuse(verdict);
    }
    let decision = fit_in(pod, terms);
    match (&decision, terms.abilities.refuses_last(pod, pod_spec)) {
        (Decision::Admit { .. }, Some(verdict)) => refuse(verdict),
        _ => decision,
    }
}

/// A place for the pod, if need be one that others give up.
fn fit_in(pod: &Pod, terms: &AdmissionContext<'_>) -> Decision {
    let AdmissionContext { abilities, node, ledger, .. } = *terms;
    let new = Reservation::resized(pod);
    let misfits = |used| fit::misfits(pod, &new, node, used, abilities.toleration_comparisons);
    let found = misfits(ledger.in_use());
    let Some(first) = found.first() else {
        return Decision::Admit { victims: vec![], waits: false, lacking: None };
    };
    let by_labels = found.iter().all(fit::Misfit::is_of_labels);
    let refuse = |verdict| Decision::Refuse { verdict, by_labels };
    if !spec::is_critical(pod) {
        return refuse(first.verdict());
    }
    // What lacks is made room for; nothing else gives way.
    if let Some(other) = found.iter().find(|misfit| misfit.lack().is_none()) {
        return refuse(other.verdict());
    }
    let still = misfits(ledger.in_use_later());
    let lacks: Vec<_> = still.iter().filter_map(fit::Misfit::lack).collect();
    match preemption::victims(pod, ledger, &lacks) {
        Ok(victims) => {
            let lacking = lacks.first().map(|lack| lack.resource.clone());
            Decision::Admit { victims, waits: true, lacking }
        }
        Err(reason) => refuse(Verdict::failed(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {reason}"
            ),
        )),
    }
}

/// Why a pod that is there, and that the ledger is asked without, may not have what it requests now.
pub fn refuses_resize(pod: &Pod, terms: &AdmissionContext<'_>) -> Option<Verdict> {
    let AdmissionContext { abilities, node, ledger, pressure } = *terms;
    pressure::refuses(pod, pressure, abilities.toleration_comparisons).or_else(|| {
        let comparisons = abilities.toleration_comparisons;
        let found =
            fit::misfits(pod, &Reservation::resized(pod), node, ledger.in_use(), comparisons);
        found.into_iter().find(|misfit| misfit.lack().is_some()).map(|misfit| misfit.verdict())
    })
}

/// Whether a node has taken the pod in before: no pod without that gets a start time, unless it is
/// refused, which is its end.
pub fn was_admitted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    status.is_some_and(|status| status.start_time.is_some()) && !crate::status::is_final(phase)
}

/// Sorts pods that are found together: those that were taken in before keep what they have, and
/// of the others, who came first is served first.
pub fn turn(pod: &Pod) -> (bool, Option<Timestamp>) {
    (!was_admitted(pod), pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// The reason under which a refusal is counted: those that can be of any name share one.
pub fn counted_reason(reason: &str) -> &str {
    const KNOWN: [&str; 20] = [
        "AppArmor",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
        "InvalidNodeInfo",
        "InitContainerRestartPolicyForbidden",
        "SupplementalGroupsPolicyNotSupported",
        "UnexpectedAdmissionError",
        "UnknownReason",
        "UnexpectedPredicateFailureType",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "PodLevelResourcesNotSupported",
        "PodFeatureUnsupported",
        "Evicted",
        "SysctlForbidden",
        "TopologyAffinityError",
        "NodeShutdown",
        "VolumeAttachmentLimitExceeded",
    ];
    match reason {
        reason if KNOWN.contains(&reason) => reason,
        reason if reason.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests;
