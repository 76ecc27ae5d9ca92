//! FlexVolumes: volumes that a program of a vendor mounts. Where the driver attaches volumes, one is
//! mounted for all its pods and bound for each; else the driver mounts it for each pod.
//!
//! Attached volumes have the name of the PersistentVolume or of the pod's volume, as upstream has it. Two
//! pods whose volumes have the same name and are not the same would share one: the second is refused.

mod calls;
mod expand;
mod options;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::devices::DeviceGuard;
use crate::error::{Error, if_exists};
use crate::expansion::{self, Expand};
use crate::host::format::{self, Wanted};
use crate::host::mounts::{self, BindOptions, Table};
use crate::host::{self, blocking};
use crate::layout::{self, ReconstructedVolume};
use crate::mounted::Mounted;
use crate::persistent::FlexSource;
use crate::state::State;
use crate::state::flex::{self as driver, Driver};
use crate::task::Task;
use expand::{FlexKind, FlexVolume};

/// The file in the pod's directory with the source of its volume.
const NOTE: &str = "flex.json";
/// The file beside it while the volume is being set up: what is mounted then may lack something, as when the
/// driver was killed or the group could not be changed, and is mounted anew.
const INCOMPLETE: &str = "incomplete";
/// Directories of the plugins that are part of Kubernetes. Drivers may have names that begin alike.
const IN_TREE: [&str; 10] = [
    layout::EMPTY_DIR,
    layout::CONFIG_MAP,
    layout::SECRET,
    layout::DOWNWARD_API,
    layout::PROJECTED,
    layout::LOCAL,
    layout::NFS,
    layout::ISCSI,
    layout::FC,
    layout::CSI,
];

/// The unique name of a volume.
fn device_name(driver: &str, volume: &str) -> String {
    format!("{driver}/{volume}")
}

/// Whether a volume in a pod's directory is that of a driver.
pub(super) fn is_of_driver(volume: &ReconstructedVolume) -> bool {
    !volume.block && !IN_TREE.contains(&volume.plugin.as_str())
}

/// The unique name of a volume that was found in a pod's directory, if it is that of a driver.
pub(super) fn device_of(volume: &ReconstructedVolume) -> Option<String> {
    is_of_driver(volume).then(|| device_name(&driver::of_dir(&volume.plugin), &volume.name))
}

/// Where a volume is mounted for all pods.
fn global_path(root: &Path, driver: &str, volume: &str) -> PathBuf {
    let plugin = root.join(layout::PLUGINS).join(layout::FLEX_PLUGIN);
    plugin.join(driver).join("mounts").join(volume)
}

fn note_path(root: &Path, uid: &str, driver: &str, volume: &str) -> PathBuf {
    let notes = layout::pod_path(root, uid).join(layout::PLUGINS);
    notes.join(driver::dir_name(driver)).join(volume).join(NOTE)
}

/// Adds the volume to `volumesInUse`, and waits until the control plane has attached it, if it has to.
pub(super) async fn until_attached(task: &Task<'_>, source: &FlexSource) -> Result<(), Error> {
    let driver = task.node.flex.get(&task.node.tools, &source.driver).await?;
    let device = device_name(&source.driver, &task.persistent.spec_name);
    let attaches = driver.capabilities.attach;
    task.devices().hold(&device).await.add_user_attachable(task.uid(), attaches);
    if !attaches
        || !task.devices().is_attach_controller_managed()
        || is_mounted(task, source).await?
    {
        return Ok(());
    }
    task.devices().attached_in_time(&device).await
}

async fn is_mounted(task: &Task<'_>, source: &FlexSource) -> Result<bool, Error> {
    let path = layout::pod_path(&task.node.root, task.uid()).join(layout::VOLUMES);
    let path = path.join(driver::dir_name(&source.driver)).join(task.persistent.dir_name());
    host::is_mounted(path).await
}

/// Mounts a volume, and makes it as large as its claim requires.
pub(super) async fn set_up(task: &Task<'_>, source: &FlexSource) -> Result<Mounted, Error> {
    let mounted = mount_for_pod(task, source).await?;
    let volume = FlexVolume::of(task, source).await?;
    let held = task.devices().hold(volume.device()).await;
    let expanded = expansion::expand(task, &volume).await?;
    expansion::follow::<FlexKind>(task, &volume, expanded);
    drop(held);
    Ok(mounted)
}

