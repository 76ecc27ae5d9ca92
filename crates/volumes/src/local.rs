//! Local persistent volumes: a directory of the node, or a block device with a file system, which
//! is mounted once for all its pods; or the device itself.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::LocalVolumeSource;

use super::block::BlockMapping;
use super::devices::{DeviceGuard, ReconstructedVolume};
use super::error::Error;
use super::host::format::{self, Wanted};
use super::host::mounts::{self, BindOptions, Table};
use super::persistent::Task;
use super::{Inner, Mounted, blocking, layout, remove};

pub(super) const PLUGIN: &str = "kubernetes.io/local-volume";

/// What is at the path of a local volume.
enum Kind {
    /// The canonical path of the directory, as the mount table has it.
    Directory(PathBuf),
    Device,
}

/// Which pod's fsGroup is applied to a volume that several pods use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// The first pod's; a warning event is recorded for others with another one.
    First,
    /// That of the pod that came last.
    Each,
}

/// The unique name of a local volume.
pub(super) fn device_name(volume: &str) -> String {
    format!("{PLUGIN}/{volume}")
}

/// Where a device is mounted for all pods.
fn global_path(root: &Path, volume: &str) -> PathBuf {
    root.join(layout::PLUGINS).join(PLUGIN).join("mounts").join(volume)
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
    if persistent.block {
        return map(root, task.uid(), volume).make(task, &path).await;
    }
    let target = task.make_target(layout::LOCAL).await?;
    let from = match kind {
        Kind::Directory(directory) => directory,
        Kind::Device => stage(task, source, &path).await?,
    };
    task.publish(from, target, &persistent.mount_options, Groups::First).await
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
    node: &Inner,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    let held = node.devices.hold(&device_name(&volume.name)).await;
    if volume.block {
        map(&node.root, uid, &volume.name).remove(&node.tools).await?;
    } else {
        unmount(volume.path(&node.root, uid)).await?;
        unstage(&held, uid, global_path(&node.root, &volume.name)).await?;
    }
    held.remove_user(uid);
    Ok(())
}

/// Unmounts the device unless another pod uses it.
pub(super) async fn unstage(held: &DeviceGuard, uid: &str, global: PathBuf) -> Result<(), Error> {
    if held.has_other_users(uid) {
        return Ok(());
    }
    blocking(move || {
        remove::unmount(&global)?;
        layout::remove_empty_dir(&global)
    })
    .await
}

pub(super) async fn unmount(path: PathBuf) -> Result<(), Error> {
    blocking(move || remove::unmount(&path)).await
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

impl Task<'_> {
    /// The directory of the volume below the pod's, made if it is absent: from here on, teardown
    /// finds the volume.
    pub(super) async fn make_target(&self, plugin: &'static str) -> Result<PathBuf, Error> {
        let (root, uid) = (self.node.root.clone(), self.uid().to_owned());
        let name = self.persistent.spec_name.clone();
        blocking(move || {
            let pod = layout::pod_dir(&root, &uid)?;
            let volumes = layout::volumes_dir(&pod, plugin)?;
            // An existing one may be an unresponsive mount, so it is not opened.
            match volumes.new_dir(&name, 0o750) {
                Err(error) if error.errno() == Some(nix::errno::Errno::EEXIST) => {}
                made => drop(made?),
            }
            Ok(volumes.path().join(name))
        })
        .await
    }

    /// Bind mounts a directory for the pod, after applying fsGroup. An existing mount is kept.
    pub(super) async fn publish(
        &self,
        from: PathBuf,
        target: PathBuf,
        options: &[String],
        groups: Groups,
    ) -> Result<Mounted, Error> {
        let read_only = self.persistent.read_only;
        let options = BindOptions::of(options, read_only)?;
        let (source, to) = (from.clone(), target.clone());
        let pods = self.node.root.join(layout::PODS);
        let (mounted, shared) = blocking(move || {
            let (table, pods) = (Table::read()?, mounts::real_dir(&pods));
            let shared = table.binds(&source).iter().any(|point| point.starts_with(&pods));
            Ok((table.has(&to), shared))
        })
        .await?;
        let to = target.clone();
        if mounted {
            // An earlier daemon may have been killed between the two steps of a bind.
            blocking(move || mounts::complete(&to, options)).await?;
        } else {
            match shared && groups == Groups::First {
                true => self.warn_of_other_group(&from),
                false if read_only => {}
                false => self.set_volume_ownership(from.clone()).await?,
            }
            blocking(move || mounts::bind(&from, &to, options)).await?;
        }
        Ok(Mounted { read_only, relabel: !read_only, ..Mounted::at(target) })
    }

    fn warn_of_other_group(&self, path: &Path) {
        use std::os::unix::fs::MetadataExt;
        let wanted = super::payload::fs_group(self.pod);
        let Some((wanted, found)) = wanted.zip(fs::metadata(path).ok().map(|root| root.gid()))
        else {
            return;
        };
        if wanted != found {
            let volume = &self.persistent.spec_name;
            let message = format!(
                "The requested fsGroup is {wanted}, but the volume {volume} has GID {found}. The \
                 volume may not be shareable."
            );
            self.node.pod_events.pod(self.pod, true, "AlreadyMountedVolume", &message);
        }
    }
}
