//! Stats of persistent volumes, from their file system or their CSI driver. Ephemeral volumes are
//! measured in `stats::disk`.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Volume};
use longshore_machine::FileSystem;
use longshore_pod::spec;
use parking_lot::{Mutex, MutexGuard};

use super::error::Error;
use super::source::Source;
use super::{Mounted, Volumes, blocking, csi};

/// The `metric_source` of file system stats.
const FILE_SYSTEM: &str = "statfs";

/// A persistent volume that is mounted for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentMount {
    /// Its name in the pod.
    pub name: String,
    /// The name of its claim, if it has one.
    pub claim: Option<String>,
    /// The UID of the pod.
    uid: String,
    mount: MountedAt,
}

/// Where a persistent volume is mounted, and its CSI volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountedAt {
    path: PathBuf,
    csi_volume: Option<CsiVolume>,
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

type Pods = HashMap<String, BTreeMap<String, MountedAt>>;

impl MountedAt {
    pub(super) fn new(source: &Source<'_>, mounted: &Mounted) -> Self {
        let csi_volume = match source {
            Source::Persistent(persistent) => persistent.csi_volume(),
            _ => None,
        };
        Self { path: mounted.path.clone(), csi_volume }
    }
}

impl PersistentMounts {
    pub(super) fn insert(&self, uid: &str, volume: &str, mount: MountedAt) {
        self.pods().entry(uid.to_owned()).or_default().insert(volume.to_owned(), mount);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.0.lock()
    }
}

impl Volumes {
    /// The mounted persistent volumes of a pod.
    pub fn persistent_mounts(&self, pod: &Pod) -> Vec<PersistentMount> {
        let persistent_mounts = self.inner.persistent_mounts.pods();
        let Some(known) = persistent_mounts.get(spec::uid(pod)) else { return Vec::new() };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let persistent_mounts = volumes.filter_map(|volume| {
            let mount = known.get(&volume.name)?.clone();
            let (name, uid) = (volume.name.clone(), spec::uid(pod).to_owned());
            Some(PersistentMount { name, claim: claim(pod, volume), uid, mount })
        });
        persistent_mounts.collect()
    }

    /// The stats of a volume, from its CSI driver, or else from its file system. May block as long
    /// as either does not respond.
    pub async fn stats(&self, mount: &PersistentMount) -> Result<VolumeStats, Error> {
        if let Some(csi_volume) = &mount.mount.csi_volume
            && let Some(stats) = csi::stats(&self.inner, &mount.uid, csi_volume).await?
        {
            return Ok(stats);
        }
        let (path, began) = (mount.mount.path.clone(), Instant::now());
        let stats = blocking(move || {
            let stats = match path.metadata() {
                Ok(file) if file.file_type().is_block_device() => device(&path),
                _ => FileSystem::of(&path).map(VolumeStats::from),
            };
            stats.map_err(|error| Error::io("get the file system stats of", &path, error))
        });
        let stats = stats.await;
        self.inner.metrics.observe_collection(FILE_SYSTEM, began);
        stats
    }

    /// Records an event about an abnormal volume.
    pub fn warn_of_condition(&self, pod: &Pod, volume: &PersistentMount, condition: &Condition) {
        let message = format!("Volume {}: {}", volume.name, condition.message);
        self.inner.pod_events.pod(pod, true, "VolumeConditionAbnormal", &message);
    }
}

impl PersistentMount {
    /// Whether stats come from a CSI driver, which may be expensive.
    pub fn is_csi(&self) -> bool {
        self.mount.csi_volume.is_some()
    }
}

/// Of a block device only the size is known.
fn device(path: &Path) -> io::Result<VolumeStats> {
    let capacity = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(VolumeStats { capacity, ..VolumeStats::default() })
}

/// The claim of a volume, possibly of a generic ephemeral volume.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let made = || format!("{}-{}", spec::name(pod), volume.name);
    named.or_else(|| volume.ephemeral.as_ref().map(|_| made()))
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
