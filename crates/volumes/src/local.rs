//! Local persistent volumes: a directory of the node, or a block device with a file system, which
//! is mounted once for all its pods; or the device itself.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{LocalVolumeSource, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::block::BlockMapping;
use crate::error::Error;
use crate::expansion::{self, Expand, ExpandError, Expansion, expand_file_system, expand_to};
use crate::host::format::{self, Wanted};
use crate::host::{blocking, unmount};
use crate::layout::{self, ReconstructedVolume};
use crate::mounted::Mounted;
use crate::persistent::PersistentSource;
use crate::state::State;
use crate::task::{Groups, Task};

/// What is at the path of a local volume.
enum Kind {
    /// The canonical path of the directory, as the mount table has it.
    Directory(PathBuf),
    Device,
}

/// The unique name of a local volume.
pub(super) fn device_name(volume: &str) -> String {
    format!("{}/{volume}", layout::LOCAL_PLUGIN)
}

/// Where a device is mounted for all pods.
fn global_path(root: &Path, volume: &str) -> PathBuf {
    root.join(layout::PLUGINS).join(layout::LOCAL_PLUGIN).join("mounts").join(volume)
}

/// Where a device is mapped for each pod.
fn map(root: &Path, uid: &str, volume: &str) -> BlockMapping {
    let global = root.join(layout::PLUGINS).join(layout::LOCAL).join("volumeDevices").join(volume);
    BlockMapping::new(root, uid, layout::LOCAL, volume, global)
}

pub(super) async fn set_up(task: &Task<'_>, source: &LocalVolumeSource) -> Result<Mounted, Error> {
    let (root, persistent) = (&task.node.root, task.persistent);
    let volume = &persistent.spec_name;
    let path = PathBuf::from(&source.path);
    let kind = blocking({
        let path = path.clone();
        move || kind(&path)
    })
    .await?;
    let held = task.devices().hold(&device_name(volume)).await;
    held.add_user(task.uid());
    let mounted = if persistent.block {
        map(root, task.uid(), volume).make(task, &path).await?
    } else {
        let target = task.make_target(layout::LOCAL).await?;
        let from = match kind {
            Kind::Directory(directory) => directory,
            Kind::Device => stage(task, source, &path).await?,
        };
        task.publish(from, target, &persistent.mount_options, Groups::First).await?
    };
    let volume = LocalVolume { device: device_name(volume), path };
    let expanded = expansion::expand(task, &volume).await?;
    expansion::follow::<LocalKind>(task, &volume, expanded);
    Ok(mounted)
}

/// A volume whose file system grows with its device; a directory has the size of its file system.
struct LocalVolume {
    device: String,
    path: PathBuf,
}

impl Expand for LocalVolume {
    fn device(&self) -> &str {
        &self.device
    }

    fn unsupported(&self) -> Option<String> {
        None
    }

    async fn expand(
        &self,
        task: &Task<'_>,
        _size: &Quantity,
        _old: Option<&Quantity>,
    ) -> Result<(), ExpandError> {
        let path = self.path.clone();
        let is_device = matches!(blocking(move || kind(&path)).await?, Kind::Device);
        if is_device && !task.persistent.block {
            let global = global_path(&task.node.root, &task.persistent.spec_name);
            expand_file_system(&task.node.tools, &self.path, &global).await?;
        }
        Ok(())
    }
}

/// Local volumes.
struct LocalKind;

impl expansion::Kind for LocalKind {
    async fn expand(
        task: &Task<'_>,
        claim: PersistentVolumeClaim,
        node_size: i128,
    ) -> Result<Expansion, Error> {
        let PersistentSource::Local(source) = &task.persistent.source else {
            return Ok(Expansion::NotNeeded);
        };
        let device = device_name(&task.persistent.spec_name);
        let volume = LocalVolume { device, path: PathBuf::from(&source.path) };
        expand_to(task, &volume, claim, Some(node_size)).await
    }
}

/// Mounts the device at its global path, unless it is mounted.
async fn stage(
    task: &Task<'_>,
    source: &LocalVolumeSource,
    device: &Path,
) -> Result<PathBuf, Error> {
    let persistent = task.persistent;
    let global = global_path(&task.node.root, &persistent.spec_name);
    let wanted = Wanted {
        device,
        kind: source.fs_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(format::DEFAULT),
        options: &persistent.mount_options,
        read_only: persistent.read_only,
    };
    format::stage(&task.node.tools, &wanted, &global).await?;
    Ok(global)
}

/// Tears a local volume of a pod down, and the device mount with the last pod.
pub(super) async fn take_down(
    node: &State,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    let held = node.devices.hold(&device_name(&volume.name)).await;
    node.csi.abort_background_tasks(uid, &volume.name);
    if volume.block {
        map(&node.root, uid, &volume.name).remove(&node.tools).await?;
    } else {
        unmount(volume.path(&node.root, uid)).await?;
        held.unstage(uid, global_path(&node.root, &volume.name)).await?;
    }
    if !held.has_other_users(uid) {
        node.csi.sizes.forget(held.name());
    }
    held.remove_user(uid);
    Ok(())
}

fn kind(path: &Path) -> Result<Kind, Error> {
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(Error::LocalBack(path.to_owned()));
    }
    let kind = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::NoLocal(path.to_owned()),
        _ => Error::io("look at", path, error),
    });
    let kind = kind?.file_type();
    match () {
        () if kind.is_dir() => {
            let direct = fs::canonicalize(path);
            direct.map(Kind::Directory).map_err(|error| Error::io("resolve", path, error))
        }
        () if kind.is_block_device() => Ok(Kind::Device),
        () => Err(Error::NotLocal),
    }
}
