//! Staging of CSI volumes: staged for the first pod, unstaged after the last. Unstaging runs in the
//! background and is retried until it succeeds, or the volume is used again.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::panics;
use longshore_base::retry::Delays;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::paths::{BlockVolumePaths, VolumePaths, device_name, staged_volumes};
use super::request::Volume;
use super::vol_data::VolData;
use super::{block, device_of, mount};
use crate::devices::{DeviceGuard, NODE_USER};
use crate::error::{Error, csi as error};
use crate::host::blocking;
use crate::host::mounts::Table;
use crate::layout::{self, ReconstructedVolume};
use crate::state::State;
use crate::task::Task;

/// Backoff of unstaging.
const LONGEST_PAUSE: Duration = Duration::from_secs(122);

/// A volume that may be staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staged {
    /// One that is mounted.
    Mount { driver: String, handle: String },
    /// A device, by the name of its PersistentVolume.
    Block { driver: String, handle: String, name: String },
}

impl Staged {
    fn device(&self) -> String {
        let (Self::Mount { driver, handle } | Self::Block { driver, handle, .. }) = self;
        device_name(driver, handle)
    }

    /// Unstages the volume, whose lock is held, unless a pod uses it.
    async fn unstage_if_unused(&self, node: &State, held: &DeviceGuard) -> Result<(), Error> {
        if !owners(node, held).await?.is_empty() {
            return Ok(());
        }
        match self {
            Self::Mount { driver, handle } => unstage(node, driver, handle).await?,
            Self::Block { driver, handle, name } => {
                block::unstage(node, driver, handle, name).await?;
            }
        }
        let device = self.device();
        debug!(device, "volume unstaged");
        node.csi.sizes.forget(&device);
        Ok(())
    }
}

/// Stages a volume if necessary; returns the staging path. The volume's lock is held.
pub(super) async fn stage(
    task: &Task<'_>,
    volume: &Volume<'_>,
    context: BTreeMap<String, String>,
) -> Result<String, Error> {
    let paths = VolumePaths::staged(&task.node.root, volume.driver.name(), &volume.handle);
    let path = paths.mount.display().to_string();
    let dir = paths.dir.clone();
    if blocking(move || VolData::read(&dir)).await?.is_some_and(|vol_data| vol_data.is_done()) {
        return Ok(path);
    }
    let staged = async {
        let request = volume.stage_request(task, context, path.clone()).await?;
        let made = paths.mount.clone();
        blocking(move || layout::make_dirs(&made)).await?;
        let vol_data = VolData::new(volume.driver.name(), &volume.handle).labelled(volume.label());
        mount::write(paths.dir.clone(), vol_data.clone()).await?;
        if let Err(error) = volume.driver.stage(request).await {
            if error.is_final() {
                mount::clear_if_unmounted(&paths).await;
            }
            return Err(error::Error::from(error).into());
        }
        mount::write(paths.dir.clone(), vol_data.done(true)).await
    };
    staged.await.map_err(stage_error)?;
    Ok(path)
}

/// Whether a volume is staged, or may be.
pub(super) async fn has_vol_data(task: &Task<'_>, volume: &Volume<'_>) -> Result<bool, Error> {
    if volume.is_inline() {
        return Ok(false);
    }
    let paths = VolumePaths::staged(&task.node.root, volume.driver.name(), &volume.handle);
    blocking(move || Ok(VolData::read(&paths.dir)?.is_some())).await
}

/// Marks an error as one of staging.
pub(super) fn stage_error(error: Error) -> Error {
    error::Error::Stage(Box::new(error)).into()
}

/// Unstages a volume, if it is staged.
async fn unstage(node: &State, driver: &str, handle: &str) -> Result<(), Error> {
    let paths = VolumePaths::staged(&node.root, driver, handle);
    let dir = paths.dir.clone();
    let Some(vol_data) = blocking(move || VolData::read(&dir)).await? else {
        return mount::clear(paths).await;
    };
    let client = node.csi.driver(driver)?;
    if client.capabilities().await.map_err(error::Error::from)?.stage {
        // If the driver fails half-way, the next pod stages it again.
        mount::write(paths.dir.clone(), vol_data.done(false)).await?;
        let path = paths.mount.display().to_string();
        client.unstage(handle, &path).await.map_err(error::Error::from)?;
    }
    mount::clear(paths).await
}

/// Removes a pod from the volume's users after unpublishing; if no pod uses the volume any more, it
/// is unstaged.
pub(super) async fn release_staged(
    node: &Arc<State>,
    held: DeviceGuard,
    uid: &str,
    staged: Staged,
) -> Result<(), Error> {
    let owners = owners(node, &held).await?;
    let is_last = owners.is_empty();
    if is_last {
        held.add_user(NODE_USER);
    }
    // Several volumes of a pod may have the same handle.
    if !owners.iter().any(|owner| owner == uid) {
        held.remove_user(uid);
    }
    if is_last {
        tokio::spawn(panics::contain(unstage_unless_used(Arc::clone(node), Some(held), staged)));
    }
    Ok(())
}

/// The pods that use a volume, or may use it, by `vol_data.json` in their directories. Pods that
/// still wait for it are not counted, as they may never get it.
async fn owners(node: &State, held: &DeviceGuard) -> Result<Vec<String>, Error> {
    let (root, device, users) =
        (node.root.clone(), held.name().to_owned(), held.other_users(NODE_USER));
    blocking(move || {
        let mut owners = Vec::new();
        for uid in users {
            if has_volume(&root, &uid, &device)? {
                owners.push(uid);
            }
        }
        Ok(owners)
    })
    .await
}

