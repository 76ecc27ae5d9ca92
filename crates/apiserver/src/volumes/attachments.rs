//! PURE: which volumes are to be attached to a node. A driver's attacher does it; this says what
//! it is to do, by VolumeAttachments, and tells the node what was done. Disks that a node logs in to
//! by itself (iSCSI) are attached when a pod wants them.
//!
//! Current limitations: a node that is gone for good keeps what it said that it uses; upstream
//! takes volumes away from it after six minutes. An iSCSI disk is not kept from a second node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::binder::{Told, is_bound_for_good};
use super::world::{Key, World};
use crate::object;
use crate::schema::value::{items, text};

/// What unique names of CSI volumes begin with.
const CSI: &str = "kubernetes.io/csi/";
/// What those of iSCSI disks begin with. Nodes log in to these by themselves, once they are told.
const ISCSI: &str = "kubernetes.io/iscsi/";

/// Whether a unique name is of a kind of volume that is attached here.
pub(super) fn is_ours_to_tell(name: &str) -> bool {
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
    /// Names of VolumeAttachments that nobody needs.
    pub(super) detach: Vec<String>,
    /// What the node is to be told that it has, by unique names; `None` when it knows.
    pub(super) attached: Option<BTreeSet<String>>,
    /// What pods on the node are told.
    pub(super) told: Vec<(Key, Told)>,
}

/// The name that a volume has on a node, whatever pod uses it: driver and handle.
fn unique_name(volume: &Value) -> String {
    let csi = &volume["spec"]["csi"];
    format!("{CSI}{}^{}", text(&csi["driver"]), text(&csi["volumeHandle"]))
}

/// The name under which every attacher and node looks for the attachment.
fn attachment_name(volume: &Value, node: &str) -> String {
    let csi = &volume["spec"]["csi"];
    let (driver, handle) = (text(&csi["driver"]), text(&csi["volumeHandle"]));
    let hash = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
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

/// Whether a volume has a driver that has to attach it.
fn is_attachable(world: &World, volume: &Value) -> bool {
    let needs = |driver: &Value| driver["spec"]["attachRequired"] != false;
    let driver = volume["spec"]["csi"]["driver"].as_str();
    // A driver that says nothing of itself has to be waited for.
    driver.is_some_and(|driver| world.drivers.get(driver).is_none_or(needs))
}

/// The node that alone may have the volume, when it has it already.
fn other_holder<'a>(world: &'a World, volume: &Value, node: &str) -> Option<&'a str> {
    let is_shared = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    if items(&volume["spec"]["accessModes"]).iter().any(is_shared) {
        return None;
    }
    let name = object::name(volume);
    let attachments = world.attachments.values().map(|attachment| &attachment["spec"]);
    let mut holders = attachments
        .filter(|spec| spec["source"]["persistentVolumeName"] == name)
        .map(|spec| text(&spec["nodeName"]));
    holders.find(|holder| *holder != node)
}

/// What is next for a node.
pub(super) fn plan(world: &World, name: &str) -> Plan {
    let mut plan = Plan::default();
    let node = world.nodes.get(name);
    if node.is_some_and(|node| !node.is_managed) {
        return plan;
    }
    // By the name of the attachment: the volume, and a pod that wants it.
    let mut wanted: BTreeMap<String, (&Value, Key)> = BTreeMap::new();
    let mut attached: BTreeSet<String> = BTreeSet::new();
    for (key, pod) in world.pods_on(name).filter(|(_, pod)| !pod.is_over) {
        attached.extend(pod.disks.iter().cloned());
        for claim in pod.claims() {
            let Some(volume) = behind(world, &(key.0.clone(), claim)) else { continue };
            attached.extend(disk_name(&volume["spec"]["iscsi"]));
            if is_attachable(world, volume) {
                wanted.entry(attachment_name(volume, name)).or_insert((volume, key.clone()));
            }
        }
    }
    let here = |attachment: &&Value| attachment["spec"]["nodeName"] == name;
    for attachment in world.attachments.values().filter(here) {
        let own = object::name(attachment);
        let volume = text(&attachment["spec"]["source"]["persistentVolumeName"]);
        let unique = world.volumes.get(volume).map(unique_name).unwrap_or_default();
        let is_used = node.is_some_and(|node| node.in_use.contains(&unique));
        let is_deleting = object::is_deleting(attachment);
        if wanted.remove(own).is_none() && !is_used && !is_deleting && is_ours(own) {
            plan.detach.push(own.to_owned());
        } else if attachment["status"]["attached"] == true && !is_deleting && !unique.is_empty() {
            attached.insert(unique);
        }
    }
    let Some(node) = node else { return plan };
    for (own, (volume, pod)) in wanted {
        match other_holder(world, volume, name) {
            Some(_) => {
                let why = format!(
                    "Multi-Attach error for volume {:?} Volume is already exclusively attached to one node and can't be attached to another",
                    object::name(volume)
                );
                plan.told.extend(Told::warning("FailedAttachVolume", why).map(|told| (pod, told)));
            }
            None => plan.attach.push(attachment(&own, volume, name)),
        }
    }
    // A disk stays as long as it is used; what others attached is theirs to tell.
    let stays = |name: &&String| match name.starts_with(ISCSI) {
        true => node.in_use.contains(*name),
        false => !is_ours_to_tell(name),
    };
    attached.extend(node.attached.iter().filter(stays).cloned());
    plan.attached = (attached != node.attached).then_some(attached);
    plan
}

fn attachment(name: &str, volume: &Value, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": volume["spec"]["csi"]["driver"],
            "nodeName": node,
            "source": {"persistentVolumeName": object::name(volume)},
        },
    })
}
