//! Where volumes of drivers lie, and what they are called. All of it is the Go kubelet's.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::super::{Error, layout};
use super::notes::Notes;

/// The plugin's name, of which names of volumes are made.
const PLUGIN: &str = "kubernetes.io/csi";
/// What block volumes have in directories beside their own.
const STAGING: &str = "staging";
const PUBLISH: &str = "publish";

/// A directory of a volume: what is mounted there, and a note of what it is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Holds the note.
    pub(super) dir: PathBuf,
    /// Where the driver mounts.
    pub(super) mount: PathBuf,
}

impl Place {
    /// Of a volume that is published to a pod.
    pub(super) fn of_pod(root: &Path, uid: &str, volume: &str) -> Self {
        let dir = layout::pod_path(root, uid).join(layout::VOLUMES).join(layout::CSI).join(volume);
        Self { mount: dir.join("mount"), dir }
    }

    /// Of a volume that is staged.
    pub(super) fn staged(root: &Path, driver: &str, handle: &str) -> Self {
        Self::staged_at(staged_volumes(root).join(driver).join(hex(&[handle])))
    }

    /// Of a volume that is staged in that directory.
    pub(super) fn staged_at(dir: PathBuf) -> Self {
        Self { mount: dir.join("globalmount"), dir }
    }
}

/// The directory of all volumes that are staged and mounted, by their driver.
pub(super) fn staged_volumes(root: &Path) -> PathBuf {
    root.join(layout::PLUGINS).join(PLUGIN)
}

/// The directories of one block volume.
#[derive(Debug, Clone)]
pub(super) struct BlockPlace {
    /// Holds `data` and `dev`.
    pub(super) dir: PathBuf,
    /// Holds the note.
    pub(super) data: PathBuf,
    /// Holds a bind of the device for each pod.
    pub(super) maps: PathBuf,
    pub(super) staging: PathBuf,
    /// Holds, for each pod, what the driver has published.
    pub(super) published: PathBuf,
}

impl BlockPlace {
    pub(super) fn new(root: &Path, volume: &str) -> Self {
        let devices = root.join(layout::CSI_DEVICES);
        let dir = devices.join(volume);
        Self {
            data: dir.join("data"),
            maps: dir.join("dev"),
            staging: devices.join(STAGING).join(volume),
            published: devices.join(PUBLISH).join(volume),
            dir,
        }
    }

    /// The name of its PersistentVolume.
    pub(super) fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether its directory is one that holds something of each volume.
    pub(super) fn is_shared(&self) -> bool {
        self.dir.ends_with(STAGING) || self.dir.ends_with(PUBLISH)
    }
}

/// The unique name of a volume among all that are attached to nodes.
pub(crate) fn device_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

/// The unique name of what a pod has published, as its note tells; `None`: it is the pod's alone,
/// or nobody can tell.
pub(crate) fn device_of_mount(
    root: &Path,
    uid: &str,
    volume: &str,
) -> Result<Option<String>, Error> {
    let notes = Notes::read(&Place::of_pod(root, uid, volume).dir)?;
    Ok(notes.filter(|notes| !notes.is_inline()).and_then(|notes| device_of(&notes)))
}

/// The same for a block volume, whose note is the same for all pods.
pub(crate) fn device_of_block(root: &Path, volume: &str) -> Result<Option<String>, Error> {
    let notes = Notes::read(&BlockPlace::new(root, volume).data)?;
    Ok(notes.and_then(|notes| device_of(&notes)))
}

fn device_of(notes: &Notes) -> Option<String> {
    Some(device_name(notes.driver()?, notes.handle()?))
}

/// The name of the VolumeAttachment of a volume to a node.
pub(super) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex(&[handle, driver, node]))
}

/// The handle of a volume that a pod describes itself.
pub(super) fn inline_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", hex(&[uid, volume]))
}

fn hex(parts: &[&str]) -> String {
    let digest = parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
