//! Volumes that are staged on the node: before the first pod has them, and until the last has given
//! them back. Nobody waits for the latter: it is tried until it is done, or the volume is used again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};

use super::super::devices::Held;
use super::super::persistent::Task;
use super::super::{Error, Inner, blocking};
use super::notes::Notes;
use super::paths::{BlockPlace, Place, device_name, staged_volumes};
use super::request::Volume;
use super::{block, error, mount};
use crate::volumes::layout;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
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

/// Has a pod leave a volume; if no other has it, it is unstaged.
pub(super) fn leave(node: &Arc<Inner>, held: Held, uid: &str, staged: Staged) {
    if held.has_others(uid) {
        held.leave(uid);
        return;
    }
    held.enter(NOBODY);
    held.leave(uid);
    tokio::spawn(unstage_unless_used(Arc::clone(node), Some(held), staged));
}

async fn unstage_unless_used(node: Arc<Inner>, mut held: Option<Held>, staged: Staged) {
    let device = staged.device();
    let (mut pause, mut said) = (FIRST_PAUSE, None);
    loop {
        let turn = match held.take() {
            Some(turn) => turn,
            None => node.devices.hold(&device).await,
        };
        if turn.has_others(NOBODY) {
            return turn.leave(NOBODY);
        }
        let unstaged = match &staged {
            Staged::Mount { driver, handle } => unstage(&node, driver, handle).await,
            Staged::Block { driver, handle, name } => {
                block::unstage(&node, driver, handle, name).await
            }
        };
        match unstaged {
            Ok(()) => {
                debug!(device, "volume unstaged");
                node.csi.sizes.forget(&device);
                return turn.leave(NOBODY);
            }
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
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Unstages what an earlier daemon has left staged, and no pod uses.
pub(in crate::volumes) async fn recover(node: &Arc<Inner>) {
    let root = node.root.clone();
    let found = match blocking(move || found(&root)).await {
        Ok(found) => found,
        Err(error) => return warn!("staged volumes cannot be looked for: {error}"),
    };
    for staged in found {
        let held = node.devices.hold(&staged.device()).await;
        if !held.has_others(NOBODY) {
            held.enter(NOBODY);
            tokio::spawn(unstage_unless_used(Arc::clone(node), Some(held), staged));
        }
    }
}

/// The volumes that are staged or mapped, as their notes tell.
fn found(root: &Path) -> Result<Vec<Staged>, Error> {
    let mut found = Vec::new();
    for driver in children(&staged_volumes(root))? {
        // Its notes lie a level deeper.
        for volume in children(&staged_volumes(root).join(&driver))? {
            let dir = staged_volumes(root).join(&driver).join(volume);
            if let Some((driver, handle)) = noted(&dir) {
                found.push(Staged::Mount { driver, handle });
            }
        }
    }
    for name in children(&root.join(layout::CSI_DEVICES))? {
        if let Some((driver, handle)) = noted(&BlockPlace::new(root, &name).data) {
            found.push(Staged::Block { driver, handle, name });
        }
    }
    Ok(found)
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
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("list", dir, error)),
        Ok(entries) => {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            Ok(names.collect())
        }
    }
}
