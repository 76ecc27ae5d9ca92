//! Reconstruction of the devices that pods use from the directories of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::error::Error;
use crate::host::mounts::Table;
use crate::layout::{self, ReconstructedVolume, names};
use crate::persistent::{Disk, FibreDisk};
use crate::{csi, flex, local, shared_disk};

/// The reconstructed state.
#[derive(Debug, Default)]
pub(crate) struct Reconstructed {
    /// The UIDs of pods that use a device, by its name.
    pub(crate) users: BTreeMap<String, BTreeSet<String>>,
    /// Number of reconstructed volumes.
    pub(crate) volumes: u64,
    /// Volumes that were not, and why.
    pub(crate) unknown: Vec<String>,
}

impl Reconstructed {
    pub(crate) fn from_disk(root: &Path) -> Self {
        let mut reconstructed = Self::default();
        let mounts = Table::read().unwrap_or_default();
        for uid in names(&root.join(layout::PODS)).unwrap_or_default() {
            match ReconstructedVolume::of_pod(root, &uid) {
                Ok(volume) => {
                    volume.iter().for_each(|volume| reconstructed.add(root, &uid, volume, &mounts))
                }
                Err(error) => reconstructed.unknown.push(error.to_string()),
            }
        }
        reconstructed
    }

    fn add(&mut self, root: &Path, uid: &str, volume: &ReconstructedVolume, mounts: &Table) {
        match device(root, uid, volume, mounts) {
            Ok(None) => {}
            Ok(Some(device)) => {
                self.volumes = self.volumes.saturating_add(1);
                self.users.entry(device).or_default().insert(uid.to_owned());
            }
            Err(error) => {
                self.unknown.push(format!("pod {uid}, volume {}: {error}", volume.name));
            }
        }
    }
}

/// The unique name of the device of a volume, if it has one.
fn device(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
    mounts: &Table,
) -> Result<Option<String>, Error> {
    match volume.plugin.as_str() {
        layout::LOCAL => Ok(Some(local::device_name(&volume.name))),
        layout::ISCSI => shared_disk::device_of::<Disk>(root, uid, volume, mounts),
        layout::FC => shared_disk::device_of::<FibreDisk>(root, uid, volume, mounts),
        layout::CSI => csi::device_of(root, uid, volume),
        _ => Ok(flex::device_of(volume)),
    }
}
