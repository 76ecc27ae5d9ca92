//! PURE: what becomes of claims and volumes, by upstream's rules. Nothing is written here: each
//! answer is one step, and an event that says why.

use serde_json::Value;

use super::matching::{self, Consumer};
use super::pod::{Node, owner};
use super::world::{Key, World, claim_of};
use crate::admission::storage::{CLAIM_PROTECTION, VOLUME_PROTECTION, default_class};
use crate::kinds::class_of;
use crate::object;
use crate::schema::value::{items, same, text};

/// On a claim: it was bound once, and never is again.
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or a volume: the controller chose the other one.
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: where its first pod will run.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: its provisioner, which also deletes it.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// The names of plugins that were part of Kubernetes, none of which is here.
const BUILT_IN: &str = "kubernetes.io/";

/// What is to happen to a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimStep {
    /// It and this volume are for each other.
    Bind(String),
    /// It is `Pending` or `Lost`, without a volume.
    Phase(&'static str),
    /// It gets this class.
    Class(String),
    /// This provisioner is to make a volume, for pods on the node if one is named.
    Provision { provisioner: String, node: Option<String> },
    /// Nothing uses it any more: it may go.
    Unprotect,
    /// The pod that made it is gone: it goes.
    Delete,
}

/// What is to happen to a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VolumeStep {
    /// Another phase, with a message for people.
    Phase(&'static str, String),
    /// It is for no claim any more.
    Unbind,
    /// Its data is deleted, and then itself.
    DeleteData,
    /// It is bound to nothing: it may go.
    Unprotect,
}

/// An event about the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeEvent {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl VolumeEvent {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Option<VolumeEvent> {
        Some(VolumeEvent { is_warning: false, reason, message: message.into() })
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Option<VolumeEvent> {
        Some(VolumeEvent { is_warning: true, reason, message: message.into() })
    }
}

/// A step and an event, if there are any.
pub(super) type Decision<S> = (Option<S>, Option<VolumeEvent>);

pub(super) fn has_annotation(object: &Value, annotation: &str) -> bool {
    object["metadata"]["annotations"].get(annotation).is_some()
}

fn is_protected(object: &Value, finalizer: &str) -> bool {
    items(&object["metadata"]["finalizers"]).iter().any(|own| own == finalizer)
}

/// Whether the claim was bound once: it is never bound to another volume.
pub(super) fn is_bound_for_good(claim: &Value) -> bool {
    has_annotation(claim, BIND_COMPLETED)
}

