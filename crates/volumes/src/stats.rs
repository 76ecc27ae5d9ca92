//! Mounted persistent volumes, and their stats.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use longshore_machine::FileSystem;
use parking_lot::{Mutex, MutexGuard};

/// A persistent volume that is mounted for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentMount {
    /// Its name in the pod.
    pub name: String,
    /// The name of its claim, if it has one.
    pub claim: Option<String>,
    /// The UID of the pod.
    pub(super) uid: String,
    pub(super) mount: MountedAt,
}

/// Where a persistent volume is mounted, and its CSI volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountedAt {
    pub(super) path: PathBuf,
    pub(super) csi_volume: Option<CsiVolume>,
}

/// A volume of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CsiVolume {
    /// The name of its directory.
    pub(super) name: String,
    /// Whether it is a device.
    pub(super) block: bool,
}

/// Capacity and usage of a volume; 0 if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Total bytes.
    pub capacity: u64,
    /// Bytes available to non-root users.
    pub available: u64,
    /// Used bytes.
    pub used: u64,
    /// Total inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Used inodes.
    pub inodes_used: u64,
    /// The volume condition, if its CSI driver reports it.
    pub condition: Option<Condition>,
}

/// The condition of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it is abnormal.
    pub abnormal: bool,
    /// The driver's message.
    pub message: String,
}

/// Mounted persistent volumes, by the UID of their pod and by their name in it.
#[derive(Default)]
pub(super) struct PersistentMounts(Mutex<Pods>);

pub(super) type Pods = HashMap<String, BTreeMap<String, MountedAt>>;

impl PersistentMounts {
    pub(super) fn insert(&self, uid: &str, volume: &str, mount: MountedAt) {
        self.pods().entry(uid.to_owned()).or_default().insert(volume.to_owned(), mount);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    pub(super) fn pods(&self) -> MutexGuard<'_, Pods> {
        self.0.lock()
    }
}

impl PersistentMount {
    /// Whether stats come from a CSI driver, which may be expensive.
    pub fn is_csi(&self) -> bool {
        self.mount.csi_volume.is_some()
    }
}

#[cfg(any(test, feature = "testing"))]
impl PersistentMount {
    /// A volume with a claim.
    pub fn of_claim(name: &str, claim: &str) -> Self {
        Self { name: name.to_owned(), claim: Some(claim.to_owned()), ..Self::default() }
    }
}

impl From<FileSystem> for VolumeStats {
    fn from(known: FileSystem) -> Self {
        Self {
            capacity: known.capacity,
            available: known.available,
            used: known.used,
            inodes: known.inodes,
            inodes_free: known.inodes_free,
            inodes_used: known.inodes.saturating_sub(known.inodes_free),
            condition: None,
        }
    }
}
