//! Objects of the cluster as the scheduler needs them: labels are interned, amounts are numbers,
//! selectors are parsed once.

mod atom;
mod devices;
mod extended;
mod labels;
mod node;
mod objects;
mod pod;
pub mod resources;
mod storage;

pub use self::atom::Atom;
pub(crate) use self::devices::{CLAIM_FINALIZER, SPECIAL_CLAIM, amount, is_conditional};
pub use self::devices::{
    Device, DeviceClass, DeviceId, DeviceNodes, DeviceReservation, PodClaimRef, PodResourceClaim,
    Readiness, ResourceClaim, ResourceSlice, SpecialClaim, Taken, UsedDevices,
};
pub use self::extended::{ContainerRequests, class_of, is_extended};
pub use self::labels::{Labels, NodeSelector, NodeTerm, Requirement, Selector};
pub use self::node::{Node, NodeInfo, Taint, TaintEffect};
pub use self::objects::{Budget, ClaimUse, Objects, Workload, WorkloadKind};
pub use self::pod::{
    AffinityTerm, HostPort, Owner, Pod, PodAffinity, SpreadConstraint, Toleration, Uid, Volume,
    VolumeSource, WeightedTerm,
};
pub use self::resources::Resources;
pub(crate) use self::storage::SELECTED_NODE;
pub use self::storage::{
    Capacity, Claim, ClaimKey, ClaimRef, CsiDriver, CsiNode, PersistentVolume, StorageClass,
    VolumeAttachment,
};
