//! Disks of iSCSI targets: the initiator logs in by the system's `iscsiadm`, the disk is mounted
//! once for all its pods, or mapped for each.
//! Current limitations: of several portals the disk of the first one that answers is used;
//! multipath devices are not put together.

mod admin;
mod disk;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_pod::spec;
use tokio::time::timeout;

use super::block::Map;
use super::devices::Left;
use super::error::{Error, if_exists};
use super::host::format::{self, Wanted};
use super::host::mounts::{Table, real_dir};
use super::local::Groups;
use super::persistent::Task;
use super::{Inner, Mounted, blocking, layout, local};
use admin::Admin;

#[cfg(test)]
pub(super) use admin::ISCSIADM;
pub(super) use admin::Kernel;
pub(super) use disk::Disk;

pub(super) const PLUGIN: &str = "kubernetes.io/iscsi";
/// The port of portals that name none, as it is inside of names.
pub(super) const USUAL_PORT: &str = ":3260:";
/// The note in the pod's directory that tells which disk its volume is.
const NOTE: &str = "iscsi.json";

/// How long a disk may take to be attached before that is an error.
const PATIENCE: Duration = Duration::from_secs(120);

/// Has the disk told to be in use on the node, and waits until the control plane says that the node
/// may have it, where that is its business. Nothing is made yet that would have to be taken back.
pub(super) async fn until_attached(task: &Task<'_>, disk: &Disk) -> Result<(), Error> {
    let device = disk.device_name();
    task.devices().hold(&device).await.enter(task.uid());
    if !task.devices().are_attached_by_others() || stands(task).await? {
        return Ok(());
    }
    match timeout(PATIENCE, task.devices().attached(&device)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::NotAttached),
    }
}

/// Whether the pod has it already.
async fn stands(task: &Task<'_>) -> Result<bool, Error> {
    let (plugin, name) = (layout::ISCSI.to_owned(), task.persistent.spec_name.clone());
    let left = Left { block: task.persistent.block, plugin, name };
    let path = left.path(&task.node.root, task.uid());
    blocking(move || Ok(Table::read()?.has(&path) || path.is_symlink())).await
}

pub(super) async fn set_up(task: &Task<'_>, disk: &Disk) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    let volume = &persistent.spec_name;
    let secret = secret(task, disk).await?;
    let admin = Admin { tools: &node.tools, kernel: &node.kernel, disk, volume };
    // Before anything is left that only the tool could take back.
    admin.check().map_err(unreached)?;
    let held = task.devices().hold(&disk.device_name()).await;
    held.enter(task.uid());
    write_note(task, disk).await?;
    let target = match persistent.block {
        true => {
            let expected = admin.expected_path();
            map(&node.root, task.uid(), volume, disk).mark(&expected).await?;
            None
        }
        false => Some(task.make_target(layout::ISCSI).await?),
    };
    let device = {
        // The sessions of a target are shared by its disks.
        let _sessions = task.devices().hold(&disk.target_name()).await;
        admin.attach(&secret).await.map_err(unreached)?
    };
    let Some(target) = target else {
        return map(&node.root, task.uid(), volume, disk).make(task, &device).await;
    };
    let global = disk.global_path(&node.root, volume);
    let wanted = Wanted {
        device: &device,
        kind: disk
            .file_system
            .as_deref()
            .filter(|kind| !kind.is_empty())
            .unwrap_or(format::DEFAULT),
        options: &persistent.mount_options,
        read_only: persistent.read_only,
    };
    format::stage(&node.tools, &wanted, &global).await?;
    task.publish(global, target, &[], Groups::Each).await
}

fn unreached(error: Error) -> Error {
    Error::Unreached(Box::new(error))
}

