//! PURE: what the controllers of volumes read of claims, volumes and pods, and the indexes of them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{
    ContainerStatus, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, Pod, Volume,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_informer::{Object, Store, object_key};
use longshore_quantity::Quantity;

use crate::pods::index_by_node;
use crate::workload::{controller_of, is_finished, name_of, namespace_of, uid_of};

/// On a claim: it was bound once, and never is again.
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or a volume: the controller chose the other one.
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: where its first pod will run.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: its provisioner, which also deletes it.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a claim or a volume: the driver that has taken over its plugin.
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a claim: its provisioner, under two names.
pub(super) const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// What named the class of claims and volumes before they had a field for it.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// What marks the class of claims that name none.
const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
pub(super) const STORAGE: &str = "storage";

/// The index of volumes by the claim that they are for, and of pods by the claims that they use.
pub(super) const BY_CLAIM: &str = "claim";
/// The index of available volumes, and of claims that were never bound, by their class.
pub(super) const OPEN_BY_CLASS: &str = "class";
/// The index of claims and volumes by the VolumeAttributesClasses that they name.
pub(super) const BY_ATTRIBUTES: &str = "attributes";

/// The value of an annotation.
pub(super) fn annotation<'a, K: Object>(object: &'a K, name: &str) -> Option<&'a str> {
    let annotations = object.metadata().annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

/// Sets an annotation; `false`: it was so.
pub(super) fn annotate(metadata: &mut ObjectMeta, name: &str, value: &str) -> bool {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(name.to_owned(), value.to_owned()).as_deref() != Some(value)
}

pub(super) fn is_deleting<K: Object>(object: &K) -> bool {
    object.metadata().deletion_timestamp.is_some()
}

pub(super) fn volume_spec(volume: &PersistentVolume) -> &PersistentVolumeSpec {
    static EMPTY: LazyLock<PersistentVolumeSpec> = LazyLock::new(PersistentVolumeSpec::default);
    volume.spec.as_ref().unwrap_or(&EMPTY)
}

pub(super) fn claim_spec(claim: &PersistentVolumeClaim) -> &PersistentVolumeClaimSpec {
    static EMPTY: LazyLock<PersistentVolumeClaimSpec> =
        LazyLock::new(PersistentVolumeClaimSpec::default);
    claim.spec.as_ref().unwrap_or(&EMPTY)
}

pub(super) fn access_modes(volume: &PersistentVolume) -> &[String] {
    volume_spec(volume).access_modes.as_deref().unwrap_or_default()
}

/// The volume that a claim names; empty if it names none.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim_spec(claim).volume_name.as_deref().unwrap_or_default()
}

pub(super) fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(super) fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether the claim was bound once: it is never bound to another volume.
pub(super) fn is_bound_for_good(claim: &PersistentVolumeClaim) -> bool {
    annotation(claim, BIND_COMPLETED).is_some()
}

/// The class that a claim names, if only that it has none: the annotation counts more.
pub(crate) fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, BETA_CLASS).or(claim_spec(claim).storage_class_name.as_deref())
}

/// The class of a volume; empty if it has none.
pub(super) fn volume_class(volume: &PersistentVolume) -> &str {
    let named = volume_spec(volume).storage_class_name.as_deref();
    annotation(volume, BETA_CLASS).or(named).unwrap_or_default()
}

/// The class of claims that name none: the newest that is marked so, of equally old ones the first.
pub(super) fn default_class(classes: &Store<StorageClass>) -> Option<String> {
    let is_default = |class: &StorageClass| {
        IS_DEFAULT.iter().any(|mark| annotation(class, mark) == Some("true"))
    };
    let age = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let defaults = classes.list().into_iter().filter(|class| is_default(class));
    let newest =
        defaults.max_by(|a, b| age(a).cmp(&age(b)).then_with(|| name_of(&**b).cmp(name_of(&**a))));
    newest.map(|class| name_of(&*class).to_owned())
}

/// In billionths of a byte; what is no quantity is none.
pub(super) fn storage(amounts: Option<&BTreeMap<String, ApiQuantity>>) -> i128 {
    let amount = amounts.and_then(|amounts| amounts.get(STORAGE));
    amount.and_then(|amount| Quantity::parse(&amount.0)).map_or(0, Quantity::amount)
}

