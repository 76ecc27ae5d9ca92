//! PURE: which volume fits a claim, as upstream chooses: one that is meant for it, or else the
//! smallest that is large enough.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::core::{Selector, SelectorExt};
use longshore_informer::{Store, key_of};

use crate::volumes::objects::{
    BY_CLAIM, OPEN_BY_CLASS, access_modes, claim_class, claim_of, claim_spec, claim_uid,
    is_deleting, requested, size, volume_class, volume_spec,
};
use crate::workload::{name_of, uid_of};

/// Whether a volume is meant for the claim, or bound to it.
pub(super) fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = claim_uid(volume);
    claim_of(volume) == Some(key_of(claim)) && (uid.is_empty() || uid == uid_of(claim))
}

pub(super) fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = |mode: &Option<String>| match mode.as_deref() {
        None | Some("") => "Filesystem".to_owned(),
        Some(mode) => mode.to_owned(),
    };
    mode(&volume_spec(volume).volume_mode) == mode(&claim_spec(claim).volume_mode)
}

/// Whether the volume has all access modes of the claim.
fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_spec(claim).access_modes.iter().flatten().all(|mode| access_modes(volume).contains(mode))
}

fn same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let name = |name: &'_ Option<String>| name.clone().unwrap_or_default();
    name(&volume_spec(volume).volume_attributes_class_name)
        == name(&claim_spec(claim).volume_attributes_class_name)
}

/// The best volume for a claim that names none. One that waits for its first pod gets here only what
/// is meant for it; the scheduler chooses others. `Err`: its selector is none.
pub(super) fn best(
    volumes: &Store<PersistentVolume>,
    claim: &PersistentVolumeClaim,
    waits: bool,
) -> Result<Option<Arc<PersistentVolume>>, String> {
    let selector = claim_spec(claim).selector.clone().unwrap_or_default();
    let selector = Selector::try_from(selector).map_err(|error| error.to_string())?;
    let fits = |volume: &Arc<PersistentVolume>| {
        size(volume) >= requested(claim)
            && same_mode(volume, claim)
            && same_attributes(volume, claim)
            && has_modes(volume, claim)
            && !is_deleting(&**volume)
    };
    let meant = volumes.by_index(BY_CLAIM, &key_of(claim));
    let meant = meant.into_iter().filter(|volume| is_for(volume, claim)).find(fits);
    if meant.is_some() || waits {
        return Ok(meant);
    }
    let no_labels = BTreeMap::new();
    let open = volumes.by_index(OPEN_BY_CLASS, claim_class(claim).unwrap_or_default());
    let open = open
        .into_iter()
        .filter(|volume| selector.matches(volume.metadata.labels.as_ref().unwrap_or(&no_labels)));
    // Volumes with more access modes than requested are spared.
    let rank = |volume: &Arc<PersistentVolume>| (access_modes(volume).len(), size(volume));
    Ok(open.filter(fits).min_by_key(rank))
}

/// Why a volume that the claim names cannot be its own, in upstream's words.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let why = match () {
        () if is_deleting(volume) => {
            return Some(format!("the volume is marked for deletion {:?}", name_of(volume)));
        }
        () if size(volume) < requested(claim) => "requested PV is too small",
        () if volume_class(volume) != claim_class(claim).unwrap_or_default() => {
            "storageClassName does not match"
        }
        () if !same_attributes(volume, claim) => "volumeAttributesClassName does not match",
        () if !same_mode(volume, claim) => "incompatible volumeMode",
        () if !has_modes(volume, claim) => "incompatible accessMode",
        () => return None,
    };
    Some(why.to_owned())
}
