//! PURE: which volumes are to be attached to a node. A driver's attacher does it; this says what
//! it is to do, by VolumeAttachments, and reports to the node what was done. Disks that a node logs in to
//! by itself (iSCSI) are attached when a pod uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_informer::{Store, key_of, object_key};

use super::csi_volume::{CsiVolume, ISCSI, disk_name, is_attached_here, migrated};
use crate::nodelifecycle::taints::{OUT_OF_SERVICE, condition, has_taint};
use crate::pods::{BY_NODE, index_by_node, node_of};
use crate::volumes::event::VolumeEvent;
use crate::volumes::objects::{
    BY_CLAIM, access_modes, annotation, claim_name, claim_of, claim_uid, index_pods,
    is_bound_for_good, is_deleting, is_made_by, is_terminated, volume_name, volume_spec,
    volumes_of,
};
use crate::workload::{name_of, namespace_of, uid_of};

/// The annotation of nodes whose volumes are attached here.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The index of volumes by the name that they have on nodes.
const BY_UNIQUE_NAME: &str = "unique name";
/// The index of attachments by what they attach.
const BY_SOURCE: &str = "source";
/// The index of nodes by the iSCSI disks that they have.
const BY_DISK: &str = "disk";

/// What is decided from.
#[derive(Clone, Copy)]
pub(in crate::volumes) struct State<'a> {
    pub(in crate::volumes) volumes: &'a Store<PersistentVolume>,
    pub(in crate::volumes) claims: &'a Store<PersistentVolumeClaim>,
    pub(in crate::volumes) drivers: &'a Store<CSIDriver>,
    pub(in crate::volumes) attachments: &'a Store<VolumeAttachment>,
    pub(in crate::volumes) nodes: &'a Store<Node>,
    pub(in crate::volumes) pods: &'a Store<Pod>,
    /// Attachments that were created and are not in the store yet.
    pub(in crate::volumes) created: &'a [VolumeAttachment],
    /// Unique names of volumes that the node has not unmounted for too long.
    pub(in crate::volumes) expired: &'a BTreeSet<String>,
    /// What the node had mounted when it was deleted, if that was seen.
    pub(in crate::volumes) last_in_use: Option<&'a BTreeSet<String>>,
}

/// What is to happen for a node.
#[derive(Debug, Default, PartialEq)]
pub(in crate::volumes) struct Plan {
    /// New VolumeAttachments.
    pub(in crate::volumes) attach: Vec<VolumeAttachment>,
    /// Names of VolumeAttachments that are not needed.
    pub(in crate::volumes) detach: Vec<String>,
    /// Those of them for which it does not matter whether the node has them mounted, and why.
    pub(in crate::volumes) forced: BTreeMap<String, &'static str>,
    /// The new `volumesAttached` of the node, by unique names; `None`: unchanged.
    pub(in crate::volumes) attached: Option<BTreeSet<String>>,
    /// Unique names of volumes that are not needed, and that the node still has mounted.
    pub(in crate::volumes) mounted: BTreeSet<String>,
    /// Events about pods on the node.
    pub(in crate::volumes) events: Vec<(Arc<Pod>, VolumeEvent)>,
}

