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
    /// The name in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::PodAdded(_) => "AssignedPodAdd",
            Self::PodUpdated(..) => "AssignedPodUpdate",
            Self::PodDeleted(_) => "AssignedPodDelete",
            Self::UnscheduledPodUpdated(..) => "UnschedulablePodUpdate",
            Self::NodeAdded(_) => "NodeAdd",
            Self::NodeUpdated(old, new) => node_label(old, new),
            Self::NodeDeleted(_) => "NodeDelete",
            Self::Claim(None, _) => "PersistentVolumeClaimAdd",
            Self::Claim(..) => "PersistentVolumeClaimUpdate",
            Self::Volume(None, _) => "PersistentVolumeAdd",
            Self::Volume(..) => "PersistentVolumeUpdate",
            Self::Class(None, _) => "StorageClassAdd",
            Self::Class(..) => "StorageClassUpdate",
            Self::CsiNode(None, _) => "CSINodeAdd",
            Self::CsiNode(..) => "CSINodeUpdate",
            Self::CsiDriver(None, _) => "CSIDriverAdd",
            Self::CsiDriver(..) => "CSIDriverUpdate",
            Self::Capacity(None, _) => "CSIStorageCapacityAdd",
            Self::Capacity(..) => "CSIStorageCapacityUpdate",
            Self::ResourceClaim(None, _) => "ResourceClaimAdd",
            Self::ResourceClaim(..) => "ResourceClaimUpdate",
            Self::DeviceClass(true) => "DeviceClassAdd",
            Self::DeviceClass(false) => "DeviceClassUpdate",
            Self::ResourceSlice(true) => "ResourceSliceAdd",
            Self::ResourceSlice(false) => "ResourceSliceUpdate",
            Self::AttachmentDeleted(_) => "VolumeAttachmentDelete",
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

fn node_label(old: &Node, new: &Node) -> &'static str {
    if old.is_unschedulable != new.is_unschedulable || old.taints != new.taints {
        "NodeTaintUpdate"
    } else if old.allocatable != new.allocatable {
        "NodeAllocatableUpdate"
    } else if old.labels != new.labels {
        "NodeLabelUpdate"
    } else if old.conditions != new.conditions {
        "NodeConditionUpdate"
    } else {
        "NodeUpdate"
    }
}