/// What is next for a claim.
pub(super) fn claim(world: &World, key: &Key) -> Decision<ClaimStep> {
    let Some(claim) = world.claims.get(key) else { return (None, None) };
    if object::is_deleting(claim) {
        let is_used = world.users(key).any(|(_, pod)| !pod.node.is_empty() && pod.holds(claim));
        let may_go = is_protected(claim, CLAIM_PROTECTION) && !is_used;
        return (may_go.then_some(ClaimStep::Unprotect), None);
    }
    if let Some((pod, uid)) = owner(claim) {
        let pod = world.pods.get(&(key.0.clone(), pod.to_owned()));
        if pod.is_none_or(|pod| pod.uid != uid) {
            return (Some(ClaimStep::Delete), None);
        }
    }
    match (is_bound_for_good(claim), text(&claim["spec"]["volumeName"])) {
        (true, "") => lost(
            claim,
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (true, volume) => bound(world, claim, volume),
        (false, "") => open(world, key, claim),
        (false, volume) => prebound(world, key, claim, volume),
    }
}

fn lost(claim: &Value, reason: &'static str, why: &str) -> Decision<ClaimStep> {
    match claim["status"]["phase"] == "Lost" {
        true => (None, None),
        false => (Some(ClaimStep::Phase("Lost")), VolumeEvent::warning(reason, why)),
    }
}

fn pending(claim: &Value, event: Option<VolumeEvent>) -> Decision<ClaimStep> {
    let is_new = claim["status"]["phase"] != "Pending";
    (is_new.then_some(ClaimStep::Phase("Pending")), event)
}

fn bound(world: &World, claim: &Value, name: &str) -> Decision<ClaimStep> {
    let Some(volume) = world.volumes.get(name) else {
        let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", why);
    };
    let reference = &volume["spec"]["claimRef"];
    if !reference.is_null() && reference["uid"] != object::uid(claim) {
        let why = "Two claims are bound to the same volume, this one is bound incorrectly";
        return lost(claim, "ClaimMisbound", why);
    }
    let is_settled = !reference.is_null()
        && volume["status"]["phase"] == "Bound"
        && claim["status"]["phase"] == "Bound"
        && same(&claim["status"]["accessModes"], &volume["spec"]["accessModes"]);
    ((!is_settled).then(|| ClaimStep::Bind(name.to_owned())), None)
}

/// A claim that is to be bound to any volume that fits.
fn open(world: &World, key: &Key, claim: &Value) -> Decision<ClaimStep> {
    let class_name = class_of(claim).unwrap_or_default();
    let class = world.classes.get(class_name);
    let waits = class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer");
    let node = if waits { consumer(world, key, claim) } else { None };
    let consumer = match node {
        Some((name, node)) => Consumer::On(name, node),
        None if waits => Consumer::Nowhere,
        None => Consumer::Any,
    };
    match matching::best(world, key, claim, consumer) {
        Ok(Some(volume)) => return (Some(ClaimStep::Bind(volume.to_owned())), None),
        Ok(None) => {}
        Err(why) => return pending(claim, VolumeEvent::warning("FailedBinding", why)),
    }
    if class_of(claim).is_none()
        && let Some(class) = default_class(world.classes.values())
    {
        return (Some(ClaimStep::Class(class.to_owned())), None);
    }
    match (class_name, class) {
        _ if waits && node.is_none() => pending(claim, waiting(world, key)),
        ("", _) => {
            let why = "no persistent volumes available for this claim and no storage class is set";
            pending(claim, VolumeEvent::normal("FailedBinding", why))
        }
        (name, None) => {
            let why = format!("storageclass.storage.k8s.io {name:?} not found");
            pending(claim, VolumeEvent::warning("ProvisioningFailed", why))
        }
        (_, Some(class)) => {
            provision(claim, text(&class["provisioner"]), node.map(|(name, _)| name))
        }
    }
}

/// The node where the claim's first pod is to run, if that is known.
fn consumer<'a>(world: &'a World, key: &Key, claim: &'a Value) -> Option<(&'a str, &'a Node)> {
    let selected = claim["metadata"]["annotations"][SELECTED_NODE].as_str();
    let pods = world.users(key).filter(|(_, pod)| !pod.is_over && !pod.is_deleting);
    let mut nodes = pods.map(|(_, pod)| pod.node.as_str()).filter(|node| !node.is_empty());
    let name = selected.or_else(|| nodes.next())?;
    world.nodes.get(name).map(|node| (name, node))
}

fn waiting(world: &World, key: &Key) -> Option<VolumeEvent> {
    let pods = world.users(key).filter(|(_, pod)| pod.node.is_empty() && !pod.is_over);
    let names: Vec<String> = pods.map(|((_, name), _)| name).collect();
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

fn provision(claim: &Value, provisioner: &str, node: Option<&str>) -> Decision<ClaimStep> {
    if provisioner.starts_with(BUILT_IN) {
        let why = format!("no volume plugin matched name: {provisioner}");
        return pending(claim, VolumeEvent::warning("ProvisioningFailed", why));
    }
    let event = VolumeEvent::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' \
             or manually by the system administrator. If volume creation is delayed, please verify \
             that the provisioner is running and correctly registered."
        ),
    );
    let annotations = &claim["metadata"]["annotations"];
    let is_asked = PROVISIONERS.iter().all(|key| annotations[*key] == provisioner)
        && node.is_none_or(|node| annotations[SELECTED_NODE] == node);
    let step =
        ClaimStep::Provision { provisioner: provisioner.to_owned(), node: node.map(str::to_owned) };
    ((!is_asked).then_some(step), event)
}

