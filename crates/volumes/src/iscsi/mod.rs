//! iSCSI volumes: login by `iscsiadm`; the disk is mounted once for all its pods, or mapped for
//! each. Current limitations: of several portals the first one that works is used; multipath is not
//! supported.

mod admin;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_pod::spec;
use tokio::time::timeout;

use crate::block::BlockMapping;
use crate::error::{Error, if_exists};
use crate::host::format::{self, Wanted};
use crate::host::mounts::{Table, real_dir};
use crate::host::{self, blocking};
use crate::layout::{self, ReconstructedVolume};
use crate::mounted::Mounted;
use crate::persistent::Disk;
use crate::state::State;
use crate::task::{Groups, Task};
use admin::Admin;

#[cfg(test)]
pub(super) use admin::ISCSIADM;

/// The file in the pod's directory with the disk of its volume.
const NOTE: &str = "iscsi.json";

/// Timeout of the attachment.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);

/// Adds the disk to `volumesInUse`, and waits until the control plane has attached it, if it
/// manages attachments. Nothing needs a cleanup yet.
pub(super) async fn until_attached(task: &Task<'_>, disk: &Disk) -> Result<(), Error> {
    let device = disk.device_name();
    task.devices().hold(&device).await.add_user(task.uid());
    if !task.devices().is_attach_controller_managed() || is_mounted(task).await? {
        return Ok(());
    }
    match timeout(ATTACH_TIMEOUT, task.devices().attached(&device)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::NotAttached),
    }
}

/// Whether it is mounted or mapped for the pod.
async fn is_mounted(task: &Task<'_>) -> Result<bool, Error> {
    let (plugin, name) = (layout::ISCSI.to_owned(), task.persistent.spec_name.clone());
    let volume = ReconstructedVolume { block: task.persistent.block, plugin, name };
    let path = volume.path(&task.node.root, task.uid());
    blocking(move || Ok(Table::read()?.has(&path) || path.is_symlink())).await
}

pub(super) async fn set_up(task: &Task<'_>, disk: &Disk) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    let volume = &persistent.spec_name;
    let secret = secret(task, disk).await?;
    let admin = Admin { tools: &node.tools, kernel: &node.kernel, disk, volume };
    // Before anything is created that only the tool can undo.
    admin.check().map_err(unreached)?;
    let held = task.devices().hold(&disk.device_name()).await;
    held.add_user(task.uid());
    write_note(task, disk).await?;
    let target = match persistent.block {
        true => {
            let expected = admin.expected_path();
            map(&node.root, task.uid(), volume, disk).link(&expected).await?;
            None
        }
        false => Some(task.make_target(layout::ISCSI).await?),
    };
    let device = {
        // Sessions of a target are shared by its disks.
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

/// Tears down the volume of a pod; after the last pod the disk is detached, and after the last disk
/// of a target, its sessions are logged out.
pub(super) async fn take_down(
    node: &State,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    let (root, owned, reconstructed) = (node.root.clone(), uid.to_owned(), volume.clone());
    let disk = blocking(move || disk_of(&root, &owned, &reconstructed, &Table::read()?)).await?;
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
        held.unstage(uid, disk.global_path(&node.root, &volume.name)).await?;
    }
    // Held until the user is removed, so that concurrent teardowns of the last disks log out once.
    let _sessions = node.devices.hold(&disk.target_name()).await;
    if !held.has_other_users(uid) {
        let shared = node.devices.has_others_with_prefix(&disk.target_name(), &disk.device_name());
        let (tools, kernel) = (&node.tools, &node.kernel);
        let admin = Admin { tools, kernel, disk: &disk, volume: &volume.name };
        admin.detach(shared).await?;
    }
    if volume.block {
        // Last, as teardown finds the rest by its link.
        map.remove(&node.tools).await?;
    }
    held.remove_user(uid);
    Ok(())
}

/// The unique name of the disk of a pod's volume.
pub(super) fn device_of(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
    mounts: &Table,
) -> Result<Option<String>, Error> {
    Ok(disk_of(root, uid, volume, mounts)?.map(|disk| disk.device_name()))
}

/// The disk of a pod's volume, from our file, or from paths of another kubelet.
fn disk_of(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
    mounts: &Table,
) -> Result<Option<Disk>, Error> {
    let path = note_path(root, uid, &volume.name);
    let fail = |error: std::io::Error| Error::io("read", &path, error);
    if let Some(note) = if_exists(fs::read(&path).map_err(fail))? {
        return serde_json::from_slice(&note).map(Some).map_err(|error| fail(error.into()));
    }
    let plugin = real_dir(&root.join(layout::PLUGINS).join(layout::ISCSI_PLUGIN));
    if !volume.block {
        let twins = mounts.twins(&volume.path(root, uid));
        return Ok(twins
            .into_iter()
            .find(|twin| twin.starts_with(&plugin))
            .and_then(Disk::of_path));
    }
    let maps = mounts.named(uid).filter_map(Path::parent);
    let mut maps = maps.filter(|map| map.starts_with(plugin.join("volumeDevices")));
    Ok(maps.find_map(Disk::of_path))
}

fn map(root: &Path, uid: &str, volume: &str, disk: &Disk) -> BlockMapping {
    BlockMapping::new(root, uid, layout::ISCSI, volume, disk.map_path(root, volume))
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

/// CHAP credentials, by iscsiadm's names.
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
