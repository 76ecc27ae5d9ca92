//! CSI block volumes: staged once, published for each pod, and mapped into it.

use std::path::Path;
use std::sync::Arc;

use tracing::debug;

use super::mount::write;
use super::paths::{BlockVolumePaths, device_name};
use super::request::Volume;
use super::staging::{self, Staged};
use super::vol_data::VolData;
use crate::block::BlockMapping;
use crate::error::{Error, csi as error};
use crate::host::blocking;
use crate::layout;
use crate::mounted::Mounted;
use crate::state::State;
use crate::task::Task;

fn map(root: &Path, uid: &str, name: &str) -> BlockMapping {
    BlockMapping::new(root, uid, layout::CSI, name, BlockVolumePaths::new(root, name).maps)
}

/// Stages and publishes the device, and maps it into the pod. An existing mapping is kept.
pub(super) async fn set_up(task: &Task<'_>, volume: &Volume<'_>) -> Result<Mounted, Error> {
    let name = &task.persistent.spec_name;
    let paths = BlockVolumePaths::new(&task.node.root, name);
    let context = match volume.policy.attach_required() {
        true => task.node.csi.attached(task, volume).await?,
        false => Default::default(),
    };
    let _held = task.devices().hold(&volume.device).await;
    let map = map(&task.node.root, task.uid(), name);
    if map.is_mapped().await? {
        return Ok(map.mounted(task));
    }
    let vol_data = vol_data(task, volume, &paths).await?;
    let published = paths.published.join(task.uid());
    map.link(&published).await?;
    let staging = paths.staging.display().to_string();
    if volume.capabilities.stage && !vol_data.is_done() {
        let staged = async {
            let request = volume.stage_request(task, context.clone(), staging.clone()).await?;
            let dir = paths.staging.clone();
            blocking(move || layout::make_dirs(&dir)).await?;
            if let Err(error) = volume.driver.stage(request).await {
                if error.is_final() {
                    // Unless another pod uses it.
                    let cleared = clear(paths.clone()).await;
                    debug!(path = %paths.dir.display(), "cleared: {cleared:?}");
                }
                return Err(error::Error::from(error).into());
            }
            write(paths.data.clone(), vol_data.done(true)).await
        };
        staged.await.map_err(staging::stage_error)?;
    }
    let target = published.display().to_string();
    let staging = Some(staging).filter(|_| volume.capabilities.stage);
    let request = volume.publish_request(task, context, staging, target).await?;
    let dir = paths.published.clone();
    blocking(move || layout::make_dirs(&dir)).await?;
    volume.driver.publish(request).await.map_err(error::Error::from)?;
    map.make(task, &published).await
}

/// The `vol_data.json` of the volume, written before anything else is created.
async fn vol_data(
    task: &Task<'_>,
    volume: &Volume<'_>,
    paths: &BlockVolumePaths,
) -> Result<VolData, Error> {
    let data = paths.data.clone();
    if let Some(vol_data) = blocking(move || VolData::read(&data)).await? {
        return Ok(vol_data);
    }
    let vol_data = volume.vol_data(task);
    write(paths.data.clone(), vol_data.clone()).await?;
    Ok(vol_data)
}

/// Unpublishes a device from a pod; after the last pod it is unstaged.
pub(super) async fn take_down(node: &Arc<State>, uid: &str, name: &str) -> Result<(), Error> {
    let paths = BlockVolumePaths::new(&node.root, name);
    let data = paths.data.clone();
    let Some(vol_data) = blocking(move || VolData::read(&data)).await? else {
        return map(&node.root, uid, name).remove(&node.tools).await;
    };
    let (driver, handle) = vol_data.volume(&paths.data)?;
    let held = node.devices.hold(&device_name(driver, handle)).await;
    node.csi.abort_background_tasks(uid, name);
    let client = node.csi.driver(driver)?;
    map(&node.root, uid, name).unbind(&node.tools).await?;
    // Even if nothing is visible: an earlier call may have been completed partly.
    let published = paths.published.join(uid).display().to_string();
    client.unpublish(handle, &published).await.map_err(error::Error::from)?;
    map(&node.root, uid, name).remove(&node.tools).await?;
    let (driver, handle, name) = (driver.to_owned(), handle.to_owned(), name.to_owned());
    staging::release_staged(node, held, uid, Staged::Block { driver, handle, name }).await
}

/// Unstages a device that no pod uses, and removes its directories.
pub(super) async fn unstage(
    node: &State,
    driver: &str,
    handle: &str,
    name: &str,
) -> Result<(), Error> {
    let paths = BlockVolumePaths::new(&node.root, name);
    let data = paths.data.clone();
    let Some(vol_data) = blocking(move || VolData::read(&data)).await? else {
        return clear(paths).await;
    };
    let client = node.csi.driver(driver)?;
    if client.capabilities().await.map_err(error::Error::from)?.stage {
        // If the driver fails half-way, the next pod stages it again.
        write(paths.data.clone(), vol_data.done(false)).await?;
        let staging = paths.staging.display().to_string();
        client.unstage(handle, &staging).await.map_err(error::Error::from)?;
    }
    clear(paths).await
}

/// Removes the directories of a device. Files that a driver has left in them are an error.
async fn clear(paths: BlockVolumePaths) -> Result<(), Error> {
    blocking(move || remove(&paths)).await
}

pub(super) fn remove(paths: &BlockVolumePaths) -> Result<(), Error> {
    for dir in [&paths.published, &paths.staging, &paths.maps] {
        layout::remove_dir(dir)?;
    }
    VolData::remove(&paths.data)?;
    layout::remove_empty_dir(&paths.dir)
}
