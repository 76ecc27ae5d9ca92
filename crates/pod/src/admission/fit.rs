//! The scheduler's predicates for a pod on this node.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::affinity::{self, Labels};
use super::amounts::{Amounts, is_extended};
use super::ledger::{InUse, Reservation};
use super::taints;
use crate::spec;
use crate::status::Verdict;

/// The node as its object describes it.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    name: &'a str,
    labels: &'a Labels,
    taints: &'a [Taint],
    allocatable: Amounts,
}

static NO_LABELS: Labels = Labels::new();

impl<'a> NodeView<'a> {
    /// From the object `node`, but for the amounts in `own`, the node's own current view: those in
    /// the object may be out of date.
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
            allocatable: allocatable(node).overridden_by(allocatable(own)),
        }
    }

    /// The same without a limit of these resources, which someone else gives out.
    pub fn without_limit<'b>(mut self, resources: impl IntoIterator<Item = &'b str>) -> Self {
        for resource in resources {
            self.allocatable.lift(resource);
        }
        self
    }
}

/// A resource of which too little is available. CPU in millicores, all else in whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InsufficientResource {
    pub(super) resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl InsufficientResource {
    /// The amount that is missing.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// One predicate that fails for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PredicateFailure {
    InsufficientResource(InsufficientResource),
    Affinity,
    Name,
    Ports,
    Taints,
}

impl PredicateFailure {
    pub(super) fn insufficient_resource(&self) -> Option<&InsufficientResource> {
        match self {
            Self::InsufficientResource(resource) => Some(resource),
            _ => None,
        }
    }

    /// Whether it depends on the node's labels only.
    pub(super) fn is_by_labels(&self) -> bool {
        *self == Self::Affinity
    }

    pub(super) fn verdict(&self) -> Verdict {
        let (predicate, why) = match self {
            Self::InsufficientResource(InsufficientResource {
                resource,
                requested,
                used,
                capacity,
            }) => {
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

/// All predicates that fail for a pod that needs `new`, in upstream's order.
pub(super) fn failures(
    pod: &Pod,
    reservation: &Reservation,
    node: &NodeView<'_>,
    used: InUse<'_>,
    comparisons: bool,
) -> Vec<PredicateFailure> {
    let mut found: Vec<PredicateFailure> =
        insufficient_resources(&reservation.requests, node, &used)
            .into_iter()
            .map(PredicateFailure::InsufficientResource)
            .collect();
    let Some(pod_spec) = &pod.spec else { return found };
    let node_name = pod_spec.node_name.as_deref().unwrap_or_default();
    for (failure, holds) in [
        (PredicateFailure::Affinity, !affinity::matches(pod_spec, node.name, node.labels)),
        (PredicateFailure::Name, !node_name.is_empty() && node_name != node.name),
        (PredicateFailure::Ports, reservation.ports.iter().any(|port| used.ports.has(port))),
        (
            PredicateFailure::Taints,
            !spec::is_static(pod)
                && taints::has_untolerated_taint(pod_spec, node.taints, comparisons),
        ),
    ] {
        if holds {
            found.push(failure);
        }
    }
    found
}

/// The insufficient resources. Extended resources that the node does not list are not counted, as
/// upstream does it.
fn insufficient_resources(
    requests: &Amounts,
    node: &NodeView<'_>,
    used: &InUse<'_>,
) -> Vec<InsufficientResource> {
    let pods = ("pods", 1, used.pods);
    let others = requests
        .iter()
        .filter(|(name, _)| *name != "pods" && (!is_extended(name) || node.allocatable.names(name)))
        .map(|(name, amount)| (name, amount, used.amounts.get(name)));
    [pods]
        .into_iter()
        .chain(others)
        .map(|(name, requested, used)| InsufficientResource {
            resource: name.to_owned(),
            requested,
            used,
            capacity: node.allocatable.get(name),
        })
        .filter(|resource| resource.requested > 0 && resource.missing() > 0)
        .collect()
}
