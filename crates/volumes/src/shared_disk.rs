//! What iSCSI and Fibre Channel have in common: a disk that the control plane may have to attach, that
//! is mounted once for all its pods, or mapped for each, and that is detached after the last of them.

mod detach;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::block::BlockMapping;
use crate::devices::DeviceGuard;
use crate::error::{Error, if_exists};
use crate::host::format::{self, Wanted};
use crate::host::mounts::{Table, real_dir};
use crate::host::{self, blocking};
use crate::layout::{self, ReconstructedVolume};
use crate::mounted::Mounted;
use crate::persistent::{Disk, FibreDisk};
use crate::remove;
use crate::state::State;
use crate::task::{Groups, Task};

/// A kind of disks.
pub(crate) trait SharedDisk: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the plugin, such as `kubernetes.io/iscsi`.
    const PLUGIN: &'static str;
    /// The directory of its volumes in that of a pod, such as `kubernetes.io~iscsi`.
    const DIR: &'static str;
    /// The file in the pod's directory with the disk of its volume.
    const NOTE: &'static str;

    /// Its unique name.
    fn device_name(&self) -> String;

    /// The path, below that of the plugin, at which it is mounted or mapped.
    fn dir_name(&self, volume: &str) -> PathBuf;

    /// The disk that is mounted or mapped at such a path.
    fn of_path(path: &Path) -> Option<Self>;

    /// The file system that the volume names.
    fn file_system(&self) -> Option<&str>;

    /// Detaches it, if that pod was the last one. What is returned is held until the disk is known to be
    /// unused.
    fn detach(
        &self,
        node: &State,
        volume: &str,
        is_last: bool,
    ) -> impl Future<Output = Result<Option<DeviceGuard>, Error>> + Send;
}

/// The global mount path.
fn global_path<D: SharedDisk>(root: &Path, volume: &str, disk: &D) -> PathBuf {
    root.join(layout::PLUGINS).join(D::PLUGIN).join(disk.dir_name(volume))
}

/// The mapping of a disk for a pod.
pub(super) fn map<D: SharedDisk>(root: &Path, uid: &str, volume: &str, disk: &D) -> BlockMapping {
    let plugin = root.join(layout::PLUGINS).join(D::PLUGIN);
    let global = plugin.join("volumeDevices").join(disk.dir_name(volume));
    BlockMapping::new(root, uid, D::DIR, volume, global)
}

/// Adds the disk to `volumesInUse`, and waits until the control plane has attached it, if it
/// manages attachments. Nothing needs a cleanup yet.
pub(super) async fn until_attached<D: SharedDisk>(task: &Task<'_>, disk: &D) -> Result<(), Error> {
    let device = disk.device_name();
    task.devices().hold(&device).await.add_user(task.uid());
    if !task.devices().is_attach_controller_managed() || is_set_up(task, D::DIR).await? {
        return Ok(());
    }
    task.devices().attached_in_time(&device).await
}

/// Whether it is mounted or mapped for the pod.
async fn is_set_up(task: &Task<'_>, plugin: &str) -> Result<bool, Error> {
    let (plugin, name) = (plugin.to_owned(), task.persistent.spec_name.clone());
    let volume = ReconstructedVolume { block: task.persistent.block, plugin, name };
    let (root, uid) = (task.node.root.clone(), task.uid().to_owned());
    blocking(move || Ok(is_there(&root, &uid, &volume, &Table::read()?))).await
}

/// Mounts the device for all pods, and from there for this one.
pub(super) async fn mount<D: SharedDisk>(
    task: &Task<'_>,
    disk: &D,
    device: &Path,
    target: PathBuf,
) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    let global = global_path(&node.root, &persistent.spec_name, disk);
    let kind = disk.file_system().filter(|kind| !kind.is_empty());
    let wanted = Wanted {
        device,
        kind: kind.unwrap_or(format::DEFAULT),
        options: &persistent.mount_options,
        read_only: persistent.read_only,
    };
    format::stage(&node.tools, &wanted, &global).await?;
    task.publish(global, target, &[], Groups::Each).await
}

