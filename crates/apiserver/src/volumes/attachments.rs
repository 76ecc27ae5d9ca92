//! PURE: which volumes are to be attached to a node. A driver's attacher does it; this says what
//! it is to do, by VolumeAttachments, and reports to the node what was done. Disks that a node logs in to
//! by itself (iSCSI) are attached when a pod uses them.
//!
//! What CSI drivers have taken over of other kinds of volume is theirs here, too.
//!
//! Current limitations: a node that is gone for good keeps what it said that it uses; upstream
//! takes volumes away from it after six minutes. An iSCSI disk is not kept from a second node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::binder::{VolumeEvent, is_bound_for_good};
use super::world::{Key, World};
use crate::object;
use crate::schema::value::{items, text};

/// The prefix of unique names of CSI volumes.
const CSI: &str = "kubernetes.io/csi/";
/// The prefix of iSCSI disks. Nodes log in to these themselves, once they are in `volumesAttached`.
const ISCSI: &str = "kubernetes.io/iscsi/";

/// Whether volumes of that unique name are attached here.
pub(super) fn is_attached_here(name: &str) -> bool {
    name.starts_with(CSI) || name.starts_with(ISCSI)
}

/// The name that an iSCSI disk has on a node.
pub(super) fn disk_name(source: &Value) -> Option<String> {
    let portal = source["targetPortal"].as_str()?;
    let (iqn, lun) = (text(&source["iqn"]), source["lun"].as_i64().unwrap_or(0));
    Some(format!("{ISCSI}{portal}:{iqn}:{lun}"))
}

/// What is to happen for a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// New VolumeAttachments.
    pub(super) attach: Vec<Value>,
    /// Names of VolumeAttachments that are not needed.
    pub(super) detach: Vec<String>,
    /// The new `volumesAttached` of the node, by unique names; `None`: unchanged.
    pub(super) attached: Option<BTreeSet<String>>,
    /// Events about pods on the node.
    pub(super) events: Vec<(Key, VolumeEvent)>,
}

/// A volume as its driver knows it.
#[derive(Debug, PartialEq, Eq)]
struct CsiVolume {
    driver: String,
    handle: String,
}

impl CsiVolume {
    /// The PersistentVolume; `None`: it has no driver, or one that cannot know it.
    fn of(volume: &Value) -> Option<Self> {
        if volume["spec"]["csi"].is_object() {
            return Self::of_spec(&volume["spec"]);
        }
        let translated = longshore_migration::persistent(volume).ok().flatten()?;
        Self::of_spec(&translated["spec"])
    }

    fn of_spec(spec: &Value) -> Option<Self> {
        let csi = &spec["csi"];
        let driver = csi["driver"].as_str()?.to_owned();
        Some(Self { driver, handle: text(&csi["volumeHandle"]).to_owned() })
    }

    /// What is attached by an attachment.
    fn attached(world: &World, attachment: &Value) -> Option<Self> {
        let source = &attachment["spec"]["source"];
        match source["persistentVolumeName"].as_str() {
            Some(name) => Self::of(world.volumes.get(name)?),
            None => Self::of_spec(&source["inlineVolumeSpec"]),
        }
    }

    /// The name that the volume has on a node, whatever pod uses it.
    fn unique_name(&self) -> String {
        format!("{CSI}{}^{}", self.driver, self.handle)
    }

    /// The name of the VolumeAttachment, as attachers and kubelets compute it.
    fn attachment_name(&self, node: &str) -> String {
        let hash = Sha256::digest(format!("{}{}{node}", self.handle, self.driver));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("csi-{hex}")
    }

    /// Whether the driver has to attach it. One that says nothing of itself has to be waited for.
    fn is_attachable(&self, world: &World) -> bool {
        let needs = |driver: &Value| driver["spec"]["attachRequired"] != false;
        world.drivers.get(&self.driver).is_none_or(needs)
    }
}

/// A volume that is to be attached.
struct Wanted<'a> {
    csi_volume: CsiVolume,
    /// The PersistentVolume, or the one translated from an inline volume.
    volume: &'a Value,
    /// The source in the VolumeAttachment.
    source: Value,
    /// A pod that uses it.
    pod: Key,
}