async fn mount_for_pod(task: &Task<'_>, source: &FlexSource) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    if persistent.block {
        return Err(Error::UnsupportedPart("a FlexVolume as a block device".to_owned()));
    }
    if !persistent.mount_options.is_empty() {
        return Err(Error::MountOptions);
    }
    let driver = node.flex.get(&node.tools, &source.driver).await?;
    let held = node.devices.hold(&device_name(&source.driver, &persistent.spec_name)).await;
    held.add_user_attachable(task.uid(), driver.capabilities.attach);
    let target = task.make_target(&driver::dir_name(&source.driver)).await?;
    let read_only = persistent.read_only;
    let relabel = !read_only && driver.capabilities.relabel;
    let mounted = Mounted { read_only, relabel, ..Mounted::at(target.clone()) };
    let incomplete = note_path(&node.root, task.uid(), &source.driver, &persistent.spec_name)
        .with_file_name(INCOMPLETE);
    if is_mounted(task, source).await? {
        if !exists(&incomplete).await? {
            return Ok(mounted);
        }
        calls::unmount(node, &driver, "unmount", &target).await?;
    }
    if driver.capabilities.attach {
        refuse_another(task, source, &held).await?;
    }
    write_note(task, source).await?;
    write(incomplete.clone(), Vec::new()).await?;
    let global = match driver.capabilities.attach {
        true => Some(stage(task, source, &driver).await?),
        false => None,
    };
    mount(task, source, &driver, &target, global).await?;
    if !read_only && driver.capabilities.fs_group {
        task.set_volume_ownership(target).await?;
    }
    remove(incomplete).await?;
    Ok(mounted)
}

/// Mounts a volume for its pod.
async fn mount(
    task: &Task<'_>,
    source: &FlexSource,
    driver: &Driver,
    target: &Path,
    global: Option<PathBuf>,
) -> Result<(), Error> {
    let options = json(&options::of_pod(task, source).await?)?;
    let args = [target.as_os_str(), options.as_ref()];
    if calls::set_up(task, driver, "mount", &args).await?.is_some() {
        return Ok(());
    }
    let Some(global) = global else {
        let message = "mount command is not supported".to_owned();
        return Err(Error::Flex { driver: source.driver.clone(), message });
    };
    let (target, read_only) = (target.to_owned(), task.persistent.read_only);
    blocking(move || mounts::bind(&global, &target, BindOptions::of(&[], read_only)?)).await
}

/// Attaches a volume, if the control plane does not do that, and mounts it for all its pods; returns
/// where.
async fn stage(task: &Task<'_>, source: &FlexSource, driver: &Driver) -> Result<PathBuf, Error> {
    let (node, volume) = (task.node, &task.persistent.spec_name);
    let global = global_path(&node.root, &source.driver, volume);
    let incomplete = incomplete_path(&global);
    if host::is_mounted(global.clone()).await? {
        if !exists(&incomplete).await? {
            return Ok(global);
        }
        calls::unmount(node, driver, "unmountdevice", &global).await?;
    }
    let options = json(&options::of_volume(task, source))?;
    let options = OsStr::new(&options);
    let mut device = attach(task, source, driver, options, &global).await?;
    // From now on there is something to detach: the directory says so.
    make_dirs(&global).await?;
    write(incomplete.clone(), Vec::new()).await?;
    let args = [device.as_ref(), options];
    let waited = calls::set_up(task, driver, "waitforattach", &args).await;
    if let Some(answer) = waited.map_err(Error::unreached)? {
        device = answer.device;
    }
    mount_device(task, source, driver, options, Path::new(&device), &global).await?;
    remove(incomplete).await?;
    Ok(global)
}

/// The device of a volume that is attached, by the control plane or now.
async fn attach(
    task: &Task<'_>,
    source: &FlexSource,
    driver: &Driver,
    options: &OsStr,
    global: &Path,
) -> Result<String, Error> {
    if task.devices().is_attach_controller_managed() {
        // It may have been detached since it was waited for; with the lock held nobody waits.
        let device = device_name(&source.driver, &task.persistent.spec_name);
        return task.devices().attached_now(&device).ok_or(Error::NotAttached);
    }
    let args = [options, task.node.flex.node_name.as_ref()];
    match calls::set_up(task, driver, "attach", &args).await {
        Ok(attached) => Ok(attached.unwrap_or_default().device),
        Err(error) => {
            if matches!(error, Error::ToolHung { .. }) {
                // It may have been attached nevertheless.
                make_dirs(global).await?;
            }
            Err(error.unreached())
        }
    }
}

/// Has the driver mount a device, or does that in its place.
async fn mount_device(
    task: &Task<'_>,
    source: &FlexSource,
    driver: &Driver,
    options: &OsStr,
    device: &Path,
    global: &Path,
) -> Result<(), Error> {
    let staged = |error| Error::Unstaged(Box::new(error));
    let args = [global.as_os_str(), device.as_os_str(), options];
    let answer = calls::set_up(task, driver, "mountdevice", &args).await.map_err(staged)?;
    if answer.is_some() || device.as_os_str().is_empty() {
        return Ok(());
    }
    let kind = Some(source.file_system.as_str()).filter(|kind| !kind.is_empty());
    let wanted = Wanted {
        device,
        kind: kind.unwrap_or(format::DEFAULT),
        options: &[],
        read_only: task.persistent.read_only,
    };
    format::stage(&task.node.tools, &wanted, global).await
}