/// The size that a claim requests, in billionths of a byte.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> i128 {
    let resources = claim_spec(claim).resources.as_ref();
    storage(resources.and_then(|resources| resources.requests.as_ref()))
}

/// The size of a volume, in billionths of a byte.
pub(super) fn size(volume: &PersistentVolume) -> i128 {
    storage(volume_spec(volume).capacity.as_ref())
}

/// The key of the claim that a volume is for, whether or not it is bound.
pub(super) fn claim_of(volume: &PersistentVolume) -> Option<String> {
    let claim = volume_spec(volume).claim_ref.as_ref()?;
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    Some(object_key(namespace, claim.name.as_deref().unwrap_or_default()))
}

/// The UID of the claim that a volume is bound to; empty if it is for any claim of that name.
pub(super) fn claim_uid(volume: &PersistentVolume) -> &str {
    let claim = volume_spec(volume).claim_ref.as_ref();
    claim.and_then(|claim| claim.uid.as_deref()).unwrap_or_default()
}

/// The name of the claim of a pod's ephemeral volume.
pub(super) fn ephemeral_name(pod: &Pod, volume: &Volume) -> String {
    format!("{}-{}", name_of(pod), volume.name)
}

/// Whether its node is done with it: it ended, or it is being deleted and nothing of it runs.
pub(super) fn is_terminated(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let runs = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    is_finished(pod) || (is_deleting(pod) && !statuses.unwrap_or_default().iter().any(runs))
}

pub(super) fn volumes_of(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
}

/// The name of the claim of a pod's volume, if it has one.
pub(super) fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    if volume.ephemeral.is_some() {
        return Some(ephemeral_name(pod, volume));
    }
    volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone())
}

/// The keys of all claims that a pod uses.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let names = volumes_of(pod).iter().filter_map(|volume| claim_name(pod, volume));
    names.filter(|name| !name.is_empty()).map(|name| object_key(namespace_of(pod), &name))
}

/// Whether the pod made the claim for one of its volumes.
pub(super) fn is_made_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    controller_of(&claim.metadata).is_some_and(|owner| owner.uid == uid_of(pod))
}

/// The names of the VolumeAttributesClasses of a claim: the one it asks for, the one it has, and the
/// one it is being given.
pub(crate) fn attributes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.as_ref());
    let names = [
        claim_spec(claim).volume_attributes_class_name.as_ref(),
        status.and_then(|status| status.current_volume_attributes_class_name.as_ref()),
        target,
    ];
    names.into_iter().flatten().filter(|name| !name.is_empty()).cloned().collect()
}

/// The name of the VolumeAttributesClass of a volume.
pub(super) fn attributes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume_spec(volume).volume_attributes_class_name.as_ref();
    name.into_iter().filter(|name| !name.is_empty()).cloned().collect()
}

/// Adds the indexes of volumes.
pub(super) fn index_volumes(volumes: &Store<PersistentVolume>) {
    volumes.add_index(BY_CLAIM, |volume| claim_of(volume).into_iter().collect());
    volumes.add_index(OPEN_BY_CLASS, |volume| {
        let is_open = claim_of(volume).is_none() && volume_phase(volume) == "Available";
        if is_open { vec![volume_class(volume).to_owned()] } else { vec![] }
    });
    volumes.add_index(BY_ATTRIBUTES, attributes_of_volume);
}

/// Adds the indexes of claims.
pub(super) fn index_claims(claims: &Store<PersistentVolumeClaim>) {
    claims.add_index(OPEN_BY_CLASS, |claim| match is_bound_for_good(claim) {
        true => vec![],
        false => vec![claim_class(claim).unwrap_or_default().to_owned()],
    });
    claims.add_index(BY_ATTRIBUTES, attributes_of_claim);
}

/// Adds the indexes of pods.
pub(super) fn index_pods(pods: &Store<Pod>) {
    index_by_node(pods);
    pods.add_index(BY_CLAIM, |pod| claims_of(pod).collect());
}