/// Whether the directory of a pod has a volume with that unique name.
fn has_volume(root: &Path, uid: &str, device: &str) -> Result<bool, Error> {
    let all = ReconstructedVolume::of_pod(root, uid)?;
    let mut devices = all.iter().filter(|volume| volume.plugin == layout::CSI).map(|volume| {
        let own = device_of(root, uid, volume)?;
        Ok(own.is_some_and(|own| own == device))
    });
    devices.find(|reconstructed| !matches!(reconstructed, Ok(false))).unwrap_or(Ok(false))
}

async fn unstage_unless_used(node: Arc<State>, mut held: Option<DeviceGuard>, staged: Staged) {
    let device = staged.device();
    let mut delays = Delays::doubling(node.csi.pause, LONGEST_PAUSE);
    let mut last_error = None;
    loop {
        let guard = match held.take() {
            Some(guard) => guard,
            None => node.devices.hold(&device).await,
        };
        match staged.unstage_if_unused(&node, &guard).await {
            Ok(()) => return guard.remove_user(NODE_USER),
            Err(error) => {
                let error = error.to_string();
                if last_error.as_ref() != Some(&error) {
                    warn!(device, "failed to unstage volume, will be retried: {error}");
                    last_error = Some(error);
                }
            }
        }
        drop(guard);
        sleep(delays.next_delay()).await;
    }
}

/// Unstages volumes of an earlier daemon that no pod uses.
pub(crate) async fn recover(node: &Arc<State>) {
    let root = node.root.clone();
    let staged_volumes_on_disk = match blocking(move || staged_volumes_on_disk(&root)).await {
        Ok(staged_volumes_on_disk) => staged_volumes_on_disk,
        Err(error) => return warn!("failed to list staged volumes: {error}"),
    };
    for staged in staged_volumes_on_disk {
        let held = node.devices.hold(&staged.device()).await;
        // Errors are retried, and logged, by the background task.
        if !owners(node, &held).await.is_ok_and(|owners| !owners.is_empty()) {
            held.add_user(NODE_USER);
            tokio::spawn(panics::contain(unstage_unless_used(
                Arc::clone(node),
                Some(held),
                staged,
            )));
        }
    }
}

/// Removes the directories of volumes without `vol_data.json`: either no call was made yet, or they
/// were unstaged. Called at the start, before anything is staged.
pub(crate) fn clear_stale_dirs(root: &Path) {
    let cleared = volume_paths(root).and_then(|(mounts, devices)| {
        let table = Table::read()?;
        let is_stale = |dir: &Path| matches!(VolData::read(dir), Ok(None));
        let mounts = mounts.iter().filter(|paths| is_stale(&paths.dir));
        // Directories of single volumes and of all volumes are in the same parent.
        let devices = devices.iter().filter(|paths| !paths.is_shared() && is_stale(&paths.data));
        let cleared = mounts.map(|paths| mount::clear_of(&table, paths));
        Ok(cleared.chain(devices.map(block::remove)).filter_map(Result::err).collect::<Vec<_>>())
    });
    for error in cleared.unwrap_or_else(|error| vec![error]) {
        warn!("failed to remove the directory of a volume that is not staged: {error}");
    }
}

/// The volumes that are staged or mapped, by their `vol_data.json`.
fn staged_volumes_on_disk(root: &Path) -> Result<Vec<Staged>, Error> {
    let (mounts, devices) = volume_paths(root)?;
    let mounts = mounts.iter().filter_map(|paths| {
        let (driver, handle) = read_vol_data(&paths.dir)?;
        Some(Staged::Mount { driver, handle })
    });
    let devices = devices.iter().filter_map(|paths| {
        let (driver, handle) = read_vol_data(&paths.data)?;
        Some(Staged::Block { driver, handle, name: paths.name() })
    });
    Ok(mounts.chain(devices).collect())
}

/// The paths of staged volumes, mounted ones and block volumes.
fn volume_paths(root: &Path) -> Result<(Vec<VolumePaths>, Vec<BlockVolumePaths>), Error> {
    let (staged, devices) = (staged_volumes(root), root.join(layout::CSI_DEVICES));
    let mut mounts = Vec::new();
    for driver in children(&staged)?.iter().map(|driver| staged.join(driver)) {
        if driver != devices {
            let volumes = children(&driver)?.into_iter();
            mounts.extend(volumes.map(|volume| VolumePaths::staged_at(driver.join(volume))));
        }
    }
    let names = children(&devices)?;
    Ok((mounts, names.iter().map(|name| BlockVolumePaths::new(root, name)).collect()))
}

fn read_vol_data(dir: &Path) -> Option<(String, String)> {
    match VolData::read(dir) {
        Ok(vol_data) => {
            let vol_data = vol_data?;
            Some((vol_data.driver()?.to_owned(), vol_data.handle()?.to_owned()))
        }
        Err(error) => {
            warn!("ignoring a staged volume: {error}");
            None
        }
    }
}

fn children(dir: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(dir) {
        // It does not exist, or is a file.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(Error::io("list", dir, error)),
        Ok(entries) => {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            Ok(names.collect())
        }
    }
}