/// The file that is there while a volume is being mounted for all pods. Names of volumes do not begin with
/// a dot.
fn incomplete_path(global: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(global.file_name().unwrap_or_default());
    name.push(".incomplete");
    global.with_file_name(name)
}

/// An error if another pod uses a volume of that name which is another one.
async fn refuse_another(
    task: &Task<'_>,
    source: &FlexSource,
    held: &DeviceGuard,
) -> Result<(), Error> {
    let volume = &task.persistent.spec_name;
    for uid in held.other_users(task.uid()) {
        let path = note_path(&task.node.root, &uid, &source.driver, volume);
        let note = blocking(move || {
            if_exists(fs::read(&path).map_err(|error| Error::io("read", &path, error)))
        });
        // Of an earlier kubelet nothing is known.
        let Some(note) = note.await? else { continue };
        let is_same = serde_json::from_slice::<FlexSource>(&note)
            .is_ok_and(|other| FlexSource { read_only: source.read_only, ..other } == *source);
        if !is_same {
            let message = format!("another pod uses another volume with the name {volume:?}");
            return Err(Error::Flex { driver: source.driver.clone(), message });
        }
    }
    Ok(())
}

async fn write_note(task: &Task<'_>, source: &FlexSource) -> Result<(), Error> {
    let (volume, root) = (&task.persistent.spec_name, &task.node.root);
    let path = note_path(root, task.uid(), &source.driver, volume);
    write(path, json(source)?.into_bytes()).await
}

async fn write(path: PathBuf, content: Vec<u8>) -> Result<(), Error> {
    blocking(move || layout::write_file(&path, &content)).await
}

async fn remove(path: PathBuf) -> Result<(), Error> {
    blocking(move || layout::remove_file(&path)).await
}

async fn exists(path: &Path) -> Result<bool, Error> {
    let path = path.to_owned();
    blocking(move || {
        let found = path.try_exists();
        found.map_err(|error| Error::io("look at", &path, error))
    })
    .await
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    let fail = |error: serde_json::Error| Error::UnsupportedPart(error.to_string());
    serde_json::to_string(value).map_err(fail)
}

/// Tears down the volume of a pod; after the last pod the driver unmounts it for all, and detaches it if
/// the control plane does not.
pub(super) async fn take_down(
    node: &State,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    let name = driver::of_dir(&volume.plugin);
    let path = volume.path(&node.root, uid);
    let held = node.devices.hold(&device_name(&name, &volume.name)).await;
    node.csi.abort_background_tasks(uid, &volume.name);
    let driver = match node.flex.get(&node.tools, &name).await {
        Ok(driver) => driver,
        // Nothing of it was ever mounted, or somebody has unmounted it.
        Err(_) if is_gone(&path).await? => {
            held.remove_user(uid);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    // A set-up that failed leaves an empty directory, which the driver has never seen.
    if !is_gone(&path).await? {
        calls::unmount(node, &driver, "unmount", &path).await?;
    }
    if driver.capabilities.attach && !held.has_other_users(uid) {
        // By the directory the volume is found again, if what follows fails or is interrupted.
        make_dirs(&path).await?;
        unstage(node, &driver, &volume.name).await?;
    }
    // The driver may have removed it.
    blocking(move || layout::remove_dir(&path)).await?;
    if !held.has_other_users(uid) {
        node.csi.sizes.forget(held.name());
    }
    held.remove_user(uid);
    Ok(())
}

/// Has the driver unmount a volume that no pod uses any more, and detach it if the control plane does not.
async fn unstage(node: &State, driver: &Arc<Driver>, volume: &str) -> Result<(), Error> {
    let global = global_path(&node.root, &driver.name, volume);
    let path = global.clone();
    let found = blocking(move || Ok((path.is_dir(), Table::read()?.has(&path))));
    let (is_attached, is_mounted) = found.await?;
    if !is_attached {
        return Ok(());
    }
    if is_mounted {
        calls::unmount(node, driver, "unmountdevice", &global).await?;
    }
    if !node.devices.is_attach_controller_managed() {
        make_dirs(&global).await?;
        let args = [volume.as_ref(), node.flex.node_name.as_ref()];
        calls::undo(node, driver, "detach", &args).await?;
    }
    blocking(move || {
        layout::remove_file(&incomplete_path(&global))?;
        layout::remove_dir(&global)
    })
    .await
}

async fn make_dirs(path: &Path) -> Result<(), Error> {
    let path = path.to_owned();
    blocking(move || layout::make_dirs(&path)).await
}

/// Whether nothing is mounted or kept at a path.
async fn is_gone(path: &Path) -> Result<bool, Error> {
    let path = path.to_owned();
    blocking(move || {
        if Table::read()?.has(&path) {
            return Ok(false);
        }
        let entries = fs::read_dir(&path).map_err(|error| Error::io("list", &path, error));
        Ok(if_exists(entries)?.is_none_or(|mut entries| entries.next().is_none()))
    })
    .await
}
