//! PURE: volumes as their CSI drivers know them, those among them whose kind a driver has taken over.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod, Volume};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use longshore_informer::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::workload::namespace_of;

/// The prefix of unique names of CSI volumes.
pub(super) const CSI: &str = "kubernetes.io/csi/";
/// The prefix of iSCSI disks. Nodes log in to these themselves, once they are in `volumesAttached`.
pub(super) const ISCSI: &str = "kubernetes.io/iscsi/";

/// A volume as its driver knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::volumes) struct CsiVolume {
    pub(in crate::volumes) driver: String,
    handle: String,
}

fn to_value(object: &impl Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}

fn from_value<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

/// Whether the volume is of a kind that a driver may have taken over.
fn is_of_a_cloud(spec: &PersistentVolumeSpec) -> bool {
    spec.aws_elastic_block_store.is_some()
        || spec.azure_disk.is_some()
        || spec.azure_file.is_some()
        || spec.cinder.is_some()
        || spec.gce_persistent_disk.is_some()
        || spec.portworx_volume.is_some()
        || spec.vsphere_volume.is_some()
}

/// The same for a pod's own volume.
pub(super) fn is_inline_of_a_cloud(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some()
}

/// The PersistentVolume of a pod's own volume that is migrated to CSI. What its driver cannot handle
/// is reported by the node.
pub(in crate::volumes) fn migrated(pod: &Pod, volume: &Volume) -> Option<PersistentVolume> {
    if !is_inline_of_a_cloud(volume) {
        return None;
    }
    let translated = longshore_migration::inline(&to_value(volume)?, namespace_of(pod));
    from_value(translated.ok().flatten()?)
}

impl CsiVolume {
    /// The PersistentVolume; `None`: it has no driver, or one that cannot know it.
    pub(in crate::volumes) fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        if spec.csi.is_some() || !is_of_a_cloud(spec) {
            return Self::of_spec(spec);
        }
        let translated = longshore_migration::persistent(&to_value(volume)?).ok().flatten()?;
        Self::of_spec(from_value::<PersistentVolume>(translated)?.spec.as_ref()?)
    }

    pub(super) fn of_spec(spec: &PersistentVolumeSpec) -> Option<Self> {
        let csi = spec.csi.as_ref()?;
        Some(Self { driver: csi.driver.clone(), handle: csi.volume_handle.clone() })
    }

    /// What is attached by an attachment.
    pub(super) fn attached(
        volumes: &Store<PersistentVolume>,
        attachment: &VolumeAttachment,
    ) -> Option<Self> {
        let source = &attachment.spec.source;
        match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(name), _) => Self::of(&*volumes.get(name)?),
            (None, spec) => Self::of_spec(spec.as_ref()?),
        }
    }

    /// The name that the volume has on a node, whatever pod uses it.
    pub(in crate::volumes) fn unique_name(&self) -> String {
        format!("{CSI}{}^{}", self.driver, self.handle)
    }

    /// The name of the VolumeAttachment, as attachers and kubelets compute it.
    pub(super) fn attachment_name(&self, node: &str) -> String {
        let hash = Sha256::digest(format!("{}{}{node}", self.handle, self.driver));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("csi-{hex}")
    }

    /// Whether the driver has to attach it. One that says nothing of itself has to be waited for.
    pub(super) fn is_attachable(&self, drivers: &Store<CSIDriver>) -> bool {
        drivers.get(&self.driver).is_none_or(|driver| driver.spec.attach_required != Some(false))
    }
}

/// The name that an iSCSI disk has on a node.
pub(in crate::volumes) fn disk_name(portal: &str, iqn: &str, lun: i32) -> String {
    format!("{ISCSI}{portal}:{iqn}:{lun}")
}

/// Whether volumes of that unique name are attached here.
pub(super) fn is_attached_here(name: &str) -> bool {
    name.starts_with(CSI) || name.starts_with(ISCSI)
}
