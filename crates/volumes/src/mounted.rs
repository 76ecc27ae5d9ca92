//! The mounts of a pod's volumes.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One mounted volume of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounted {
    /// The name of its directory: the volume's in the pod, or the PersistentVolume's.
    pub name: String,
    /// The path on the host.
    pub path: PathBuf,
    /// Whether it is read-only for all containers.
    pub read_only: bool,
    /// For a block volume: the path of its device.
    pub device: Option<PathBuf>,
    /// Whether the runtime is to relabel it for SELinux.
    pub relabel: bool,
    /// The supplemental group that its PersistentVolume names.
    pub group: Option<i64>,
}

/// The volumes of a pod by their name.
pub type PodMounts = BTreeMap<String, Mounted>;

impl Mounted {
    /// A writable directory or file that is not relabelled.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The same with SELinux relabelling.
    pub(super) fn relabelled(self) -> Self {
        Self { relabel: true, ..self }
    }
}
