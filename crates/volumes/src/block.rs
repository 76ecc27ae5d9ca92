//! Block volumes: the device is bound below `plugins/` for each pod that uses it and held open by a
//! loop device there; the pod's own directory has a link to it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::time;
use nix::errno::Errno;
use tokio::time::{Instant, sleep};

use super::error::Error;
use super::host::loops;
use super::host::mounts::{self, BindOptions, Table};
use super::host::tools::Tools;
use super::persistent::Task;
use super::{Mounted, blocking, layout, remove};

/// A loop device holds its file open until nobody has the device open any more, be it only to look
/// at it: how long that may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOKS: Duration = Duration::from_millis(20);

/// Where the device of a volume is to be found for one pod.
#[derive(Clone, Debug)]
pub(super) struct Map {
    /// The link in the pod's directory. It is made first and removed last, so that by it the rest
    /// is found.
    link: PathBuf,
    /// Where the device is bound.
    bound: PathBuf,
}

impl Map {
    /// The map of a volume for the pod with that UID; `global` is the directory of all its maps.
    pub(super) fn new(root: &Path, uid: &str, plugin: &str, volume: &str, global: PathBuf) -> Self {
        let devices = layout::pod_path(root, uid).join(layout::DEVICES);
        Self { link: devices.join(plugin).join(volume), bound: global.join(uid) }
    }

    /// Maps a device. A map that stands is kept.
    pub(super) async fn make(self, task: &Task<'_>, device: &Path) -> Result<Mounted, Error> {
        let (device, map) = (device.to_owned(), self.clone());
        blocking(move || map.link_and_bind(&device)).await?;
        loops::attach(&task.node.tools, &self.bound).await?;
        Ok(self.mounted(task))
    }

    /// The map as the pod's containers are given it.
    pub(super) fn mounted(self, task: &Task<'_>) -> Mounted {
        let read_only = task.persistent.read_only;
        Mounted { read_only, device: Some(self.link.clone()), ..Mounted::at(self.link) }
    }

    /// Whether all of the map is made, since the machine was started.
    pub(super) async fn stands(&self) -> Result<bool, Error> {
        let map = self.clone();
        blocking(move || {
            let linked = map.link.symlink_metadata().is_ok();
            Ok(linked && Table::read()?.has(&map.bound) && loops::find(&map.bound)?.is_some())
        })
        .await
    }

    /// Removes the map. What is gone already is no error.
    pub(super) async fn remove(self, tools: &Tools) -> Result<(), Error> {
        self.unbind(tools).await?;
        blocking(move || layout::remove_file(&self.link)).await
    }

    /// Removes all of the map but the link, by which it is found again.
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

    /// Makes the link to a device, be it there or not: from here on, the pod's end removes the map.
    pub(super) async fn mark(&self, device: &Path) -> Result<(), Error> {
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

    fn link_and_bind(&self, device: &Path) -> Result<(), Error> {
        self.link_to(device)?;
        let kind = fs::metadata(device).map_err(|error| Error::io("look at", device, error))?;
        if !kind.file_type().is_block_device() {
            return Err(Error::NotBlock(device.to_owned()));
        }
        make_parent(&self.bound)?;
        if Table::read()?.has(&self.bound) {
            return Ok(());
        }
        fs::write(&self.bound, "").map_err(|error| Error::io("create", &self.bound, error))?;
        mounts::bind(device, &self.bound, BindOptions::none())
    }
}

/// Unmounts the bind of a device that was held open by a loop device until just now.
async fn unmount_once_free(bound: &Path) -> Result<(), Error> {
    let until = time::after(PATIENCE);
    loop {
        let path = bound.to_owned();
        match blocking(move || remove::unmount(&path)).await {
            Err(error) if error.errno() == Some(Errno::EBUSY) && Instant::now() < until => {
                sleep(LOOKS).await;
            }
            unmounted => return unmounted,
        }
    }
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(parent) = path.parent() else { return Ok(()) };
    layout::make_dirs(parent)
}
