//! What speaks against a pod beside the pods that are there.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::affinity::{self, Labels};
use super::amounts::{Amounts, is_extended};
use super::ledger::{InUse, Reservation};
use super::taints;
use crate::spec;
use crate::status::Verdict;

/// The node as it is now: what its object says.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    name: &'a str,
    labels: &'a Labels,
    taints: &'a [Taint],
    allocatable: Amounts,
}

static NO_LABELS: Labels = Labels::new();

impl<'a> NodeView<'a> {
    /// As `node` tells, but for the amounts that `own`, as the node sees itself, knows better: what
    /// an earlier daemon has told may not be true any more.
    pub fn new(node: &'a Node, own: &Node) -> Self {
        let allocatable = |node: &Node| {
            let status = node.status.as_ref();
            Amounts::new(status.and_then(|status| status.allocatable.as_ref()))
        };
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default(),
            labels: node.metadata.labels.as_ref().unwrap_or(&NO_LABELS),
            taints: taints.unwrap_or_default(),
            allocatable: allocatable(node).overruled_by(allocatable(own)),
        }
    }
}

/// Something of which too little is left. CPU in thousandths, all else in whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Lack {
    /// How much too little.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// One thing that speaks against a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    Lack(Lack),
    Affinity,
    Name,
    Ports,
    Taints,
}

impl Misfit {
    pub(super) fn lack(&self) -> Option<&Lack> {
        match self {
            Self::Lack(lack) => Some(lack),
            _ => None,
        }
    }

    /// Whether other labels would do away with it.
    pub(super) fn is_of_labels(&self) -> bool {
        *self == Self::Affinity
    }

    pub(super) fn verdict(&self) -> Verdict {
        let (predicate, why) = match self {
            Self::Lack(Lack { resource, requested, used, capacity }) => {
                let message = format!(
                    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
                );
                return Verdict::failed(format!("OutOf{resource}"), message);
            }
            Self::Affinity => ("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"),
            Self::Name => ("NodeName", "node(s) didn't match the requested node name"),
            Self::Ports => {
                ("NodePorts", "node(s) didn't have free ports for the requested pod ports")
            }
            Self::Taints => ("TaintToleration", "node(s) had taints that the pod didn't tolerate"),
        };
        Verdict::failed(predicate, format!("Predicate {predicate} failed: {why}"))
    }
}

/// All that speaks against a pod that would take `new`, in upstream's order.
pub(super) fn misfits(
    pod: &Pod,
    new: &Reservation,
    node: &NodeView<'_>,
    used: InUse<'_>,
    comparisons: bool,
) -> Vec<Misfit> {
    let mut found: Vec<Misfit> =
        lacks(&new.requests, node, &used).into_iter().map(Misfit::Lack).collect();
    let Some(pod_spec) = &pod.spec else { return found };
    let wanted = pod_spec.node_name.as_deref().unwrap_or_default();
    for (misfit, holds) in [
        (Misfit::Affinity, !affinity::matches(pod_spec, node.name, node.labels)),
        (Misfit::Name, !wanted.is_empty() && wanted != node.name),
        (Misfit::Ports, new.ports.iter().any(|port| used.ports.has(port))),
        (
            Misfit::Taints,
            !spec::is_static(pod) && taints::keep_out(pod_spec, node.taints, comparisons),
        ),
    ] {
        if holds {
            found.push(misfit);
        }
    }
    found
}

/// What is lacking. Extended resources that the node has never heard of are somebody else's to
/// count.
fn lacks(requests: &Amounts, node: &NodeView<'_>, used: &InUse<'_>) -> Vec<Lack> {
    let pods = ("pods", 1, used.pods);
    let others = requests
        .iter()
        .filter(|(name, _)| *name != "pods" && (!is_extended(name) || node.allocatable.names(name)))
        .map(|(name, amount)| (name, amount, used.amounts.get(name)));
    [pods]
        .into_iter()
        .chain(others)
        .map(|(name, requested, used)| Lack {
            resource: name.to_owned(),
            requested,
            used,
            capacity: node.allocatable.get(name),
        })
        .filter(|lack| lack.requested > 0 && lack.missing() > 0)
        .collect()
}
