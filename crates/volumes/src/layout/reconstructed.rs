//! Volumes that are found in the directories of pods.

use std::fs;
use std::path::{Path, PathBuf};

use super::{DEVICES, PODS, VOLUMES, pod_path};
use crate::error::{Error, if_exists};

/// A volume that was found in the directory of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReconstructedVolume {
    /// Whether it is a block volume.
    pub(crate) block: bool,
    /// The plugin's directory, such as `kubernetes.io~local-volume`.
    pub(crate) plugin: String,
    pub(crate) name: String,
}

impl ReconstructedVolume {
    /// All volumes in the directory of a pod.
    pub(crate) fn of_pod(root: &Path, uid: &str) -> Result<Vec<Self>, Error> {
        let pod = root.join(PODS).join(uid);
        let mut all = Vec::new();
        for (dir, block) in [(VOLUMES, false), (DEVICES, true)] {
            for plugin in names(&pod.join(dir))? {
                for name in names(&pod.join(dir).join(&plugin))? {
                    all.push(Self { block, plugin: plugin.clone(), name });
                }
            }
        }
        Ok(all)
    }

    /// Its path in the pod's directory: a mount point, or a link to the device.
    pub(crate) fn path(&self, root: &Path, uid: &str) -> PathBuf {
        let dir = if self.block { DEVICES } else { VOLUMES };
        pod_path(root, uid).join(dir).join(&self.plugin).join(&self.name)
    }
}

/// The names in a directory, in order; none if it is absent.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let fail = |error: std::io::Error| Error::io("list", dir, error);
    let Some(entries) = if_exists(fs::read_dir(dir).map_err(fail))? else {
        return Ok(Vec::new());
    };
    let names = entries.map(|entry| Ok(entry.map_err(fail)?.file_name().into_string().ok()));
    let mut names = names.filter_map(Result::transpose).collect::<Result<Vec<_>, Error>>()?;
    names.sort();
    Ok(names)
}
