//! What an earlier daemon has left: which pods use which devices, told by the directories of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, if_exists};
use crate::host::mounts::Table;
use crate::{csi, iscsi, layout, local};

/// What was found at a start.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The UIDs of pods that use a device, by its name.
    pub(crate) users: BTreeMap<String, BTreeSet<String>>,
    /// How many volumes were recognized.
    pub(crate) volumes: u64,
    /// Those that were not, and why.
    pub(crate) unknown: Vec<String>,
}

/// A volume in the directory of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Left {
    /// Whether it is a device and no directory.
    pub(crate) block: bool,
    /// What set it up, as its directory is named: `kubernetes.io~local-volume`.
    pub(crate) plugin: String,
    pub(crate) name: String,
}

impl Found {
    pub(super) fn below(root: &Path) -> Self {
        let mut found = Self::default();
        let mounts = Table::read().unwrap_or_default();
        for uid in names(&root.join(layout::PODS)).unwrap_or_default() {
            match Left::of_pod(root, &uid) {
                Ok(left) => left.iter().for_each(|left| found.note(root, &uid, left, &mounts)),
                Err(error) => found.unknown.push(error.to_string()),
            }
        }
        found
    }

    fn note(&mut self, root: &Path, uid: &str, left: &Left, mounts: &Table) {
        match left.device(root, uid, mounts) {
            Ok(None) => {}
            Ok(Some(device)) => {
                self.volumes = self.volumes.saturating_add(1);
                self.users.entry(device).or_default().insert(uid.to_owned());
            }
            Err(error) => {
                self.unknown.push(format!("pod {uid}, volume {}: {error}", left.name));
            }
        }
    }
}

impl Left {
    /// All volumes that the directory of a pod shows, whatever they are.
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

    /// Whether the directory of a pod shows a driver's volume of that unique name.
    pub(crate) fn shows(root: &Path, uid: &str, device: &str) -> Result<bool, Error> {
        let all = Self::of_pod(root, uid)?;
        let mut devices = all.iter().filter(|left| left.plugin == layout::CSI).map(|left| {
            let own = left.device(root, uid, &Table::default())?;
            Ok(own.is_some_and(|own| own == device))
        });
        devices.find(|found| !matches!(found, Ok(false))).unwrap_or(Ok(false))
    }

    /// Where it is in the pod's directory: what is mounted, or a link to the device.
    pub(crate) fn path(&self, root: &Path, uid: &str) -> PathBuf {
        let dir = if self.block { layout::DEVICES } else { layout::VOLUMES };
        layout::pod_path(root, uid).join(dir).join(&self.plugin).join(&self.name)
    }

    /// The unique name of what it shares with other pods, if it shares anything.
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
