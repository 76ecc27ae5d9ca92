//! PURE: what becomes of a claim, by upstream's rules: one step, and an event that says why.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use longshore_informer::{Object, key_of};

use super::matching;
use super::state::{Decision, State};
use crate::pods::node_of;
use crate::volumes::event::VolumeEvent;
use crate::volumes::objects::{
    BY_CLAIM, MIGRATED_TO, PROVISIONERS, SELECTED_NODE, access_modes, annotation, claim_class,
    claim_phase, claim_uid, default_class, is_bound_for_good, is_terminated, volume_name,
    volume_phase, volume_spec,
};
use crate::workload::{name_of, uid_of};

/// The names of plugins that were part of Kubernetes, none of which is here.
pub(super) const BUILT_IN: &str = "kubernetes.io/";

/// The reason of the event that a provisioner is waited for.
pub(super) const EXTERNAL_PROVISIONING: &str = "ExternalProvisioning";

/// What is to happen to a claim.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::volumes) enum ClaimStep {
    /// It and this volume are for each other.
    Bind(String),
    /// It is `Pending` or `Lost`, without a volume.
    Phase(&'static str),
    /// It gets this class.
    Class(String),
    /// This provisioner is to make a volume.
    Provision(String),
    /// The annotation names the driver that has taken over its provisioner, or none.
    MigratedTo(Option<&'static str>),
}

/// The driver that is to be in the object's annotation, which names another or none; of an object
/// without provisioner nothing is said.
pub(super) fn migration<K: Object>(
    object: &K,
    provisioner: Option<&str>,
) -> Option<Option<&'static str>> {
    let driver = longshore_migration::driver(provisioner?);
    (annotation(object, MIGRATED_TO).filter(|known| !known.is_empty()) != driver).then_some(driver)
}

