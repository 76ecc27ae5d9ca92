//! Paths of a pod's volumes below the node's root directory, the same as upstream's, so that either
//! kubelet can take over the other's pods.

mod reconstructed;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use longshore_base::files;
use nix::errno::Errno;
use sha2::{Digest, Sha256};

use crate::dir::Dir;
use crate::error::{Error, if_exists};

pub(super) use reconstructed::{ReconstructedVolume, names};

pub(super) const PODS: &str = "pods";
pub(super) const VOLUMES: &str = "volumes";
pub(super) const SUB_PATHS: &str = "volume-subpaths";
pub(super) const DEVICES: &str = "volumeDevices";
pub(super) const PLUGINS: &str = "plugins";
/// Block volumes of CSI drivers, by the names of their PersistentVolumes.
pub(super) const CSI_DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
pub(super) const CONFIG_MAP: &str = "kubernetes.io~configmap";
pub(super) const SECRET: &str = "kubernetes.io~secret";
pub(super) const DOWNWARD_API: &str = "kubernetes.io~downward-api";
pub(super) const PROJECTED: &str = "kubernetes.io~projected";
pub(super) const LOCAL: &str = "kubernetes.io~local-volume";
pub(super) const NFS: &str = "kubernetes.io~nfs";
pub(super) const ISCSI: &str = "kubernetes.io~iscsi";
pub(super) const FC: &str = "kubernetes.io~fc";
pub(super) const CSI: &str = "kubernetes.io~csi";

/// Names of plugins, in paths below `plugins` and in the unique names of devices.
pub(super) const LOCAL_PLUGIN: &str = "kubernetes.io/local-volume";
pub(super) const ISCSI_PLUGIN: &str = "kubernetes.io/iscsi";
pub(super) const FC_PLUGIN: &str = "kubernetes.io/fc";
pub(super) const FLEX_PLUGIN: &str = "kubernetes.io/flexvolume";

/// Mode of directories that containers reach only through their mounts.
const PRIVATE: u32 = 0o750;

/// Whether the volumes of that plugin are ephemeral.
pub(super) fn is_own_plugin(name: &OsStr) -> bool {
    [EMPTY_DIR, CONFIG_MAP, SECRET, DOWNWARD_API, PROJECTED].iter().any(|own| name == *own)
}

/// The directory of a pod, made if it is absent. `root` must exist.
pub(super) fn pod_dir(root: &Path, uid: &str) -> Result<Dir, Error> {
    // Either may be a link to a larger disk.
    let pods = match if_exists(Dir::open_trusted(&root.join(PODS)))? {
        Some(pods) => pods,
        None => Dir::open_trusted(root)?.make_dir(PODS, PRIVATE)?,
    };
    pods.make_dir(component("pod UID", uid)?, PRIVATE)
}

/// Where the directory of a pod is or would be.
pub(super) fn pod_path(root: &Path, uid: &str) -> PathBuf {
    root.join(PODS).join(uid)
}

/// Makes a directory that only the node uses, and those on the way to it.
pub(super) fn make_dirs(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(PRIVATE).create(path);
    made.map_err(|error| Error::io("create directory", path, error))
}

/// Replaces a file that only the node uses, and makes the directories on the way to it.
pub(super) fn write_file(path: &Path, content: &[u8]) -> Result<(), Error> {
    if let Some(dir) = path.parent() {
        make_dirs(dir)?;
    }
    files::replace(path, content).map_err(|error| Error::io("write", path, error))
}

/// Removes a file. It is no error if it does not exist.
pub(super) fn remove_file(path: &Path) -> Result<(), Error> {
    if_exists(fs::remove_file(path).map_err(|error| Error::io("remove", path, error))).map(drop)
}

/// Removes a directory, which must be empty. It is no error if it does not exist.
pub(super) fn remove_dir(path: &Path) -> Result<(), Error> {
    let removed = fs::remove_dir(path);
    if_exists(removed.map_err(|error| Error::io("remove directory", path, error))).map(drop)
}

/// Removes a directory if nothing is in it. It is no error if it does not exist.
pub(super) fn remove_empty_dir(path: &Path) -> Result<(), Error> {
    match remove_dir(path) {
        Err(error) if error.errno() == Some(Errno::ENOTEMPTY) => Ok(()),
        removed => removed,
    }
}

/// The directory of a pod's volumes of one kind, made if it is absent.
pub(super) fn volumes_dir(pod: &Dir, plugin: &str) -> Result<Dir, Error> {
    pod.make_dir(VOLUMES, PRIVATE)?.make_dir(plugin, 0o755)
}

/// The directory of a volume's metadata, made if it is absent.
pub(super) fn notes_dir(pod: &Dir, plugin: &str, volume: &str) -> Result<Dir, Error> {
    pod.make_dir(PLUGINS, PRIVATE)?.make_dir(plugin, PRIVATE)?.make_dir(volume, PRIVATE)
}

/// The directory of a container's binds of one volume, made if it is absent.
pub(super) fn sub_paths_dir(pod: &Dir, volume: &str, container: &str) -> Result<Dir, Error> {
    let volume = component("volume name", volume)?;
    let container = component("container name", container)?;
    pod.make_dir(SUB_PATHS, PRIVATE)?.make_dir(volume, PRIVATE)?.make_dir(container, PRIVATE)
}

/// A name of a file for texts that may be long or contain `/`: their SHA-256 in hexadecimal digits.
pub(super) fn digest(parts: &[&str]) -> String {
    let digest = parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A volume name as a directory name: names of inline volumes may contain `/`.
pub(super) fn escaped(name: &str) -> String {
    name.replace('/', "~")
}

/// Checks that a name out of a pod's spec is one component of a path.
pub(super) fn component<'a>(what: &'static str, name: &'a str) -> Result<&'a str, Error> {
    let reason = match name {
        "" => "must not be empty",
        "." | ".." => "must be a name",
        _ if name.contains('/') => "must not contain '/'",
        _ if name.contains('\0') => "must not contain NUL",
        _ if name.len() > 255 => "must not be longer than 255 bytes",
        _ => return Ok(name),
    };
    Err(Error::InvalidPath { what, path: name.to_owned(), reason })
}
