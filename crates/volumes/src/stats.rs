//! What is in the volumes that outlive their pod: told by their file system, or by the driver that
//! serves them. The node's own volumes are measured with the rest of its disk (`stats::disk`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use k8s_openapi::api::core::v1::{Pod, Volume};
use longshore_machine::FileSystem;
use longshore_pod::spec;

use super::error::Error;
use super::source::Source;
use super::{Mounted, Volumes, blocking, csi};

/// What figures of file systems are said to come from.
const FILE_SYSTEM: &str = "statfs";

/// A volume that outlives its pod, as it stands for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentMount {
    /// Its name in the pod.
    pub name: String,
    /// The claim that leads to it, if one does.
    pub claim: Option<String>,
    /// The UID of the pod.
    uid: String,
    stand: MountedAt,
}

/// Where a lasting volume stands, and who can tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountedAt {
    path: PathBuf,
    driven: Option<Driven>,
}

/// A volume of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Driven {
    /// Its name among those of the node.
    pub(super) name: String,
    /// Whether it is a device.
    pub(super) block: bool,
}

/// What a volume can hold and holds; 0 where nobody knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Bytes in all, for those who may write, and in use.
    pub capacity: u64,
    /// Bytes that are left for those who are not root.
    pub available: u64,
    /// Bytes that are in use.
    pub used: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are left.
    pub inodes_free: u64,
    /// Inodes that are in use.
    pub inodes_used: u64,
    /// How it is, if it has a driver that says so.
    pub condition: Option<Condition>,
}

/// How a volume is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether something is wrong with it.
    pub abnormal: bool,
    /// What, in the driver's words.
    pub message: String,
}

/// The lasting volumes that stand, by the UID of their pod and by their name in it.
#[derive(Default)]
pub(super) struct PersistentMounts(Mutex<Pods>);

type Pods = HashMap<String, BTreeMap<String, MountedAt>>;

impl MountedAt {
    pub(super) fn new(source: &Source<'_>, mounted: &Mounted) -> Self {
        let driven = match source {
            Source::Persistent(persistent) => persistent.driven(),
            _ => None,
        };
        Self { path: mounted.path.clone(), driven }
    }
}

impl PersistentMounts {
    pub(super) fn note(&self, uid: &str, volume: &str, stand: MountedAt) {
        self.pods().entry(uid.to_owned()).or_default().insert(volume.to_owned(), stand);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// The volumes of a pod that outlive it and that stand.
    pub fn lasting(&self, pod: &Pod) -> Vec<PersistentMount> {
        let standing = self.inner.standing.pods();
        let Some(known) = standing.get(spec::uid(pod)) else { return Vec::new() };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let lasting = volumes.filter_map(|volume| {
            let stand = known.get(&volume.name)?.clone();
            let (name, uid) = (volume.name.clone(), spec::uid(pod).to_owned());
            Some(PersistentMount { name, claim: claim(pod, volume), uid, stand })
        });
        lasting.collect()
    }

    /// What is in a volume: as its driver tells, or else as its file system does. Waits as long as
    /// they let it; of a driver, until its call is given up.
    pub async fn filling(&self, lasting: &PersistentMount) -> Result<VolumeStats, Error> {
        if let Some(driven) = &lasting.stand.driven
            && let Some(told) = csi::stats(&self.inner, &lasting.uid, driven).await?
        {
            return Ok(told);
        }
        let (path, began) = (lasting.stand.path.clone(), Instant::now());
        let found = blocking(move || {
            let found = match path.metadata() {
                Ok(file) if file.file_type().is_block_device() => device(&path),
                _ => FileSystem::of(&path).map(VolumeStats::from),
            };
            found.map_err(|error| Error::io("look at the file system of", &path, error))
        });
        let found = found.await;
        self.inner.metrics.collected(FILE_SYSTEM, began);
        found
    }

    /// Tells a pod that something is wrong with its volume.
    pub fn warn_of_condition(&self, pod: &Pod, volume: &PersistentMount, condition: &Condition) {
        let message = format!("Volume {}: {}", volume.name, condition.message);
        self.inner.pod_events.pod(pod, true, "VolumeConditionAbnormal", &message);
    }
}

impl PersistentMount {
    /// Whether a driver may be asked how full it is, which may cost it more than a look.
    pub fn is_driven(&self) -> bool {
        self.stand.driven.is_some()
    }
}

/// Of a block device nobody knows more than its size.
fn device(path: &Path) -> io::Result<VolumeStats> {
    let capacity = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(VolumeStats { capacity, ..VolumeStats::default() })
}

/// The claim that a volume of the pod names, or that is made for it.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let made = || format!("{}-{}", spec::name(pod), volume.name);
    named.or_else(|| volume.ephemeral.as_ref().map(|_| made()))
}

#[cfg(any(test, feature = "testing"))]
impl PersistentMount {
    /// One that a claim leads to.
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