/// Tears down the volume of a pod; after the last pod the disk is detached. Should that fail, the pod does
/// not wait for it: it is tried again in the background.
pub(super) async fn take_down<D: SharedDisk>(
    node: &Arc<State>,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    let (root, owned, reconstructed) = (node.root.clone(), uid.to_owned(), volume.clone());
    let disk = blocking(move || disk_of::<D>(&root, &owned, &reconstructed, &Table::read()?));
    let disk = disk.await?;
    let path = volume.path(&node.root, uid);
    let Some(disk) = disk else {
        // The disk is unknown, so it is not mounted by its device.
        return host::unmount(path).await;
    };
    let held = node.devices.hold(&disk.device_name()).await;
    let map = map(&node.root, uid, &volume.name, &disk);
    if volume.block {
        map.unbind(&node.tools).await?;
    } else {
        host::unmount(path).await?;
        unstage(&node.root, global_path(&node.root, &volume.name, &disk)).await?;
    }
    let has_another = has_another_of(node, uid, volume, &disk).await?;
    let is_last = !has_another && !held.has_other_users(uid);
    let detached = disk.detach(node, &volume.name, is_last).await;
    if volume.block {
        // Last, as teardown finds the rest by its link.
        map.remove(&node.tools).await?;
    }
    if let Err(error) = &detached {
        detach::later(node, &held, disk, volume.name.clone(), error).await;
    }
    if !has_another {
        held.remove_user(uid);
    }
    Ok(())
}

/// Unmounts a disk from the path where it is mounted for all pods, unless it is mounted for one still. Pods
/// that have it as a block device do not count.
async fn unstage(root: &Path, global: PathBuf) -> Result<(), Error> {
    let pods = root.join(layout::PODS);
    blocking(move || {
        let (table, pods) = (Table::read()?, real_dir(&pods));
        if !table.twins(&global).iter().any(|twin| twin.starts_with(&pods)) {
            remove::unmount(&global)?;
            layout::remove_empty_dir(&global)?;
        }
        Ok(())
    })
    .await
}

/// Whether a pod has the disk of one of its volumes as another volume too, which is not taken down yet.
async fn has_another_of<D: SharedDisk>(
    node: &State,
    uid: &str,
    volume: &ReconstructedVolume,
    disk: &D,
) -> Result<bool, Error> {
    let (root, uid, volume) = (node.root.clone(), uid.to_owned(), volume.clone());
    let device = disk.device_name();
    blocking(move || {
        let mounts = Table::read()?;
        for other in ReconstructedVolume::of_pod(&root, &uid)? {
            if other.plugin != D::DIR || other == volume || !is_there(&root, &uid, &other, &mounts)
            {
                continue;
            }
            if device_of::<D>(&root, &uid, &other, &mounts)?.is_some_and(|own| own == device) {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await
}

/// Whether a volume of a pod is mounted or mapped.
fn is_there(root: &Path, uid: &str, volume: &ReconstructedVolume, mounts: &Table) -> bool {
    let path = volume.path(root, uid);
    mounts.has(&path) || path.is_symlink()
}

/// Detaches disks that an earlier daemon could not detach.
pub(super) async fn recover(node: &Arc<State>) {
    detach::recover::<Disk>(node).await;
    detach::recover::<FibreDisk>(node).await;
}

/// The unique name of the disk of a pod's volume.
pub(super) fn device_of<D: SharedDisk>(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
    mounts: &Table,
) -> Result<Option<String>, Error> {
    Ok(disk_of::<D>(root, uid, volume, mounts)?.map(|disk| disk.device_name()))
}

/// The disk of a pod's volume, from our file, or from paths of another kubelet.
fn disk_of<D: SharedDisk>(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
    mounts: &Table,
) -> Result<Option<D>, Error> {
    let path = note_path::<D>(root, uid, &volume.name);
    let fail = |error: std::io::Error| Error::io("read", &path, error);
    if let Some(note) = if_exists(fs::read(&path).map_err(fail))? {
        return serde_json::from_slice(&note).map(Some).map_err(|error| fail(error.into()));
    }
    let plugin = real_dir(&root.join(layout::PLUGINS).join(D::PLUGIN));
    if !volume.block {
        let twins = mounts.twins(&volume.path(root, uid));
        return Ok(twins.into_iter().find(|twin| twin.starts_with(&plugin)).and_then(D::of_path));
    }
    let maps = mounts.named(uid).filter_map(Path::parent);
    let mut maps = maps.filter(|map| map.starts_with(plugin.join("volumeDevices")));
    Ok(maps.find_map(D::of_path))
}

fn note_path<D: SharedDisk>(root: &Path, uid: &str, volume: &str) -> PathBuf {
    let notes = layout::pod_path(root, uid).join(layout::PLUGINS).join(D::DIR);
    notes.join(volume).join(D::NOTE)
}

/// Notes the disk in the pod's directory, for its teardown.
pub(super) async fn write_note<D: SharedDisk>(task: &Task<'_>, disk: &D) -> Result<(), Error> {
    let path = note_path::<D>(&task.node.root, task.uid(), &task.persistent.spec_name);
    let note = serde_json::to_vec(disk)
        .map_err(|error| Error::io("write", &path, std::io::Error::from(error)))?;
    blocking(move || layout::write_file(&path, &note)).await
}
