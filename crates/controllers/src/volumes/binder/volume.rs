//! PURE: what becomes of a volume, by upstream's rules: one step, and an event that says why.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use longshore_informer::key_of;

use super::claim::{BUILT_IN, migration};
use super::matching;
use super::recycler;
use super::state::{Decision, State};
use crate::volumes::event::VolumeEvent;
use crate::volumes::objects::{
    BY_CLAIM, MIGRATED_TO, PROVISIONED_BY, annotation, claim_of, claim_uid, is_deleting,
    is_terminated, volume_name, volume_phase, volume_spec,
};
use crate::workload::{name_of, uid_of};

/// What is to happen to a volume.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::volumes) enum VolumeStep {
    /// Another phase, with a message for people.
    Phase(&'static str, String),
    /// It is for no claim any more.
    Unbind,
    /// Its data is deleted, and then itself.
    DeleteData,
    /// A pod is started that removes its data.
    StartRecycler,
    /// The pod that removed its data ended well, and goes: the volume is for no claim any more.
    Recycled,
    /// That pod failed, and goes.
    RecyclerFailed(String),
    /// The annotation names the driver that has taken over its provisioner, or none.
    MigratedTo(Option<&'static str>),
    /// It gets these finalizers: that of who deletes its data, and not that of another.
    Finalizers(Vec<String>),
}

/// On a volume of a plugin that was part of Kubernetes: its data is not deleted yet.
pub(super) const IN_TREE_PROTECTION: &str = "kubernetes.io/pv-controller";
/// The same of an external provisioner.
const EXTERNAL_PROTECTION: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The plugin whose volumes are deleted here.
pub(super) const HOST_PATH: &str = "kubernetes.io/host-path";

/// The finalizers of a volume that was provisioned; `None`: they are right, or not for this controller to
/// say.
fn finalizers(volume: &PersistentVolume) -> Option<Vec<String>> {
    let maker = annotation(volume, PROVISIONED_BY)?;
    let known = volume.metadata.finalizers.as_deref().unwrap_or_default();
    let without = |names: &[&str]| -> Vec<String> {
        known.iter().filter(|own| !names.contains(&own.as_str())).cloned().collect()
    };
    let wanted = match maker.starts_with(BUILT_IN) {
        _ if longshore_migration::driver(maker).is_some() => without(&[IN_TREE_PROTECTION]),
        false => return None,
        true => match volume_spec(volume).persistent_volume_reclaim_policy.as_deref() {
            Some("Delete") => {
                let mut wanted = without(&[EXTERNAL_PROTECTION]);
                if !wanted.iter().any(|own| own == IN_TREE_PROTECTION) {
                    wanted.push(IN_TREE_PROTECTION.to_owned());
                }
                wanted
            }
            Some("Retain" | "Recycle") => without(&[IN_TREE_PROTECTION, EXTERNAL_PROTECTION]),
            _ => without(&[EXTERNAL_PROTECTION]),
        },
    };
    (wanted != known).then_some(wanted)
}

/// What is next for a volume.
pub(in crate::volumes) fn volume(
    state: State<'_>,
    volume: &PersistentVolume,
) -> Decision<VolumeStep> {
    if let Some(driver) = migration(volume, annotation(volume, PROVISIONED_BY)) {
        return (Some(VolumeStep::MigratedTo(driver)), None);
    }
    if let Some(finalizers) = finalizers(volume) {
        return (Some(VolumeStep::Finalizers(finalizers)), None);
    }
    let phase = volume_phase(volume);
    let enter =
        |to: &'static str| ((phase != to).then(|| VolumeStep::Phase(to, String::new())), None);
    let uid = claim_uid(volume);
    let Some(key) = claim_of(volume).filter(|_| !uid.is_empty()) else {
        return enter("Available");
    };
    let is_released = matches!(phase, "Released" | "Failed");
    let claim = state.claims.get(&key).filter(|claim| uid_of(&**claim) == uid);
    match claim.as_ref().map(|claim| (claim, volume_name(claim))) {
        None if is_released => reclaim(state, volume),
        None => enter("Released"),
        Some((claim, "")) => (None, mode_conflict(volume, claim)),
        Some((_, bound)) if bound == name_of(volume) => enter("Bound"),
        Some(_) if is_disposable(volume) && is_released => reclaim(state, volume),
        Some(_) if is_disposable(volume) => enter("Released"),
        Some(_) => (Some(VolumeStep::Unbind), None),
    }
}

/// Such a volume is skipped when the claim is synced.
fn mode_conflict(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<VolumeEvent> {
    let why = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
        name_of(claim)
    );
    match matching::same_mode(volume, claim) {
        true => None,
        false => VolumeEvent::warning("VolumeMismatch", why),
    }
}

/// Made for a claim that has got another one.
fn is_disposable(volume: &PersistentVolume) -> bool {
    annotation(volume, PROVISIONED_BY).is_some()
        && volume_spec(volume).persistent_volume_reclaim_policy.as_deref() == Some("Delete")
}

/// What becomes of a volume whose claim is gone. What failed is tried again.
fn reclaim(state: State<'_>, volume: &PersistentVolume) -> Decision<VolumeStep> {
    let fail = |reason, why: &str| match volume_phase(volume) {
        "Failed" => (None, None),
        _ => {
            let step = VolumeStep::Phase("Failed", why.to_owned());
            (Some(step), VolumeEvent::warning(reason, why))
        }
    };
    if annotation(volume, MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return (None, None);
    }
    let spec = volume_spec(volume);
    match spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("Retain") {
        "Retain" => (None, None),
        "Recycle" if !recycler::can_recycle(spec) => {
            fail("VolumeFailedRecycle", "No recycler plugin found for the volume!")
        }
        "Recycle" => recycle(state, volume),
        "Delete" => match deleter(volume) {
            Deleter::Other => (None, None),
            Deleter::HostPath => (Some(VolumeStep::DeleteData), None),
            Deleter::Unknown(why) => fail("VolumeFailedDelete", &why),
        },
        _ => fail(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    }
}

/// Whether its data is to be deleted, since its claim is gone.
pub(super) fn is_to_be_deleted(volume: &PersistentVolume) -> bool {
    let policy = volume_spec(volume).persistent_volume_reclaim_policy.as_deref();
    let is_migrated = annotation(volume, MIGRATED_TO).is_some_and(|driver| !driver.is_empty());
    policy == Some("Delete") && volume_phase(volume) == "Released" && !is_migrated
}

/// Whether this controller deletes its data.
pub(super) fn is_deleted_here(volume: &PersistentVolume) -> bool {
    matches!(deleter(volume), Deleter::HostPath)
}

/// Who deletes the data of a volume.
enum Deleter {
    /// Its provisioner or driver.
    Other,
    /// This controller.
    HostPath,
    /// Nobody, and why.
    Unknown(String),
}

fn deleter(volume: &PersistentVolume) -> Deleter {
    let spec = volume_spec(volume);
    match annotation(volume, PROVISIONED_BY).unwrap_or_default() {
        "" if spec.csi.is_some() => Deleter::Other,
        "" | HOST_PATH if spec.host_path.is_some() => Deleter::HostPath,
        "" | HOST_PATH => Deleter::Unknown(format!(
            "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
            name_of(volume)
        )),
        maker if maker.starts_with(BUILT_IN) => {
            Deleter::Unknown(format!("no volume plugin matched name: {maker}"))
        }
        _ => Deleter::Other,
    }
}

fn recycle(state: State<'_>, volume: &PersistentVolume) -> Decision<VolumeStep> {
    let claim = claim_of(volume).unwrap_or_default();
    let users = state.pods.by_index(BY_CLAIM, &claim);
    let mut users: Vec<String> =
        users.iter().filter(|pod| !is_terminated(pod)).map(|pod| key_of(&**pod)).collect();
    // A claim of that name is another one, with another volume.
    if !users.is_empty() && state.claims.get(&claim).is_none() {
        users.sort();
        let why = format!("Volume is used by pods: {}", users.join(","));
        return (None, VolumeEvent::normal("VolumeFailedRecycle", why));
    }
    match state.pods.get(&recycler::key(volume)) {
        None => (Some(VolumeStep::StartRecycler), None),
        Some(pod) if is_deleting(&*pod) => (None, None),
        Some(pod) => match recycler::outcome(&pod) {
            None => (None, None),
            Some(Ok(())) => (
                Some(VolumeStep::Recycled),
                VolumeEvent::normal("VolumeRecycled", "Volume recycled"),
            ),
            Some(Err(why)) => {
                let why = format!("Recycle failed: failed to recycle volume: {why}");
                let event = VolumeEvent::warning("VolumeFailedRecycle", why.clone());
                (Some(VolumeStep::RecyclerFailed(why)), event)
            }
        },
    }
}
