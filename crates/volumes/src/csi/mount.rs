//! CSI volumes that are mounted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::panics;
use tracing::{debug, warn};

use super::paths::{VolumePaths, device_name};
use super::request::Volume;
use super::staging::{self, Staged};
use super::vol_data::VolData;
use crate::error::{Error, csi as error};
use crate::host::blocking;
use crate::host::mounts::Table;
use crate::layout;
use crate::mounted::Mounted;
use crate::persistent::Persistent;
use crate::state::State;
use crate::state::csi::BackgroundTask;
use crate::task::Task;

/// Interval of republishing (`requiresRepublish`); upstream does so with every sync of the pod,
/// each minute or two.
const REPUBLISH: Duration = Duration::from_secs(75);

/// Stages a volume if the driver supports it, and publishes it to the pod. Existing mounts are
/// kept.
pub(super) async fn set_up(task: &Task<'_>, volume: &Volume<'_>) -> Result<Mounted, Error> {
    let paths = VolumePaths::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    let is_published = is_published(task).await?;
    if !is_published || volume.policy.requires_republish() {
        let published = publish(task, volume, &paths, is_published).await;
        match published {
            // The existing mount keeps working; it is retried.
            Err(error) if is_published => {
                let (pod, volume) = (task.uid(), &task.persistent.spec_name);
                warn!(pod, volume, "failed to republish volume: {error}");
            }
            published => published?,
        }
    }
    if volume.policy.requires_republish() {
        start_republishing(task);
    }
    let read_only = task.persistent.read_only;
    let relabel = !read_only && volume.label().is_none() && has_labels(&paths).await?;
    Ok(Mounted { read_only, relabel, ..Mounted::at(paths.mount) })
}

/// Whether the mounted file system supports SELinux labels.
async fn has_labels(paths: &VolumePaths) -> Result<bool, Error> {
    let path = paths.mount.clone();
    blocking(move || Ok(Table::read()?.has_labels(&path))).await
}

/// Whether the volume is completely published, since the last boot.
pub(super) async fn is_published(task: &Task<'_>) -> Result<bool, Error> {
    let paths = VolumePaths::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    blocking(move || {
        let done = VolData::read(&paths.dir)?.is_some_and(|vol_data| vol_data.is_done());
        Ok(done && Table::read()?.has(&paths.mount))
    })
    .await
}

async fn publish(
    task: &Task<'_>,
    volume: &Volume<'_>,
    paths: &VolumePaths,
    again: bool,
) -> Result<(), Error> {
    let attach_required = !volume.is_inline() && volume.policy.attach_required();
    let context = match attach_required {
        true => task.node.csi.attached(task, volume).await?,
        false => Default::default(),
    };
    let _held = task.devices().hold(&volume.device).await;
    if !again && is_published(task).await? {
        // An earlier attempt, whose caller was cancelled, has completed.
        return Ok(());
    }
    // Written before the first call, so that teardown finds the volume.
    let vol_data = volume.vol_data(task).in_mode(volume.mode).labelled(volume.label());
    write(paths.dir.clone(), vol_data.clone().done(again)).await?;
    if let Err(error) = stage_and_publish(task, volume, paths, context).await {
        if !again && !error::is_under_way(&error) && !staging::has_vol_data(task, volume).await? {
            clear_if_unmounted(paths).await;
        }
        return Err(error);
    }
    if volume.is_for_group(task) {
        task.set_volume_ownership(paths.mount.clone()).await?;
    }
    write(paths.dir.clone(), vol_data.done(true)).await
}

/// Stages the volume, if supported and not done, and publishes it.
async fn stage_and_publish(
    task: &Task<'_>,
    volume: &Volume<'_>,
    paths: &VolumePaths,
    context: BTreeMap<String, String>,
) -> Result<(), Error> {
    let staging = match volume.capabilities.stage && !volume.is_inline() {
        true => Some(staging::stage(task, volume, context.clone()).await?),
        false => None,
    };
    let target = paths.mount.display().to_string();
    let request = volume.publish_request(task, context, staging, target).await?;
    volume.driver.publish(request).await.map_err(|error| error::Error::from(error).into())
}

/// Removes the directories after a failed call, unless something is mounted.
pub(super) async fn clear_if_unmounted(paths: &VolumePaths) {
    if let Err(error) = clear(paths.clone()).await {
        debug!(path = %paths.dir.display(), "not cleared: {error}");
    }
}

/// Unpublishes a volume from a pod; after the last pod it is unstaged.
pub(super) async fn take_down(node: &Arc<State>, uid: &str, name: &str) -> Result<(), Error> {
    let paths = VolumePaths::of_pod(&node.root, uid, name);
    let dir = paths.dir.clone();
    let Some(vol_data) = blocking(move || VolData::read(&dir)).await? else {
        // The volume is not published, or was unpublished already.
        return clear(paths).await;
    };
    let (driver, handle) = vol_data.volume(&paths.dir)?;
    let held = node.devices.hold(&device_name(driver, handle)).await;
    node.csi.abort_background_tasks(uid, name);
    let target = paths.mount.display().to_string();
    let client = node.csi.driver(driver)?;
    client.unpublish(handle, &target).await.map_err(error::Error::from)?;
    clear(paths).await?;
    if vol_data.is_inline() {
        return Ok(());
    }
    let staged = Staged::Mount { driver: driver.to_owned(), handle: handle.to_owned() };
    staging::release_staged(node, held, uid, staged).await
}

pub(super) async fn write(dir: std::path::PathBuf, vol_data: VolData) -> Result<(), Error> {
    blocking(move || vol_data.write(&dir)).await
}

/// Removes the directories of an unpublished or unstaged volume; an error if it is still mounted.
pub(super) async fn clear(paths: VolumePaths) -> Result<(), Error> {
    blocking(move || clear_of(&Table::read()?, &paths)).await
}

/// The same with this mount table.
pub(super) fn clear_of(mounts: &Table, paths: &VolumePaths) -> Result<(), Error> {
    if mounts.has(&paths.mount) {
        return Err(error::Error::StillMounted(paths.mount.clone()).into());
    }
    // The driver should have removed it.
    layout::remove_dir(&paths.mount)?;
    VolData::remove(&paths.dir)
}

/// Republishes the volume periodically, until it is torn down.
fn start_republishing(task: &Task<'_>) {
    let (node, pod) = (Arc::clone(task.node), task.pod.clone());
    let persistent = task.persistent.clone();
    let republishing = tokio::spawn(panics::contain(republish(node, pod, persistent)));
    let handle = republishing.abort_handle();
    task.node.csi.set_background_task(
        task.uid(),
        &task.persistent.dir_name(),
        BackgroundTask::Republish,
        handle,
    );
}

async fn republish(node: Arc<State>, pod: Pod, persistent: Persistent) {
    loop {
        tokio::time::sleep(REPUBLISH).await;
        let task = Task { node: &node, pod: &pod, persistent: &persistent };
        if let Err(error) = republish_once(&task).await {
            let (pod, volume) = (task.uid(), &persistent.spec_name);
            warn!(pod, volume, "failed to republish volume: {error}");
        }
    }
}

async fn republish_once(task: &Task<'_>) -> Result<(), Error> {
    use crate::persistent::PersistentSource as Source;
    let volume = match &task.persistent.source {
        Source::Csi(source) => Volume::persistent(task, source).await?,
        Source::CsiInline(source) => Volume::inline(task, source).await?,
        _ => return Ok(()),
    };
    let paths = VolumePaths::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    if volume.policy.requires_republish() && is_published(task).await? {
        publish(task, &volume, &paths, true).await?;
    }
    Ok(())
}