/// Whether this or its like made the attachment.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("csi-")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The volume behind a claim.
fn behind<'a>(world: &'a World, claim: &Key) -> Option<&'a Value> {
    let claim = world.claims.get(claim).filter(|claim| is_bound_for_good(claim))?;
    let volume = world.volumes.get(text(&claim["spec"]["volumeName"]))?;
    (volume["spec"]["claimRef"]["uid"] == object::uid(claim)).then_some(volume)
}

/// Whether another node alone may have the volume, and has it already.
fn is_held_elsewhere(world: &World, wanted: &Wanted<'_>, node: &str) -> bool {
    let is_shared = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    if items(&wanted.volume["spec"]["accessModes"]).iter().any(is_shared) {
        return false;
    }
    let mut others = world.attachments.values().filter(|attachment| {
        let spec = &attachment["spec"];
        spec["attacher"] == wanted.csi_volume.driver.as_str() && spec["nodeName"] != node
    });
    others.any(|other| CsiVolume::attached(world, other).as_ref() == Some(&wanted.csi_volume))
}

/// What is next for a node.
pub(super) fn plan(world: &World, name: &str) -> Plan {
    let mut plan = Plan::default();
    let node = world.nodes.get(name);
    if node.is_some_and(|node| !node.is_managed) {
        return plan;
    }
    // By the name of the attachment.
    let mut wanted: BTreeMap<String, Wanted<'_>> = BTreeMap::new();
    let mut want = |csi_volume: Option<CsiVolume>, volume, source, pod: &Key| {
        if let Some(csi_volume) = csi_volume.filter(|csi_volume| csi_volume.is_attachable(world)) {
            let new = Wanted { volume, source, pod: pod.clone(), csi_volume };
            wanted.entry(new.csi_volume.attachment_name(name)).or_insert(new);
        }
    };
    let mut attached: BTreeSet<String> = BTreeSet::new();
    for (key, pod) in world.pods_on(name).filter(|(_, pod)| !pod.is_over) {
        attached.extend(pod.disks.iter().cloned());
        for claim in pod.claims() {
            let Some(volume) = behind(world, &(key.0.clone(), claim)) else { continue };
            attached.extend(disk_name(&volume["spec"]["iscsi"]));
            let source = json!({"persistentVolumeName": object::name(volume)});
            want(CsiVolume::of(volume), volume, source, key);
        }
        for volume in &pod.migrated {
            let source = json!({"inlineVolumeSpec": volume["spec"]});
            want(CsiVolume::of(volume), volume, source, key);
        }
    }
    let here = |attachment: &&Value| attachment["spec"]["nodeName"] == name;
    for attachment in world.attachments.values().filter(here) {
        let own = object::name(attachment);
        let csi_volume = CsiVolume::attached(world, attachment);
        let unique = csi_volume.map(|csi_volume| csi_volume.unique_name()).unwrap_or_default();
        let is_used = node.is_some_and(|node| node.in_use.contains(&unique));
        let is_deleting = object::is_deleting(attachment);
        if wanted.remove(own).is_none() && !is_used && !is_deleting && is_ours(own) {
            plan.detach.push(own.to_owned());
        } else if attachment["status"]["attached"] == true && !is_deleting && !unique.is_empty() {
            attached.insert(unique);
        }
    }
    let Some(node) = node else { return plan };
    for (own, wanted) in wanted {
        if is_held_elsewhere(world, &wanted, name) {
            let why = format!(
                "Multi-Attach error for volume {:?} Volume is already exclusively attached to one node and can't be attached to another",
                object::name(wanted.volume)
            );
            let event = VolumeEvent::warning("FailedAttachVolume", why);
            plan.events.extend(event.map(|event| (wanted.pod, event)));
        } else {
            plan.attach.push(attachment(&own, wanted, name));
        }
    }
    // A disk stays as long as it is used; entries of other attachers stay.
    let stays = |name: &&String| match name.starts_with(ISCSI) {
        true => node.in_use.contains(*name),
        false => !is_attached_here(name),
    };
    attached.extend(node.attached.iter().filter(stays).cloned());
    plan.attached = (attached != node.attached).then_some(attached);
    plan
}

fn attachment(name: &str, wanted: Wanted<'_>, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": wanted.csi_volume.driver,
            "nodeName": node,
            "source": wanted.source,
        },
    })
}
