//! Admission of pods: whether kernel and runtime support what a pod needs, whether it fits on the
//! node, and which pods are preempted for a critical one. Pods are checked before anything is set
//! up for them; the result is reported in their status.
//!
//! Current limitations: resources that are backed by DRA are counted like any other.

mod affinity;
mod amounts;
mod capabilities;
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
pub use affinity::selects_node;
pub use amounts::Amounts;
pub use capabilities::{NodeCapabilities, missing_features};
pub use fit::NodeView;
pub use ledger::{Ledger, Reservation, Ticket};
pub use preemption::preemption_verdict;
pub use sysctls::{Error, Sysctls};

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It is admitted.
    Admit {
        /// Pods that are preempted for it.
        victims: Vec<Ticket>,
        /// Whether it has to wait until preempted pods (of this or an earlier decision) have ended.
        waits: bool,
        /// The first insufficient resource, for which the victims are preempted.
        insufficient: Option<String>,
    },
    /// It is rejected.
    Reject {
        /// Phase, reason and message for its status.
        verdict: Verdict,
        /// Whether only the node's labels are the reason.
        by_labels: bool,
    },
}

/// What a decision depends on besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionContext<'a> {
    /// What the node supports.
    pub capabilities: &'a NodeCapabilities,
    /// The node as it is now.
    pub node: &'a NodeView<'a>,
    /// The pods that are admitted already.
    pub ledger: &'a Ledger,
    /// The pressure conditions of the node.
    pub pressure: NodePressure,
}

/// Decide about a new pod; the first check that fails, in upstream's order, gives the reason.
/// `managers` asks the CPU and memory managers in their turn. No pod is preempted for one that is
/// rejected anyway.
pub fn decide(
    pod: &Pod,
    context: &AdmissionContext<'_>,
    managers: impl FnOnce(&Pod) -> Result<(), Verdict>,
) -> Decision {
    let reject = |verdict| Decision::Reject { verdict, by_labels: false };
    let Some(pod_spec) = &pod.spec else {
        return Decision::Admit { victims: vec![], waits: false, insufficient: None };
    };
    let first = pressure::check(pod, context.pressure, context.capabilities.toleration_comparisons)
        .or_else(|| context.capabilities.check_before_fit(pod, pod_spec))
        .or_else(|| managers(pod).err());
    if let Some(verdict) = first {
        return reject(verdict);
    }
    let decision = fit_on_node(pod, context);
    match (&decision, context.capabilities.check_after_fit(pod, pod_spec)) {
        (Decision::Admit { .. }, Some(verdict)) => reject(verdict),
        _ => decision,
    }
}

/// Whether the pod fits, if need be after a preemption.
fn fit_on_node(pod: &Pod, context: &AdmissionContext<'_>) -> Decision {
    let AdmissionContext { capabilities, node, ledger, .. } = *context;
    let new = Reservation::resized(pod);
    let failures = |used| fit::failures(pod, &new, node, used, capabilities.toleration_comparisons);
    let found = failures(ledger.in_use());
    let Some(first) = found.first() else {
        return Decision::Admit { victims: vec![], waits: false, insufficient: None };
    };
    let by_labels = found.iter().all(fit::PredicateFailure::is_by_labels);
    let reject = |verdict| Decision::Reject { verdict, by_labels };
    if !spec::is_critical(pod) {
        return reject(first.verdict());
    }
    // Preemption can free resources and nothing else.
    if let Some(other) = found.iter().find(|failure| failure.insufficient_resource().is_none()) {
        return reject(other.verdict());
    }
    let remaining = failures(ledger.in_use_after_preemption());
    let resources: Vec<_> =
        remaining.iter().filter_map(fit::PredicateFailure::insufficient_resource).collect();
    match preemption::victims(pod, ledger, &resources) {
        Ok(victims) => {
            let insufficient = resources.first().map(|one| one.resource.clone());
            Decision::Admit { victims, waits: true, insufficient }
        }
        Err(reason) => reject(Verdict::failed(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {reason}"
            ),
        )),
    }
}

/// Why the resize of a running pod is refused. The ledger must not hold the pod's own reservation.
pub fn check_resize(pod: &Pod, context: &AdmissionContext<'_>) -> Option<Verdict> {
    let AdmissionContext { capabilities, node, ledger, pressure } = *context;
    pressure::check(pod, pressure, capabilities.toleration_comparisons).or_else(|| {
        let comparisons = capabilities.toleration_comparisons;
        let found =
            fit::failures(pod, &Reservation::resized(pod), node, ledger.in_use(), comparisons);
        found
            .into_iter()
            .find(|failure| failure.insufficient_resource().is_some())
            .map(|failure| failure.verdict())
    })
}

/// Whether the pod was admitted before: it has a start time. A rejected pod has one too, but its
/// phase is final.
pub fn was_admitted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    status.is_some_and(|status| status.start_time.is_some()) && !crate::status::is_final(phase)
}

/// Sort key for pods that are found together: those admitted before first, then the oldest.
pub fn admission_order(pod: &Pod) -> (bool, Option<Timestamp>) {
    (!was_admitted(pod), pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// The reason label of a rejection in metrics: extended resources share one, as do unknown reasons.
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