/// Adds the indexes.
pub(in crate::volumes) fn index(state: State<'_>) {
    index_pods(state.pods);
    index_by_node(state.pods);
    state.volumes.add_index(BY_UNIQUE_NAME, |volume| {
        CsiVolume::of(volume).map(|volume| volume.unique_name()).into_iter().collect()
    });
    state.attachments.add_index(BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
    state.attachments.add_index(BY_SOURCE, |attachment| {
        let source = &attachment.spec.source;
        let inline = source.inline_volume_spec.as_ref().and_then(CsiVolume::of_spec);
        let inline = inline.map(|volume| volume.unique_name());
        source.persistent_volume_name.clone().or(inline).into_iter().collect()
    });
    state.nodes.add_index(BY_DISK, |node| {
        attached_to(node).filter(|name| name.starts_with(ISCSI)).map(str::to_owned).collect()
    });
}

/// `volumesAttached`, by unique names.
pub(super) fn attached_to(node: &Node) -> impl Iterator<Item = &str> {
    let status = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
    status.into_iter().flatten().map(|volume| volume.name.as_str())
}

/// What the node says that it still has mounted, by unique names.
pub(super) fn in_use(node: &Node) -> BTreeSet<&str> {
    let names = node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
    names.into_iter().flatten().map(String::as_str).collect()
}

/// Whether volumes of the node are attached here, rather than by its kubelet.
pub(super) fn is_managed(node: &Node) -> bool {
    annotation(node, MANAGED).is_some()
}

/// Whether the node is known to be out of service: nothing of it uses volumes.
pub(super) fn is_out_of_service(node: &Node) -> bool {
    has_taint(node, OUT_OF_SERVICE)
}

pub(super) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready") == Some("True")
}

/// A volume that is to be attached.
struct Wanted {
    csi_volume: CsiVolume,
    /// The PersistentVolume, or the one translated from an inline volume.
    volume: Arc<PersistentVolume>,
    source: VolumeAttachmentSource,
    /// The pods that use it.
    pods: Vec<Arc<Pod>>,
}

impl Wanted {
    fn events<'a>(
        &'a self,
        event: impl Fn(&Pod) -> Option<VolumeEvent> + 'a,
    ) -> impl Iterator<Item = (Arc<Pod>, VolumeEvent)> + 'a {
        self.pods.iter().filter_map(move |pod| Some((pod.clone(), event(pod)?)))
    }
}

/// Whether this or its like made the attachment.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("csi-")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The volume behind a claim.
fn behind(state: State<'_>, claim: &str) -> Option<Arc<PersistentVolume>> {
    let claim = state.claims.get(claim).filter(|claim| is_bound_for_good(claim))?;
    let volume = state.volumes.get(volume_name(&claim))?;
    (claim_uid(&volume) == uid_of(&*claim)).then_some(volume)
}

/// Whether only one node may have the volume at a time. Without access modes nothing is known, and
/// the attacher refuses if it must.
fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = access_modes(volume);
    !modes.is_empty() && !modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// Whether a volume of that unique name is attached to another node.
fn is_attached_elsewhere(state: State<'_>, csi_volume: &CsiVolume, node: &str) -> bool {
    let unique = csi_volume.unique_name();
    let volumes = state.volumes.by_index(BY_UNIQUE_NAME, &unique);
    let names = volumes.iter().map(|volume| name_of(&**volume));
    let mut attachments = names
        .chain([unique.as_str()])
        .flat_map(|source| state.attachments.by_index(BY_SOURCE, source));
    let is_new = |attachment: &&VolumeAttachment| {
        let volume = CsiVolume::attached(state.volumes, attachment);
        attachment.spec.node_name != node && volume.as_ref() == Some(csi_volume)
    };
    attachments.any(|attachment| attachment.spec.node_name != node)
        || state.created.iter().any(|attachment| is_new(&attachment))
}

/// The iSCSI disk of a PersistentVolume.
fn disk_of(volume: &PersistentVolume) -> Option<String> {
    let disk = volume_spec(volume).iscsi.as_ref()?;
    Some(disk_name(&disk.target_portal, &disk.iqn, disk.lun))
}