/// What is next for a claim.
pub(in crate::volumes) fn claim(
    state: State<'_>,
    claim: &PersistentVolumeClaim,
) -> Decision<ClaimStep> {
    let provisioner = PROVISIONERS.iter().find_map(|name| annotation(claim, name));
    if let Some(driver) = migration(claim, provisioner) {
        return (Some(ClaimStep::MigratedTo(driver)), None);
    }
    match (is_bound_for_good(claim), volume_name(claim)) {
        (true, "") => lost(
            claim,
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (true, volume) => bound(state, claim, volume),
        (false, "") => open(state, claim),
        (false, volume) => prebound(state, claim, volume),
    }
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, why: &str) -> Decision<ClaimStep> {
    match claim_phase(claim) == "Lost" {
        true => (None, None),
        false => (Some(ClaimStep::Phase("Lost")), VolumeEvent::warning(reason, why)),
    }
}

fn pending(claim: &PersistentVolumeClaim, event: Option<VolumeEvent>) -> Decision<ClaimStep> {
    // what a volume that was lost has left behind
    let has_more = claim.status.as_ref().is_some_and(|status| {
        status.access_modes.is_some()
            || status.capacity.is_some()
            || status.current_volume_attributes_class_name.is_some()
    });
    let is_new = claim_phase(claim) != "Pending" || has_more;
    (is_new.then_some(ClaimStep::Phase("Pending")), event)
}

fn bound(state: State<'_>, claim: &PersistentVolumeClaim, name: &str) -> Decision<ClaimStep> {
    let Some(volume) = state.volumes.get(name) else {
        let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", why);
    };
    let is_claimed = volume_spec(&volume).claim_ref.is_some();
    if is_claimed && claim_uid(&volume) != uid_of(claim) {
        let why = "Two claims are bound to the same volume, this one is bound incorrectly";
        return lost(claim, "ClaimMisbound", why);
    }
    let status = claim.status.as_ref();
    let modes = status.and_then(|status| status.access_modes.as_deref()).unwrap_or_default();
    let is_settled = is_claimed
        && volume_phase(&volume) == "Bound"
        && claim_phase(claim) == "Bound"
        && modes == access_modes(&volume);
    ((!is_settled).then(|| ClaimStep::Bind(name.to_owned())), None)
}

/// A claim that is to be bound to any volume that fits.
fn open(state: State<'_>, claim: &PersistentVolumeClaim) -> Decision<ClaimStep> {
    let class_name = claim_class(claim).unwrap_or_default();
    let class = state.classes.get(class_name);
    let waits = class
        .as_ref()
        .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    match matching::best(state.volumes, claim, waits) {
        Ok(Some(volume)) => return (Some(ClaimStep::Bind(name_of(&*volume).to_owned())), None),
        Ok(None) => {}
        Err(why) => return pending(claim, VolumeEvent::warning("FailedBinding", why)),
    }
    if claim_class(claim).is_none()
        && let Some(class) = default_class(state.classes)
    {
        return (Some(ClaimStep::Class(class)), None);
    }
    match (class_name, class) {
        // The scheduler chooses the volume, or the node for which one is to be made.
        _ if waits && annotation(claim, SELECTED_NODE).is_none() => {
            pending(claim, waiting(state, claim))
        }
        ("", _) => {
            let why = "no persistent volumes available for this claim and no storage class is set";
            pending(claim, VolumeEvent::normal("FailedBinding", why))
        }
        _ if !state.provisions => pending(claim, None),
        (name, None) => {
            let why = format!("storageclass.storage.k8s.io {name:?} not found");
            pending(claim, VolumeEvent::warning("ProvisioningFailed", why))
        }
        (_, Some(class)) => provision(claim, &class.provisioner),
    }
}

/// The pods that use the claim.
fn users(state: State<'_>, claim: &PersistentVolumeClaim) -> Vec<Arc<Pod>> {
    state.pods.by_index(BY_CLAIM, &key_of(claim))
}

fn waiting(state: State<'_>, claim: &PersistentVolumeClaim) -> Option<VolumeEvent> {
    let pods = users(state, claim);
    let unscheduled = pods.iter().filter(|pod| node_of(pod).is_empty() && !is_terminated(pod));
    let names: Vec<&str> = unscheduled.map(|pod| name_of(&**pod)).collect();
    match names.as_slice() {
        [] => VolumeEvent::normal(
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ),
        [name] => VolumeEvent::normal(
            "WaitForPodScheduled",
            format!("waiting for pod {name} to be scheduled"),
        ),
        names => VolumeEvent::normal(
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", names.join(",")),
        ),
    }
}

fn provision(claim: &PersistentVolumeClaim, provisioner: &str) -> Decision<ClaimStep> {
    let provisioner = longshore_migration::driver(provisioner).unwrap_or(provisioner);
    if provisioner.starts_with(BUILT_IN) {
        let why = format!("no volume plugin matched name: {provisioner}");
        return pending(claim, VolumeEvent::warning("ProvisioningFailed", why));
    }
    let event = VolumeEvent::normal(
        EXTERNAL_PROVISIONING,
        format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' \
             or manually by the system administrator. If volume creation is delayed, please verify \
             that the provisioner is running and correctly registered."
        ),
    );
    let [name, _] = PROVISIONERS;
    let is_asked = annotation(claim, name) == Some(provisioner);
    ((!is_asked).then(|| ClaimStep::Provision(provisioner.to_owned())), event)
}

/// A claim that names its volume.
fn prebound(state: State<'_>, claim: &PersistentVolumeClaim, name: &str) -> Decision<ClaimStep> {
    let bind = || (Some(ClaimStep::Bind(name.to_owned())), None);
    match state.volumes.get(name) {
        None => pending(claim, None),
        Some(volume) if volume_spec(&volume).claim_ref.is_none() => {
            match matching::mismatch(&volume, claim) {
                None => bind(),
                Some(why) => {
                    let why = format!("Cannot bind to requested volume {name:?}: {why}");
                    pending(claim, VolumeEvent::warning("VolumeMismatch", why))
                }
            }
        }
        Some(volume) if matching::is_for(&volume, claim) => bind(),
        Some(_) => {
            let why = format!("volume {name:?} already bound to a different claim.");
            pending(claim, VolumeEvent::warning("FailedBinding", why))
        }
    }
}
