//! Volumes that a driver gives as devices: staged once, published for each pod, and mapped into it.

use std::path::Path;
use std::sync::Arc;

use tracing::debug;

use super::super::block::Map;
use super::super::persistent::Task;
use super::super::{Error, Inner, Mounted, blocking, layout};
use super::error;
use super::mount::write;
use super::notes::Notes;
use super::paths::{BlockPlace, device_name};
use super::request::Volume;
use super::staging::{self, Staged};

fn map(root: &Path, uid: &str, name: &str) -> Map {
    Map::new(root, uid, layout::CSI, name, BlockPlace::new(root, name).maps)
}

/// Has the driver make the device available, and maps it into the pod. A map that stands is kept.
pub(super) async fn set_up(task: &Task<'_>, volume: &Volume<'_>) -> Result<Mounted, Error> {
    let name = &task.persistent.spec_name;
    let place = BlockPlace::new(&task.node.root, name);
    let context = match volume.policy.attaches() {
        true => task.node.csi.attached(task, volume).await?,
        false => Default::default(),
    };
    let _held = task.devices().hold(&volume.device).await;
    let map = map(&task.node.root, task.uid(), name);
    if map.stands().await? {
        return Ok(map.mounted(task));
    }
    let notes = notes(task, volume, &place).await?;
    let published = place.published.join(task.uid());
    map.mark(&published).await?;
    let staging = place.staging.display().to_string();
    if volume.able.stage && !notes.is_done() {
        let staged = async {
            let request = volume.stage_request(task, context.clone(), staging.clone()).await?;
            let dir = place.staging.clone();
            blocking(move || layout::make_dirs(&dir)).await?;
            if let Err(error) = volume.driver.stage(request).await {
                if error.is_final() {
                    // As long as no other pod has it.
                    let cleared = clear(place.clone()).await;
                    debug!(path = %place.dir.display(), "cleared: {cleared:?}");
                }
                return Err(error::Error::from(error).into());
            }
            write(place.data.clone(), notes.done(true)).await
        };
        staged.await.map_err(staging::failed)?;
    }
    let target = published.display().to_string();
    let staging = Some(staging).filter(|_| volume.able.stage);
    let request = volume.publish_request(task, context, staging, target).await?;
    let dir = place.published.clone();
    blocking(move || layout::make_dirs(&dir)).await?;
    volume.driver.publish(request).await.map_err(error::Error::from)?;
    map.make(task, &published).await
}

/// The note of the volume, written before anything else of it is made.
async fn notes(task: &Task<'_>, volume: &Volume<'_>, place: &BlockPlace) -> Result<Notes, Error> {
    let data = place.data.clone();
    if let Some(notes) = blocking(move || Notes::read(&data)).await? {
        return Ok(notes);
    }
    let notes = volume.notes(task);
    write(place.data.clone(), notes.clone()).await?;
    Ok(notes)
}

/// Takes a device back from a pod; the last pod's is unstaged soon.
pub(super) async fn take_down(node: &Arc<Inner>, uid: &str, name: &str) -> Result<(), Error> {
    let place = BlockPlace::new(&node.root, name);
    let data = place.data.clone();
    let Some(notes) = blocking(move || Notes::read(&data)).await? else {
        return map(&node.root, uid, name).remove(&node.tools).await;
    };
    let (driver, handle) = notes.volume(&place.data)?;
    let held = node.devices.hold(&device_name(driver, handle)).await;
    node.csi.release(uid, name);
    let client = node.csi.driver(driver)?;
    map(&node.root, uid, name).unbind(&node.tools).await?;
    // Also where nothing is published: an earlier call may have come to nothing visible.
    let published = place.published.join(uid).display().to_string();
    client.unpublish(handle, &published).await.map_err(error::Error::from)?;
    map(&node.root, uid, name).remove(&node.tools).await?;
    let (driver, handle, name) = (driver.to_owned(), handle.to_owned(), name.to_owned());
    staging::leave(node, held, uid, Staged::Block { driver, handle, name }).await
}

/// Has the driver unstage a device that no pod uses, and removes what is left of it.
pub(super) async fn unstage(
    node: &Inner,
    driver: &str,
    handle: &str,
    name: &str,
) -> Result<(), Error> {
    let place = BlockPlace::new(&node.root, name);
    let data = place.data.clone();
    let Some(notes) = blocking(move || Notes::read(&data)).await? else {
        return clear(place).await;
    };
    let client = node.csi.driver(driver)?;
    if client.capabilities().await.map_err(error::Error::from)?.stage {
        // If the driver fails half-way, the next pod has it staged anew.
        write(place.data.clone(), notes.done(false)).await?;
        let staging = place.staging.display().to_string();
        client.unstage(handle, &staging).await.map_err(error::Error::from)?;
    }
    clear(place).await
}

/// Removes the directories of a device. What some driver has left in them stays, and is told.
async fn clear(place: BlockPlace) -> Result<(), Error> {
    blocking(move || remove(&place)).await
}

pub(super) fn remove(place: &BlockPlace) -> Result<(), Error> {
    for dir in [&place.published, &place.staging, &place.maps] {
        layout::remove_dir(dir)?;
    }
    Notes::remove(&place.data)?;
    layout::remove_empty_dir(&place.dir)
}