/// That the pod waits because another node has the volume.
fn multi_attach(
    state: State<'_>,
    volume: &PersistentVolume,
    node: &str,
    pod: &Pod,
) -> Option<VolumeEvent> {
    let claim = claim_of(volume).unwrap_or_default();
    let users = state.pods.by_index(BY_CLAIM, &claim);
    let others: Vec<_> = users
        .iter()
        .filter(|other| !is_terminated(other))
        .filter(|other| !node_of(other).is_empty() && node_of(other) != node)
        .collect();
    let local: Vec<&str> = others
        .iter()
        .filter(|other| namespace_of::<Pod>(other) == namespace_of(pod))
        .map(|other| name_of::<Pod>(other))
        .collect();
    let elsewhere = others.len().saturating_sub(local.len());
    let why = match (local.as_slice(), elsewhere) {
        ([], 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned()
        }
        ([], count) => format!("Volume is already used by {count} pod(s) in different namespaces"),
        (local, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (local, count) => format!(
            "Volume is already used by pod(s) {} and {count} pod(s) in different namespaces",
            local.join(", ")
        ),
    };
    let why = format!("Multi-Attach error for volume {:?} {why}", name_of(volume));
    VolumeEvent::warning("FailedAttachVolume", why)
}

/// What pods on a node use: CSI volumes by the name of their attachment, and iSCSI disks.
#[derive(Default)]
struct Used {
    wanted: BTreeMap<String, Wanted>,
    /// By their unique names, with the volume if there is one, and a pod.
    disks: BTreeMap<String, (Option<Arc<PersistentVolume>>, Arc<Pod>)>,
}

impl Used {
    fn of(state: State<'_>, node: &str) -> Self {
        let mut used = Self::default();
        for pod in state.pods.by_index(BY_NODE, node) {
            if is_terminated(&pod) {
                continue;
            }
            for volume in volumes_of(&pod) {
                if let Some(claim) = claim_name(&pod, volume) {
                    let key = object_key(namespace_of(&*pod), &claim);
                    let is_for_it = |claim: &PersistentVolumeClaim| is_made_by(claim, &pod);
                    if volume.ephemeral.is_some()
                        && !state.claims.get(&key).is_some_and(|claim| is_for_it(&claim))
                    {
                        continue;
                    }
                    let Some(volume) = behind(state, &key) else { continue };
                    if let Some(disk) = disk_of(&volume) {
                        used.disks.entry(disk).or_insert((Some(volume.clone()), pod.clone()));
                    }
                    let source = VolumeAttachmentSource {
                        persistent_volume_name: Some(name_of(&*volume).to_owned()),
                        inline_volume_spec: None,
                    };
                    used.want(state, node, &pod, volume, source);
                } else if let Some(disk) = &volume.iscsi {
                    let name = disk_name(&disk.target_portal, &disk.iqn, disk.lun);
                    used.disks.entry(name).or_insert((None, pod.clone()));
                } else if let Some(volume) = migrated(&pod, volume) {
                    let source = VolumeAttachmentSource {
                        persistent_volume_name: None,
                        inline_volume_spec: volume.spec.clone(),
                    };
                    used.want(state, node, &pod, Arc::new(volume), source);
                }
            }
        }
        used
    }

    fn want(
        &mut self,
        state: State<'_>,
        node: &str,
        pod: &Arc<Pod>,
        volume: Arc<PersistentVolume>,
        source: VolumeAttachmentSource,
    ) {
        let Some(csi_volume) = CsiVolume::of(&volume) else { return };
        if csi_volume.is_attachable(state.drivers) {
            let name = csi_volume.attachment_name(node);
            let new = || Wanted { csi_volume, volume, source, pods: Vec::new() };
            self.wanted.entry(name).or_insert_with(new).pods.push(pod.clone());
        }
    }
}

/// What is next for a node.
pub(in crate::volumes) fn plan(state: State<'_>, name: &str) -> Plan {
    let mut plan = Plan::default();
    let node = state.nodes.get(name);
    if node.as_ref().is_some_and(|node| !is_managed(node)) {
        return plan;
    }
    let Used { mut wanted, disks } = Used::of(state, name);
    let before: BTreeSet<&str> = node.iter().flat_map(|node| attached_to(node)).collect();
    let mut attached: BTreeSet<String> = BTreeSet::new();
    // A volume that is mounted stays, unless the node is down for too long. One that was deleted may run
    // on, with what it had mounted.
    let is_kept = |unique: &str| match &node {
        Some(node) => {
            in_use(node).contains(unique)
                && !is_out_of_service(node)
                && (is_ready(node) || !state.expired.contains(unique))
        }
        None => {
            state.last_in_use.is_some_and(|volumes| volumes.contains(unique))
                && !state.expired.contains(unique)
        }
    };
    for attachment in state.attachments.by_index(BY_NODE, name) {
        let own = name_of(&*attachment);
        let csi_volume = CsiVolume::attached(state.volumes, &attachment);
        let unique = csi_volume.map(|csi_volume| csi_volume.unique_name()).unwrap_or_default();
        let is_deleting = is_deleting(&*attachment);
        let status = attachment.status.as_ref();
        let is_attached = status.is_some_and(|status| status.attached);
        let used = wanted.remove(own);
        if used.is_none() && !is_deleting && is_ours(own) {
            if !is_kept(&unique) {
                if state.expired.contains(&unique) {
                    plan.forced.insert(own.to_owned(), "timeout");
                } else if node.as_ref().is_some_and(|node| is_out_of_service(node)) {
                    plan.forced.insert(own.to_owned(), "out-of-service");
                }
                plan.detach.push(own.to_owned());
                continue;
            }
            plan.mounted.insert(unique.clone());
        }
        if is_deleting {
            continue;
        }
        if let (Some(used), Some(_)) = (&used, &node) {
            let volume = name_of(&*used.volume);
            let error = status.and_then(|status| status.attach_error.as_ref());
            let error = error.and_then(|error| error.message.as_deref());
            if is_attached && !before.contains(unique.as_str()) {
                let why = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
                let event = VolumeEvent::normal("SuccessfulAttachVolume", why);
                plan.events.extend(used.events(move |_| event.clone()));
            } else if let Some(error) = error.filter(|_| !is_attached) {
                let why = format!("AttachVolume.Attach failed for volume {volume:?} : {error}");
                let event = VolumeEvent::warning("FailedAttachVolume", why);
                plan.events.extend(used.events(move |_| event.clone()));
            }
        }
        if is_attached && !unique.is_empty() {
            attached.insert(unique);
        }
    }
    let Some(node) = &node else { return plan };
    for (own, wanted) in wanted {
        if is_exclusive(&wanted.volume) && is_attached_elsewhere(state, &wanted.csi_volume, name) {
            let event = |pod: &Pod| multi_attach(state, &wanted.volume, name, pod);
            plan.events.extend(wanted.events(event));
        } else {
            plan.attach.push(attachment(own, wanted, name));
        }
    }
    for (disk, (volume, pod)) in &disks {
        let exclusive = volume.as_ref().filter(|volume| is_exclusive(volume));
        let nodes = state.nodes.by_index(BY_DISK, disk);
        match exclusive.filter(|_| nodes.iter().any(|other| key_of(&**other) != name)) {
            Some(volume) if !before.contains(disk.as_str()) => {
                let event = multi_attach(state, volume, name, pod);
                plan.events.extend(event.map(|event| (pod.clone(), event)));
            }
            _ => drop(attached.insert(disk.clone())),
        }
    }
    // A disk stays as long as it is mounted; entries of other attachers stay.
    for known in &before {
        let stays = match known.starts_with(ISCSI) {
            true => is_kept(known),
            false => !is_attached_here(known),
        };
        if stays && attached.insert((*known).to_owned()) && known.starts_with(ISCSI) {
            plan.mounted.insert((*known).to_owned());
        }
    }
    let is_same =
        attached.iter().map(String::as_str).eq(attached_to(node).collect::<BTreeSet<_>>());
    plan.attached = (!is_same).then_some(attached);
    plan
}

fn attachment(name: String, wanted: Wanted, node: &str) -> VolumeAttachment {
    VolumeAttachment {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: VolumeAttachmentSpec {
            attacher: wanted.csi_volume.driver,
            node_name: node.to_owned(),
            source: wanted.source,
        },
        status: None,
    }
}
