//! What is in the volumes that outlive their pod: told by their file system, or by the driver that
//! serves them. The node's own volumes are measured with the rest of its disk (`stats::disk`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, Volume};
use longshore_pod::spec;

use super::error::Error;
use super::{Volumes, blocking};
use crate::stats::FileSystem;

/// A volume that outlives its pod, as it stands for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lasting {
    /// Its name in the pod.
    pub name: String,
    /// The claim that leads to it, if one does.
    pub claim: Option<String>,
    /// Where it is mounted.
    path: PathBuf,
}

/// What a volume can hold and holds; 0 where nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
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
    /// Whether its driver says that something is wrong with it.
    pub abnormal: Option<bool>,
}

/// The lasting volumes that stand, by the UID of their pod and by their name in it.
#[derive(Default)]
pub(super) struct Standing(Mutex<HashMap<String, BTreeMap<String, PathBuf>>>);

impl Standing {
    pub(super) fn note(&self, uid: &str, volume: &str, path: &Path) {
        let mut pods = self.pods();
        let volumes = pods.entry(uid.to_owned()).or_default();
        volumes.insert(volume.to_owned(), path.to_owned());
    }

    pub(super) fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, PathBuf>>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// The volumes of a pod that outlive it and that stand.
    pub fn lasting(&self, pod: &Pod) -> Vec<Lasting> {
        let standing = self.inner.standing.pods();
        let Some(known) = standing.get(spec::uid(pod)) else { return Vec::new() };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let lasting = volumes.filter_map(|volume| {
            let path = known.get(&volume.name)?.clone();
            Some(Lasting { name: volume.name.clone(), claim: claim(pod, volume), path })
        });
        lasting.collect()
    }

    /// What is in a volume. Waits as long as its file system or its driver lets it.
    pub async fn filling(&self, lasting: &Lasting) -> Result<Filling, Error> {
        let path = lasting.path.clone();
        blocking(move || {
            let found = match path.metadata() {
                Ok(file) if file.file_type().is_block_device() => device(&path),
                _ => FileSystem::of(&path).map(Filling::from),
            };
            found.map_err(|error| Error::io("look at the file system of", &path, error))
        })
        .await
    }
}

/// Of a block device nobody knows more than its size.
fn device(path: &Path) -> io::Result<Filling> {
    let capacity = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(Filling { capacity, ..Filling::default() })
}

/// The claim that a volume of the pod names, or that is made for it.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let made = || format!("{}-{}", spec::name(pod), volume.name);
    named.or_else(|| volume.ephemeral.as_ref().map(|_| made()))
}

#[cfg(test)]
impl Lasting {
    /// One that a claim leads to.
    pub(crate) fn of_claim(name: &str, claim: &str) -> Self {
        Self { name: name.to_owned(), claim: Some(claim.to_owned()), path: PathBuf::new() }
    }
}

impl From<FileSystem> for Filling {
    fn from(known: FileSystem) -> Self {
        Self {
            capacity: known.capacity,
            available: known.available,
            used: known.used,
            inodes: known.inodes,
            inodes_free: known.inodes_free,
            inodes_used: known.inodes.saturating_sub(known.inodes_free),
            abnormal: None,
        }
    }
}