/// On a claim: its provisioner, under two names.
pub(super) const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// A claim that names its volume.
fn prebound(world: &World, key: &Key, claim: &Value, name: &str) -> Decision<ClaimStep> {
    let bind = || (Some(ClaimStep::Bind(name.to_owned())), None);
    match world.volumes.get(name) {
        None => pending(claim, None),
        Some(volume) if volume["spec"]["claimRef"].is_null() => {
            match matching::mismatch(volume, claim) {
                None => bind(),
                Some(why) => {
                    let why = format!("Cannot bind to requested volume {name:?}: {why}");
                    pending(claim, VolumeEvent::warning("VolumeMismatch", why))
                }
            }
        }
        Some(volume) if matching::is_for(volume, key, claim) => bind(),
        Some(_) => {
            let why = format!("volume {name:?} already bound to a different claim.");
            pending(claim, VolumeEvent::warning("FailedBinding", why))
        }
    }
}

/// What is next for a volume.
pub(super) fn volume(world: &World, name: &str) -> Decision<VolumeStep> {
    let Some(volume) = world.volumes.get(name) else { return (None, None) };
    let phase = text(&volume["status"]["phase"]);
    let enter =
        |to: &'static str| ((phase != to).then(|| VolumeStep::Phase(to, String::new())), None);
    let is_released = matches!(phase, "Released" | "Failed");
    let decision = match claim_of(volume) {
        None => enter("Available"),
        Some(_) if text(&volume["spec"]["claimRef"]["uid"]).is_empty() => enter("Available"),
        Some(key) => {
            let uid = text(&volume["spec"]["claimRef"]["uid"]);
            let claim = world.claims.get(&key).filter(|claim| object::uid(claim) == uid);
            match claim.map(|claim| (claim, text(&claim["spec"]["volumeName"]))) {
                None if is_released => reclaim(volume),
                None => enter("Released"),
                Some((claim, "")) => (None, mode_conflict(volume, claim)),
                Some((_, bound)) if bound == name => enter("Bound"),
                Some(_) if is_disposable(volume) && is_released => reclaim(volume),
                Some(_) if is_disposable(volume) => enter("Released"),
                Some(_) => (Some(VolumeStep::Unbind), None),
            }
        }
    };
    let may_go =
        object::is_deleting(volume) && phase != "Bound" && is_protected(volume, VOLUME_PROTECTION);
    match decision {
        (None, event) if may_go => (Some(VolumeStep::Unprotect), event),
        decision => decision,
    }
}

/// Such a volume is skipped when the claim is reconciled.
fn mode_conflict(volume: &Value, claim: &Value) -> Option<VolumeEvent> {
    let why = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
        object::name(claim)
    );
    match matching::same_mode(volume, claim) {
        true => None,
        false => VolumeEvent::warning("VolumeMismatch", why),
    }
}

/// Made for a claim that has got another one.
fn is_disposable(volume: &Value) -> bool {
    has_annotation(volume, PROVISIONED_BY)
        && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
}

/// What becomes of a volume whose claim is gone.
fn reclaim(volume: &Value) -> Decision<VolumeStep> {
    if volume["status"]["phase"] == "Failed" {
        return (None, None);
    }
    let fail = |reason, why: String| {
        (Some(VolumeStep::Phase("Failed", why.clone())), VolumeEvent::warning(reason, why))
    };
    match text(&volume["spec"]["persistentVolumeReclaimPolicy"]) {
        "Recycle" => {
            fail("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned())
        }
        "Delete" if is_deleted_by_others(volume) || object::is_deleting(volume) => (None, None),
        "Delete" if !volume["spec"]["hostPath"].is_null() => (Some(VolumeStep::DeleteData), None),
        "Delete" => fail(
            "VolumeFailedDelete",
            format!(
                "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                object::name(volume)
            ),
        ),
        _ => (None, None),
    }
}

fn is_deleted_by_others(volume: &Value) -> bool {
    let maker = text(&volume["metadata"]["annotations"][PROVISIONED_BY]);
    (!maker.is_empty() && !maker.starts_with(BUILT_IN))
        || has_annotation(volume, MIGRATED_TO)
        || !volume["spec"]["csi"].is_null()
}
