//! Paths and names of CSI volumes, the same as upstream's.

use std::path::{Path, PathBuf};

use super::vol_data::VolData;
use crate::error::Error;
use crate::layout;

/// The plugin's name.
const PLUGIN: &str = "kubernetes.io/csi";
/// Directories for all block volumes.
const STAGING: &str = "staging";
const PUBLISH: &str = "publish";

/// The paths of a mounted volume.
#[derive(Debug, Clone)]
pub(super) struct VolumePaths {
    /// Holds `vol_data.json`.
    pub(super) dir: PathBuf,
    /// The driver's target path.
    pub(super) mount: PathBuf,
}

impl VolumePaths {
    /// For a volume that is published to a pod.
    pub(super) fn of_pod(root: &Path, uid: &str, volume: &str) -> Self {
        let dir = layout::pod_path(root, uid).join(layout::VOLUMES).join(layout::CSI).join(volume);
        Self { mount: dir.join("mount"), dir }
    }

    /// For a staged volume.
    pub(super) fn staged(root: &Path, driver: &str, handle: &str) -> Self {
        Self::staged_at(staged_volumes(root).join(driver).join(layout::digest(&[handle])))
    }

    /// For a volume that is staged in that directory.
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
pub(super) struct BlockVolumePaths {
    /// Holds `data` and `dev`.
    pub(super) dir: PathBuf,
    /// Holds `vol_data.json`.
    pub(super) data: PathBuf,
    /// Holds a bind mount of the device for each pod.
    pub(super) maps: PathBuf,
    pub(super) staging: PathBuf,
    /// Holds the driver's target path for each pod.
    pub(super) published: PathBuf,
}

impl BlockVolumePaths {
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

    /// Whether its directory is shared by all volumes.
    pub(super) fn is_shared(&self) -> bool {
        self.dir.ends_with(STAGING) || self.dir.ends_with(PUBLISH)
    }
}

/// The unique name of a volume among all that are attached to nodes.
pub(crate) fn device_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

/// The unique name of a pod's published volume, by its `vol_data.json`; `None` if it is ephemeral
/// or unknown.
pub(crate) fn device_of_mount(
    root: &Path,
    uid: &str,
    volume: &str,
) -> Result<Option<String>, Error> {
    let vol_data = VolData::read(&VolumePaths::of_pod(root, uid, volume).dir)?;
    Ok(vol_data.filter(|vol_data| !vol_data.is_inline()).and_then(|vol_data| device_of(&vol_data)))
}

/// The same for a block volume.
pub(crate) fn device_of_block(root: &Path, volume: &str) -> Result<Option<String>, Error> {
    let vol_data = VolData::read(&BlockVolumePaths::new(root, volume).data)?;
    Ok(vol_data.and_then(|vol_data| device_of(&vol_data)))
}

fn device_of(vol_data: &VolData) -> Option<String> {
    Some(device_name(vol_data.driver()?, vol_data.handle()?))
}

/// The name of the VolumeAttachment of a volume to a node.
pub(super) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", layout::digest(&[handle, driver, node]))
}

/// The handle of an ephemeral volume.
pub(super) fn inline_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", layout::digest(&[uid, volume]))
}
