//! Where the volumes of a pod lie, for those who give them to containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where one volume of a pod lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounted {
    /// Its name where it lies: that in the pod, or that of the PersistentVolume.
    pub name: String,
    /// The path on the host.
    pub path: PathBuf,
    /// Whether containers may only read it, whatever their mounts say.
    pub read_only: bool,
    /// For a block volume: the path of its device, which containers are given as it is.
    pub device: Option<PathBuf>,
    /// Whether the runtime is to give its files the SELinux label of the containers.
    pub relabel: bool,
    /// The group that its PersistentVolume names, which the containers are to be in.
    pub group: Option<i64>,
}

/// The volumes of a pod by their name.
pub type PodMounts = BTreeMap<String, Mounted>;

impl Mounted {
    /// A directory or file that containers may write, and that keeps its label.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The same, whose files are given the containers' label.
    pub(super) fn relabelled(self) -> Self {
        Self { relabel: true, ..self }
    }
}