/// Takes the volume of a pod down; with the last pod of the disk, the disk is given back, and with
/// the last disk of a target, its sessions.
pub(super) async fn take_down(node: &Inner, uid: &str, left: &Left) -> Result<(), Error> {
    let (root, owned, left_) = (node.root.clone(), uid.to_owned(), left.clone());
    let disk = blocking(move || disk_of(&root, &owned, &left_, &Table::read()?)).await?;
    let path = left.path(&node.root, uid);
    let Some(disk) = disk else {
        // Nothing tells which disk it was, so nothing of it can be mounted here.
        return local::unmount(path).await;
    };
    let held = node.devices.hold(&disk.device_name()).await;
    let map = map(&node.root, uid, &left.name, &disk);
    if left.block {
        map.unbind(&node.tools).await?;
    } else {
        local::unmount(path).await?;
        local::unstage(&held, uid, disk.global_path(&node.root, &left.name)).await?;
    }
    // Held until the disk is left: of two that leave the last disks of a target, one logs out.
    let _sessions = node.devices.hold(&disk.target_name()).await;
    if !held.has_others(uid) {
        let shared = node.devices.has_others_like(&disk.target_name(), &disk.device_name());
        let (tools, kernel) = (&node.tools, &node.kernel);
        let admin = Admin { tools, kernel, disk: &disk, volume: &left.name };
        admin.detach(shared).await?;
    }
    if left.block {
        // It goes last, for by its link the rest is found again.
        map.remove(&node.tools).await?;
    }
    held.leave(uid);
    Ok(())
}

/// The unique name of the disk behind a pod's volume.
pub(super) fn device_of(
    root: &Path,
    uid: &str,
    left: &Left,
    mounts: &Table,
) -> Result<Option<String>, Error> {
    Ok(disk_of(root, uid, left, mounts)?.map(|disk| disk.device_name()))
}

/// The disk behind a pod's volume: as this daemon has noted it, or as another's paths tell.
fn disk_of(root: &Path, uid: &str, left: &Left, mounts: &Table) -> Result<Option<Disk>, Error> {
    let path = note_path(root, uid, &left.name);
    let fail = |error: std::io::Error| Error::io("read", &path, error);
    if let Some(note) = if_exists(fs::read(&path).map_err(fail))? {
        return serde_json::from_slice(&note).map(Some).map_err(|error| fail(error.into()));
    }
    let plugin = real_dir(&root.join(layout::PLUGINS).join(PLUGIN));
    if !left.block {
        let twins = mounts.twins(&left.path(root, uid));
        return Ok(twins
            .into_iter()
            .find(|twin| twin.starts_with(&plugin))
            .and_then(Disk::of_path));
    }
    let maps = mounts.named(uid).filter_map(Path::parent);
    let mut maps = maps.filter(|map| map.starts_with(plugin.join("volumeDevices")));
    Ok(maps.find_map(Disk::of_path))
}

fn map(root: &Path, uid: &str, volume: &str, disk: &Disk) -> Map {
    Map::new(root, uid, layout::ISCSI, volume, disk.map_path(root, volume))
}

fn note_path(root: &Path, uid: &str, volume: &str) -> PathBuf {
    let notes = layout::pod_path(root, uid).join(layout::PLUGINS).join(layout::ISCSI);
    notes.join(volume).join(NOTE)
}

async fn write_note(task: &Task<'_>, disk: &Disk) -> Result<(), Error> {
    let path = note_path(&task.node.root, task.uid(), &task.persistent.spec_name);
    let note = serde_json::to_vec(disk)
        .map_err(|error| Error::io("write", &path, std::io::Error::from(error)))?;
    blocking(move || {
        if let Some(dir) = path.parent() {
            layout::make_dirs(dir)?;
        }
        longshore_base::files::replace(&path, &note)
            .map_err(|error| Error::io("write", &path, error))
    })
    .await
}

/// Names and passwords for CHAP, by iscsiadm's names of them.
async fn secret(task: &Task<'_>, disk: &Disk) -> Result<BTreeMap<String, String>, Error> {
    let wanted = disk.chap_discovery || disk.chap_session;
    let Some((namespace, name)) = disk.secret.as_ref().filter(|_| wanted) else {
        return Ok(BTreeMap::new());
    };
    let namespace = namespace.as_deref().unwrap_or_else(|| spec::namespace(task.pod));
    let secret = task.node.objects.secret(namespace, name).await?;
    let data = secret.data.iter().flatten();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Ok(data.map(|(key, value)| (key.clone(), text(&value.0))).collect())
}
