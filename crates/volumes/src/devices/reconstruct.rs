//! Reconstruction of the devices that pods use from the directories of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, if_exists};
use crate::host::mounts::Table;
use crate::{csi, iscsi, layout, local};

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

/// A volume that was found in the directory of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReconstructedVolume {
    /// Whether it is a block volume.
    pub(crate) block: bool,
    /// The plugin's directory, such as `kubernetes.io~local-volume`.
    pub(crate) plugin: String,
    pub(crate) name: String,
}

impl Reconstructed {
    pub(super) fn from_disk(root: &Path) -> Self {
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
        match volume.device(root, uid, mounts) {
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

impl ReconstructedVolume {
    /// All volumes in the directory of a pod.
    pub(crate) fn of_pod(root: &Path, uid: &str) -> Result<Vec<Self>, Error> {
        let pod = root.join(layout::PODS).join(uid);
        let mut all = Vec::new();
        for (dir, block) in [(layout::VOLUMES, false), (layout::DEVICES, true)] {
            for plugin in names(&pod.join(dir))? {
                for name in names(&pod.join(dir).join(&plugin))? {
                    all.push(Self { block, plugin: plugin.clone(), name });
                }
            }
        }
        Ok(all)
    }

    /// Whether the directory of a pod has a CSI volume with that unique name.
    pub(crate) fn has_csi_volume(root: &Path, uid: &str, device: &str) -> Result<bool, Error> {
        let all = Self::of_pod(root, uid)?;
        let mut devices = all.iter().filter(|volume| volume.plugin == layout::CSI).map(|volume| {
            let own = volume.device(root, uid, &Table::default())?;
            Ok(own.is_some_and(|own| own == device))
        });
        devices.find(|reconstructed| !matches!(reconstructed, Ok(false))).unwrap_or(Ok(false))
    }

    /// Its path in the pod's directory: a mount point, or a link to the device.
    pub(crate) fn path(&self, root: &Path, uid: &str) -> PathBuf {
        let dir = if self.block { layout::DEVICES } else { layout::VOLUMES };
        layout::pod_path(root, uid).join(dir).join(&self.plugin).join(&self.name)
    }

    /// The unique name of its device, if it has one.
    fn device(&self, root: &Path, uid: &str, mounts: &Table) -> Result<Option<String>, Error> {
        match self.plugin.as_str() {
            layout::LOCAL => Ok(Some(local::device_name(&self.name))),
            layout::ISCSI => iscsi::device_of(root, uid, self, mounts),
            layout::CSI if self.block => csi::device_of_block(root, &self.name),
            layout::CSI => csi::device_of_mount(root, uid, &self.name),
            _ => Ok(None),
        }
    }
}

/// The names in a directory, in order; none if it is absent.
fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let fail = |error: std::io::Error| Error::io("list", dir, error);
    let Some(entries) = if_exists(fs::read_dir(dir).map_err(fail))? else {
        return Ok(Vec::new());
    };
    let names = entries.map(|entry| Ok(entry.map_err(fail)?.file_name().into_string().ok()));
    let mut names = names.filter_map(Result::transpose).collect::<Result<Vec<_>, Error>>()?;
    names.sort();
    Ok(names)
}
