//! Volumes that are staged on the node: before the first pod has them, and until the last has given
//! them back. Nobody waits for the latter: it is tried until it is done, or the volume is used again.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::panics;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::super::devices::{DeviceGuard, Left};
use super::super::persistent::Task;
use super::super::{Error, Inner, blocking};
use super::notes::Notes;
use super::paths::{BlockPlace, Place, device_name, staged_volumes};
use super::request::Volume;
use super::{block, error, mount};
use crate::host::mounts::Table;
use crate::layout;

/// Pauses between tries to unstage.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// Stands for the node itself among the users of a volume that is yet to be unstaged.
const NOBODY: &str = "";

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

    /// Unstages the volume, which is held, unless some pod has it.
    async fn unstage_if_unused(&self, node: &Inner, held: &DeviceGuard) -> Result<(), Error> {
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

/// Stages a volume that is to be mounted, if that is not done; gives the path where it is. The
/// volume is held meanwhile.
pub(super) async fn stage(
    task: &Task<'_>,
    volume: &Volume<'_>,
    context: BTreeMap<String, String>,
) -> Result<String, Error> {
    let place = Place::staged(&task.node.root, volume.driver.name(), &volume.handle);
    let path = place.mount.display().to_string();
    let dir = place.dir.clone();
    if blocking(move || Notes::read(&dir)).await?.is_some_and(|notes| notes.is_done()) {
        return Ok(path);
    }
    let staged = async {
        let request = volume.stage_request(task, context, path.clone()).await?;
        let made = place.mount.clone();
        blocking(move || layout::make_dirs(&made)).await?;
        let notes = Notes::new(volume.driver.name(), &volume.handle).labelled(volume.label());
        mount::write(place.dir.clone(), notes.clone()).await?;
        if let Err(error) = volume.driver.stage(request).await {
            if error.is_final() {
                mount::clear_if_unmounted(&place).await;
            }
            return Err(error::Error::from(error).into());
        }
        mount::write(place.dir.clone(), notes.done(true)).await
    };
    staged.await.map_err(failed)?;
    Ok(path)
}

/// Whether a volume that is to be mounted is staged, or may be.
pub(super) async fn is_noted(task: &Task<'_>, volume: &Volume<'_>) -> Result<bool, Error> {
    if volume.is_inline() {
        return Ok(false);
    }
    let place = Place::staged(&task.node.root, volume.driver.name(), &volume.handle);
    blocking(move || Ok(Notes::read(&place.dir)?.is_some())).await
}

/// Tells a failure to stage from one to publish.
pub(super) fn failed(error: Error) -> Error {
    error::Error::Stage(Box::new(error)).into()
}

/// Undoes that, whoever has done it. A volume that is not staged is no error.
async fn unstage(node: &Inner, driver: &str, handle: &str) -> Result<(), Error> {
    let place = Place::staged(&node.root, driver, handle);
    let dir = place.dir.clone();
    let Some(notes) = blocking(move || Notes::read(&dir)).await? else {
        return mount::clear(place).await;
    };
    let client = node.csi.driver(driver)?;
    if client.capabilities().await.map_err(error::Error::from)?.stage {
        // If the driver fails half-way, the next pod has it staged anew.
        mount::write(place.dir.clone(), notes.done(false)).await?;
        let path = place.mount.display().to_string();
        client.unstage(handle, &path).await.map_err(error::Error::from)?;
    }
    mount::clear(place).await
}

/// Has a pod leave a volume of which nothing is left in its directory; if no pod has the volume
/// any more, it is unstaged.
pub(super) async fn leave(
    node: &Arc<Inner>,
    held: DeviceGuard,
    uid: &str,
    staged: Staged,
) -> Result<(), Error> {
    let owners = owners(node, &held).await?;
    let is_last = owners.is_empty();
    if is_last {
        held.enter(NOBODY);
    }
    // Several volumes of a pod may be one to the driver.
    if !owners.iter().any(|owner| owner == uid) {
        held.leave(uid);
    }
    if is_last {
        tokio::spawn(panics::contain(unstage_unless_used(Arc::clone(node), Some(held), staged)));
    }
    Ok(())
}

/// The pods that have a volume, or may have it, as the notes in their directories tell. Who only
/// waits for the volume may never get it, so that nobody would unstage it after that pod.
async fn owners(node: &Inner, held: &DeviceGuard) -> Result<Vec<String>, Error> {
    let (root, device, users) = (node.root.clone(), held.name().to_owned(), held.others(NOBODY));
    blocking(move || {
        let mut owners = Vec::new();
        for uid in users {
            if Left::shows(&root, &uid, &device)? {
                owners.push(uid);
            }
        }
        Ok(owners)
    })
    .await
}

async fn unstage_unless_used(node: Arc<Inner>, mut held: Option<DeviceGuard>, staged: Staged) {
    let device = staged.device();
    let (mut pause, mut said) = (node.csi.pause, None);
    loop {
        let turn = match held.take() {
            Some(turn) => turn,
            None => node.devices.hold(&device).await,
        };
        match staged.unstage_if_unused(&node, &turn).await {
            Ok(()) => return turn.leave(NOBODY),
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    warn!(device, "volume not unstaged yet: {error}");
                    said = Some(error);
                }
            }
        }
        drop(turn);
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// Unstages what an earlier daemon has left staged, and no pod uses.
pub(crate) async fn recover(node: &Arc<Inner>) {
    let root = node.root.clone();
    let found = match blocking(move || found(&root)).await {
        Ok(found) => found,
        Err(error) => return warn!("staged volumes cannot be looked for: {error}"),
    };
    for staged in found {
        let held = node.devices.hold(&staged.device()).await;
        // What cannot be told is told again, and tried again.
        if !owners(node, &held).await.is_ok_and(|owners| !owners.is_empty()) {
            held.enter(NOBODY);
            tokio::spawn(panics::contain(unstage_unless_used(
                Arc::clone(node),
                Some(held),
                staged,
            )));
        }
    }
}

/// Removes the directories of volumes that have no note: their driver was not asked for anything yet,
/// or has taken back all of it. For a daemon that starts, before it stages anything.
pub(crate) fn clear_unnoted(root: &Path) {
    let cleared = places(root).and_then(|(mounts, devices)| {
        let table = Table::read()?;
        let unnoted = |dir: &Path| matches!(Notes::read(dir), Ok(None));
        let mounts = mounts.iter().filter(|place| unnoted(&place.dir));
        // Directories of all volumes lie beside those of each.
        let devices = devices.iter().filter(|place| !place.is_shared() && unnoted(&place.data));
        let cleared = mounts.map(|place| mount::clear_of(&table, place));
        Ok(cleared.chain(devices.map(block::remove)).filter_map(Result::err).collect::<Vec<_>>())
    });
    for error in cleared.unwrap_or_else(|error| vec![error]) {
        warn!("what is left of a volume that is not staged stays: {error}");
    }
}

/// The volumes that are staged or mapped, as their notes tell.
fn found(root: &Path) -> Result<Vec<Staged>, Error> {
    let (mounts, devices) = places(root)?;
    let mounts = mounts.iter().filter_map(|place| {
        let (driver, handle) = noted(&place.dir)?;
        Some(Staged::Mount { driver, handle })
    });
    let devices = devices.iter().filter_map(|place| {
        let (driver, handle) = noted(&place.data)?;
        Some(Staged::Block { driver, handle, name: place.name() })
    });
    Ok(mounts.chain(devices).collect())
}

/// Where volumes are that are mounted, and those that are devices.
fn places(root: &Path) -> Result<(Vec<Place>, Vec<BlockPlace>), Error> {
    let (staged, devices) = (staged_volumes(root), root.join(layout::CSI_DEVICES));
    let mut mounts = Vec::new();
    for driver in children(&staged)?.iter().map(|driver| staged.join(driver)) {
        if driver != devices {
            let volumes = children(&driver)?.into_iter();
            mounts.extend(volumes.map(|volume| Place::staged_at(driver.join(volume))));
        }
    }
    let names = children(&devices)?;
    Ok((mounts, names.iter().map(|name| BlockPlace::new(root, name)).collect()))
}

fn noted(dir: &Path) -> Option<(String, String)> {
    match Notes::read(dir) {
        Ok(notes) => {
            let notes = notes?;
            Some((notes.driver()?.to_owned(), notes.handle()?.to_owned()))
        }
        Err(error) => {
            warn!("a staged volume stays: {error}");
            None
        }
    }
}

fn children(dir: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(dir) {
        // Nothing is there, or somebody's file.
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
