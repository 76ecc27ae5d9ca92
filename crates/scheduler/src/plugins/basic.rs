//! Plugins of a few lines each.

use longshore_gates::{DeclaredFeatures, NODE_DECLARED_FEATURES};

use crate::events::ClusterEvent;
use crate::framework::{Code, Cycle, FILTERS, NodeFilter, Plugin, Points, PreFilter, Status};
use crate::model::{Node, NodeInfo, Objects, Pod, Taint};

/// Keeps pods with scheduling gates out of the queue.
#[derive(Debug)]
pub(super) struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn points(&self) -> Points {
        Points::PRE_ENQUEUE
    }

    fn pre_enqueue(&self, pod: &Pod, _: &Objects) -> Result<(), Status> {
        if pod.gates.is_empty() {
            return Ok(());
        }
        let gates = pod.gates.join(" ");
        Err(Status::new(Code::Unresolvable, format!("waiting for scheduling gates: [{gates}]")))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        matches!(event, ClusterEvent::UnscheduledPodUpdated(_, new) if new.uid == pod.uid)
    }
}

/// Orders the queue by priority and time, as the queue does.
#[derive(Debug)]
pub(super) struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn points(&self) -> Points {
        Points::QUEUE_SORT
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}

/// Binds through the subresource `binding`, as the driver does.
#[derive(Debug)]
pub(super) struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn points(&self) -> Points {
        Points::BIND
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}

/// Rejects nodes that are cordoned.
#[derive(Debug)]
pub(super) struct NodeUnschedulable(Taint);

impl Default for NodeUnschedulable {
    fn default() -> Self {
        Self(Taint::unschedulable())
    }
}

impl NodeUnschedulable {
    fn accepts(&self, pod: &Pod, node: &Node) -> bool {
        !node.is_unschedulable || pod.tolerates(&self.0)
    }
}

struct Schedulable<'a>(&'a NodeUnschedulable, &'a Pod);

impl NodeFilter for Schedulable<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        match &node.node {
            Some(node) if !self.0.accepts(self.1, node) => {
                Err(Status::unresolvable("node(s) were unschedulable"))
            }
            _ => Ok(()),
        }
    }
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn points(&self) -> Points {
        Points::FILTER
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Filter(Box::new(Schedulable(self, cycle.pod)))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && old.tolerations != new.tolerations
            }
            _ => event.node().is_some_and(|(old, new)| {
                old.is_none_or(|old| !self.accepts(pod, old)) && self.accepts(pod, new)
            }),
        }
    }
}

/// Rejects nodes other than the one that the pod names.
#[derive(Debug)]
pub(super) struct NodeName;

struct Named<'a>(&'a Pod);

impl NodeFilter for Named<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if self.0.node.as_ref().is_none_or(|name| *name == node.name) {
            return Ok(());
        }
        Err(Status::unresolvable("node(s) didn't match the requested node name"))
    }
}

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn points(&self) -> Points {
        Points::FILTER
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        match cycle.pod.node {
            None => PreFilter::Skip,
            Some(_) => PreFilter::Filter(Box::new(Named(cycle.pod))),
        }
    }

    fn may_help(&self, event: ClusterEvent<'_>, _: &Pod) -> bool {
        matches!(event, ClusterEvent::NodeAdded(_))
    }
}

/// Rejects nodes on which a port is taken.
#[derive(Debug)]
pub(super) struct NodePorts;

struct FreePorts<'a>(&'a Pod);

impl NodeFilter for FreePorts<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let is_taken = |port| node.ports.iter().any(|taken| taken.conflicts(port));
        if self.0.host_ports.iter().any(is_taken) {
            return Err(Status::unschedulable(
                "node(s) didn't have free ports for the requested pod ports",
            ));
        }
        Ok(())
    }
}

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn points(&self) -> Points {
        FILTERS
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if cycle.pod.host_ports.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Filter(Box::new(FreePorts(cycle.pod)))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::PodDeleted(gone) => {
                let frees = |port| gone.host_ports.iter().any(|freed| freed.conflicts(port));
                pod.host_ports.iter().any(frees)
            }
            ClusterEvent::NodeAdded(_) => true,
            _ => false,
        }
    }
}

/// Rejects nodes that do not declare the features that the pod needs.
#[derive(Debug)]
pub(super) struct NodeDeclaredFeatures {
    /// Whether the feature gate is on; otherwise every node is accepted.
    pub(super) is_enabled: bool,
}

struct Declaring(DeclaredFeatures);

impl NodeFilter for Declaring {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let declared = node.node.as_ref().map(|node| node.declared_features).unwrap_or_default();
        if self.0.without(declared).is_empty() {
            return Ok(());
        }
        Err(Status::unresolvable("node(s) didn't match Pod's required features"))
    }
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        NODE_DECLARED_FEATURES
    }

    fn points(&self) -> Points {
        FILTERS
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let needed = cycle.pod.needed_features;
        if !self.is_enabled || needed.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Filter(Box::new(Declaring(needed)))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && old.needed_features != new.needed_features
            }
            _ => event.node().is_some_and(|(old, new)| {
                old.is_none_or(|old| old.declared_features != new.declared_features)
            }),
        }
    }
}
