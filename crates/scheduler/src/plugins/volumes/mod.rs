//! Volumes: where they are, where they can be made, and how many a node can have.

mod binding;
mod limits;
mod restrictions;
mod zone;

pub(super) use self::binding::VolumeBinding;
pub(super) use self::limits::NodeVolumeLimits;
pub(super) use self::restrictions::VolumeRestrictions;
pub(super) use self::zone::VolumeZone;

use crate::model::{ClaimKey, Pod};

/// Whether a pod has that claim.
fn has_claim(pod: &Pod, key: &ClaimKey) -> bool {
    pod.claims().any(|own| own == key)
}
