//! What changes in the cluster: by this, plugins decide which of the pods that they rejected are
//! tried again.

use crate::model::{
    Capacity, Claim, CsiDriver, CsiNode, Node, PersistentVolume, Pod, ResourceClaim, StorageClass,
    VolumeAttachment,
};

/// A change in the cluster.
#[derive(Debug, Clone, Copy)]
pub enum ClusterEvent<'a> {
    /// A pod was bound, or appeared on a node.
    PodAdded(&'a Pod),
    /// A pod on a node changed.
    PodUpdated(&'a Pod, &'a Pod),
    /// A pod on a node is gone, or a binding was given up.
    PodDeleted(&'a Pod),
    /// A pod that waits for a node changed.
    UnscheduledPodUpdated(&'a Pod, &'a Pod),
    /// A node appeared.
    NodeAdded(&'a Node),
    /// A node changed.
    NodeUpdated(&'a Node, &'a Node),
    /// A node is gone.
    NodeDeleted(&'a Node),
    /// A claim appeared or changed.
    Claim(Option<&'a Claim>, &'a Claim),
    /// A volume appeared or changed.
    Volume(Option<&'a PersistentVolume>, &'a PersistentVolume),
    /// A storage class appeared or changed.
    Class(Option<&'a StorageClass>, &'a StorageClass),
    /// The drivers of a node changed.
    CsiNode(Option<&'a CsiNode>, &'a CsiNode),
    /// A driver appeared or changed.
    CsiDriver(Option<&'a CsiDriver>, &'a CsiDriver),
    /// A capacity appeared or changed.
    Capacity(Option<&'a Capacity>, &'a Capacity),
    /// A claim for devices appeared or changed.
    ResourceClaim(Option<&'a ResourceClaim>, &'a ResourceClaim),
    /// A class of devices appeared (true) or changed.
    DeviceClass(bool),
    /// Devices appeared (true) or changed.
    ResourceSlice(bool),
    /// A volume is detached.
    AttachmentDeleted(&'a VolumeAttachment),
}

impl ClusterEvent<'_> {
    /// The name in metrics, as upstream has it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::PodAdded(_) => "AssignedPodAdd",
            Self::PodUpdated(old, new) => match PodChange::of(old, new) {
                PodChange::Labels => "AssignedPodUpdatePodLabel",
                PodChange::ScaleDown => "AssignedPodUpdatePodScaleDown",
                PodChange::Gates => "AssignedPodUpdatePodSchedulingGatesEliminated",
                PodChange::Tolerations => "AssignedPodUpdatePodToleration",
                PodChange::Claims => "AssignedPodUpdatePodGeneratedResourceClaim",
                PodChange::Other => "AssignedPodUpdate",
            },
            Self::PodDeleted(_) => "AssignedPodDelete",
            Self::UnscheduledPodUpdated(old, new) => match PodChange::of(old, new) {
                PodChange::Labels => "UnschedulablePodUpdatePodLabel",
                PodChange::ScaleDown => "UnschedulablePodUpdatePodScaleDown",
                PodChange::Gates => "UnschedulablePodUpdatePodSchedulingGatesEliminated",
                PodChange::Tolerations => "UnschedulablePodUpdatePodToleration",
                PodChange::Claims => "UnschedulablePodUpdatePodGeneratedResourceClaim",
                PodChange::Other => "UnschedulablePodUpdate",
            },
            Self::NodeAdded(_) => "NodeAdd",
            Self::NodeUpdated(old, new) => node_label(old, new),
            Self::NodeDeleted(_) => "NodeDelete",
            Self::Claim(None, _) => "PersistentVolumeClaimAdd",
            Self::Claim(..) => "PersistentVolumeClaimUpdate",
            Self::Volume(None, _) => "PersistentVolumeAdd",
            Self::Volume(..) => "PersistentVolumeUpdate",
            Self::Class(None, _) => "storage.k8s.io/StorageClassAdd",
            Self::Class(..) => "storage.k8s.io/StorageClassUpdate",
            Self::CsiNode(None, _) => "storage.k8s.io/CSINodeAdd",
            Self::CsiNode(..) => "storage.k8s.io/CSINodeUpdate",
            Self::CsiDriver(None, _) => "storage.k8s.io/CSIDriverAdd",
            Self::CsiDriver(..) => "storage.k8s.io/CSIDriverUpdate",
            Self::Capacity(None, _) => "storage.k8s.io/CSIStorageCapacityAdd",
            Self::Capacity(..) => "storage.k8s.io/CSIStorageCapacityUpdate",
            Self::ResourceClaim(None, _) => "resource.k8s.io/ResourceClaimAdd",
            Self::ResourceClaim(..) => "resource.k8s.io/ResourceClaimUpdate",
            Self::DeviceClass(true) => "resource.k8s.io/DeviceClassAdd",
            Self::DeviceClass(false) => "resource.k8s.io/DeviceClassUpdate",
            Self::ResourceSlice(true) => "resource.k8s.io/ResourceSliceAdd",
            Self::ResourceSlice(false) => "resource.k8s.io/ResourceSliceUpdate",
            Self::AttachmentDeleted(_) => "storage.k8s.io/VolumeAttachmentDelete",
        }
    }

    /// The node after the change, if it is one of a node that is there.
    pub fn node(&self) -> Option<(Option<&Node>, &Node)> {
        match self {
            Self::NodeAdded(new) => Some((None, new)),
            Self::NodeUpdated(old, new) => Some((Some(old), new)),
            _ => None,
        }
    }
}

/// What matters most of an update of a pod.
enum PodChange {
    Labels,
    ScaleDown,
    Gates,
    Tolerations,
    Claims,
    Other,
}

impl PodChange {
    fn of(old: &Pod, new: &Pod) -> Self {
        if old.labels != new.labels {
            Self::Labels
        } else if new.requests.is_below(&old.requests) {
            Self::ScaleDown
        } else if new.gates.is_empty() && !old.gates.is_empty() {
            Self::Gates
        } else if old.tolerations.len() != new.tolerations.len() {
            Self::Tolerations
        } else if old.resource_claims != new.resource_claims {
            Self::Claims
        } else {
            Self::Other
        }
    }
}

fn node_label(old: &Node, new: &Node) -> &'static str {
    if old.is_unschedulable && !new.is_unschedulable {
        "NodeUpdateNodeTaint"
    } else if old.allocatable != new.allocatable {
        "NodeUpdateNodeAllocatable"
    } else if old.labels != new.labels {
        "NodeUpdateNodeLabel"
    } else if old.taints != new.taints {
        "NodeUpdateNodeTaint"
    } else if old.conditions != new.conditions {
        "NodeUpdateNodeCondition"
    } else if old.declared_features != new.declared_features {
        "NodeUpdateNodeDeclaredFeature"
    } else {
        "NodeUpdate"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{node, pod};

    #[test]
    fn event_labels_are_upstreams() {
        let nodes = |more: Value| {
            let (old, new) = (node("n", 4, json!({})), node("n", 4, more));
            (
                ClusterEvent::NodeUpdated(&old, &new).label(),
                ClusterEvent::NodeUpdated(&new, &old).label(),
            )
        };
        let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
        for (more, expected, back) in [
            (taint, "NodeUpdateNodeTaint", "NodeUpdateNodeTaint"),
            (json!({"spec": {"unschedulable": true}}), "NodeUpdate", "NodeUpdateNodeTaint"),
            (
                json!({"status": {"allocatable": {"cpu": "5"}}}),
                "NodeUpdateNodeAllocatable",
                "NodeUpdateNodeAllocatable",
            ),
            (
                json!({"metadata": {"labels": {"a": "b"}}}),
                "NodeUpdateNodeLabel",
                "NodeUpdateNodeLabel",
            ),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
                "NodeUpdateNodeCondition",
                "NodeUpdateNodeCondition",
            ),
            (
                json!({"status": {"declaredFeatures": ["ExtendWebSocketsToKubelet"]}}),
                "NodeUpdateNodeDeclaredFeature",
                "NodeUpdateNodeDeclaredFeature",
            ),
        ] {
            assert_eq!(nodes(more.clone()), (expected, back), "{more}");
        }
        let gated = json!({"spec": {"schedulingGates": [{"name": "g"}]}});
        for (old, new, expected) in [
            (pod("p", "1", json!({})), pod("p", "2", json!({})), "Update"),
            (pod("p", "2", json!({})), pod("p", "1", json!({})), "UpdatePodScaleDown"),
            (
                pod("p", "1", json!({})),
                pod("p", "1", json!({"metadata": {"labels": {"a": "b"}}})),
                "UpdatePodLabel",
            ),
            (pod("p", "1", gated), pod("p", "1", json!({})), "UpdatePodSchedulingGatesEliminated"),
            (
                pod("p", "1", json!({})),
                pod("p", "1", json!({"spec": {"tolerations": [{"operator": "Exists"}]}})),
                "UpdatePodToleration",
            ),
        ] {
            let unscheduled = ClusterEvent::UnscheduledPodUpdated(&old, &new).label();
            assert_eq!(unscheduled.strip_prefix("UnschedulablePod"), Some(expected));
            let assigned = ClusterEvent::PodUpdated(&old, &new).label();
            assert_eq!(assigned.strip_prefix("AssignedPod"), Some(expected));
        }
    }
}
