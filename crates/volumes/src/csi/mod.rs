//! CSI volumes: staged once on the node, published to each pod, and unpublished and unstaged in the
//! opposite order. A volume's directory holds its metadata (`vol_data.json`, as upstream's), by
//! which it is torn down after a restart.
//!
//! A driver that is unavailable or hangs delays only the pods that use its volumes.

mod api;
mod attach;
mod block;
mod context;
mod expand;
mod mount;
mod paths;
mod policy;
mod request;
mod staging;
mod stats;
mod vol_data;

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource};

use crate::error::Error;
use crate::expansion;
use crate::layout::ReconstructedVolume;
use crate::mounted::Mounted;
use crate::state::State;
use crate::task::Task;
use expand::CsiKind;
use paths::{device_of_block, device_of_mount};
use request::Volume;

pub(super) use staging::{clear_stale_dirs, recover};
pub(super) use stats::stats;

/// Adds the volume to `volumesInUse`, and waits until it is attached. Nothing needs a cleanup yet,
/// so it may be cancelled.
pub(super) async fn until_attached(
    task: &Task<'_>,
    source: &CSIPersistentVolumeSource,
) -> Result<(), Error> {
    let volume = Volume::persistent(task, source).await?;
    attach::mark_in_use(task, &volume).await?;
    if volume.policy.attach_required()
        && (task.persistent.block || !mount::is_published(task).await?)
    {
        task.node.csi.attached(task, &volume).await?;
    }
    Ok(())
}

/// Sets up a persistent volume.
pub(super) async fn set_up(
    task: &Task<'_>,
    source: &CSIPersistentVolumeSource,
) -> Result<Mounted, Error> {
    let volume = Volume::persistent(task, source).await?;
    // Again: an earlier teardown of the pod may have ended since, which removes it from
    // `volumesInUse`.
    attach::mark_in_use(task, &volume).await?;
    let mounted = match task.persistent.block {
        true => block::set_up(task, &volume).await,
        false => mount::set_up(task, &volume).await,
    };
    let mounted = task.node.csi.check_exhausted(&source.driver, mounted)?;
    let expanded = expansion::expand(task, &volume).await?;
    expansion::follow::<CsiKind>(task, &volume, expanded);
    Ok(mounted)
}

/// Sets up a CSI ephemeral volume.
pub(super) async fn set_up_inline(
    task: &Task<'_>,
    source: &CSIVolumeSource,
) -> Result<Mounted, Error> {
    let volume = Volume::inline(task, source).await?;
    let mounted = mount::set_up(task, &volume).await;
    task.node.csi.check_exhausted(&source.driver, mounted)
}

/// Tears down a volume of a pod; it is unstaged after its last user.
pub(super) async fn take_down(
    node: &Arc<State>,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    match volume.block {
        true => block::take_down(node, uid, &volume.name).await,
        false => mount::take_down(node, uid, &volume.name).await,
    }
}

/// The unique name of the volume that a pod's directory has, by its `vol_data.json`; `None` if it is
/// ephemeral or unknown.
pub(super) fn device_of(
    root: &Path,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<Option<String>, Error> {
    match volume.block {
        true => device_of_block(root, &volume.name),
        false => device_of_mount(root, uid, &volume.name),
    }
}

#[cfg(test)]
mod tests;
