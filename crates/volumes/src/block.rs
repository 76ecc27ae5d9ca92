//! Block volumes: the device is bind mounted below `plugins/` for each pod that uses it and held
//! open by a loop device there; the pod's directory has a link to it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::time;
use nix::errno::Errno;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::host::mounts::{self, BindOptions, Table};
use crate::host::tools::Tools;
use crate::host::{blocking, loops};
use crate::mounted::Mounted;
use crate::task::Task;
use crate::{layout, remove};

/// A loop device keeps its file open until nothing has the device open any more: how long to wait
/// for that.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The mapping of a block device for one pod.
#[derive(Clone, Debug)]
pub(super) struct BlockMapping {
    /// The link in the pod's directory. Created first and removed last: teardown finds the rest by
    /// it.
    link: PathBuf,
    /// Where the device is bound.
    bound: PathBuf,
}

impl BlockMapping {
    /// The mapping of a volume for the pod with that UID; `global` is the directory of all its
    /// mappings.
    pub(super) fn new(root: &Path, uid: &str, plugin: &str, volume: &str, global: PathBuf) -> Self {
        let devices = layout::pod_path(root, uid).join(layout::DEVICES);
        Self { link: devices.join(plugin).join(volume), bound: global.join(uid) }
    }

    /// Maps a device; an existing mapping is kept.
    pub(super) async fn make(self, task: &Task<'_>, device: &Path) -> Result<Mounted, Error> {
        let (device, map) = (device.to_owned(), self.clone());
        let is_new = blocking(move || map.link_and_bind(&device)).await?;
        loops::attach(&task.node.tools, &self.bound).await?;
        if is_new {
            self.note_success(task);
        }
        Ok(self.mounted(task))
    }

    /// The two mappings that were made are events of the pod.
    fn note_success(&self, task: &Task<'_>) {
        let volume = &task.persistent.spec_name;
        for (what, path) in [("globalMapPath", &self.bound), ("volumeMapPath", &self.link)] {
            let dir = path.parent().unwrap_or(path).display().to_string();
            let message =
                format!("MapVolume.MapPodDevice succeeded for volume {volume:?} {what} {dir:?}");
            task.node.pod_events.pod(task.pod, false, "SuccessfulMountVolume", &message);
        }
    }

    /// The mapping, for the containers' configuration.
    pub(super) fn mounted(self, task: &Task<'_>) -> Mounted {
        let read_only = task.persistent.read_only;
        Mounted { read_only, device: Some(self.link.clone()), ..Mounted::at(self.link) }
    }

    /// Whether the device is completely mapped, since the last boot.
    pub(super) async fn is_mapped(&self) -> Result<bool, Error> {
        let map = self.clone();
        blocking(move || {
            let linked = map.link.symlink_metadata().is_ok();
            Ok(linked && Table::read()?.has(&map.bound) && loops::find(&map.bound)?.is_some())
        })
        .await
    }

    /// Removes the mapping; parts that do not exist are ignored.
    pub(super) async fn remove(self, tools: &Tools) -> Result<(), Error> {
        self.unbind(tools).await?;
        blocking(move || layout::remove_file(&self.link)).await
    }

    /// Removes all of the mapping but the link.
    pub(super) async fn unbind(&self, tools: &Tools) -> Result<(), Error> {
        loops::detach(tools, &self.bound).await?;
        unmount_once_free(&self.bound).await?;
        let bound = self.bound.clone();
        blocking(move || {
            layout::remove_file(&bound)?;
            match bound.parent() {
                Some(global) => layout::remove_empty_dir(global),
                None => Ok(()),
            }
        })
        .await
    }

    /// Creates the link to a device, which need not exist yet: from here on, teardown removes the
    /// mapping.
    pub(super) async fn link(&self, device: &Path) -> Result<(), Error> {
        let (device, map) = (device.to_owned(), self.clone());
        blocking(move || map.link_to(&device)).await
    }

    fn link_to(&self, device: &Path) -> Result<(), Error> {
        make_parent(&self.link)?;
        if fs::read_link(&self.link).ok().as_deref() != Some(device) {
            layout::remove_file(&self.link)?;
            symlink(device, &self.link).map_err(|error| Error::io("link", &self.link, error))?;
        }
        Ok(())
    }

    /// Returns whether the device was not bound before.
    fn link_and_bind(&self, device: &Path) -> Result<bool, Error> {
        self.link_to(device)?;
        let kind = fs::metadata(device).map_err(|error| Error::io("look at", device, error))?;
        if !kind.file_type().is_block_device() {
            return Err(Error::NotBlock(device.to_owned()));
        }
        make_parent(&self.bound)?;
        if Table::read()?.has(&self.bound) {
            return Ok(false);
        }
        fs::write(&self.bound, "").map_err(|error| Error::io("create", &self.bound, error))?;
        mounts::bind(device, &self.bound, BindOptions::none())?;
        Ok(true)
    }
}

/// Unmounts the bind of a device that was held open by a loop device until just now.
async fn unmount_once_free(bound: &Path) -> Result<(), Error> {
    let until = time::after(UNMOUNT_TIMEOUT);
    loop {
        let path = bound.to_owned();
        match blocking(move || remove::unmount(&path)).await {
            Err(error) if error.errno() == Some(Errno::EBUSY) && Instant::now() < until => {
                sleep(POLL_INTERVAL).await;
            }
            unmounted => return unmounted,
        }
    }
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(parent) = path.parent() else { return Ok(()) };
    layout::make_dirs(parent)
}
