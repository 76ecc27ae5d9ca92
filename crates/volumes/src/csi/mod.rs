//! CSI volumes: staged once on the node, published to each pod, and unpublished and unstaged in the
//! opposite order. A volume's directory holds its metadata (`vol_data.json`, as upstream's), by
//! which it is torn down after a restart.
//!
//! A driver that is unavailable or hangs delays only the pods that use its volumes.

mod api;
mod attach;
mod block;
mod context;
mod error;
mod expand;
mod mount;
mod online_expansion;
mod paths;
mod policy;
mod request;
mod selinux;
mod staging;
mod stats;
mod vol_data;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource};
use kube::Client;
use longshore_csi::Driver;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::AbortHandle;

pub use error::Error;
pub(super) use paths::{device_of_block, device_of_mount};
pub(super) use staging::{clear_stale_dirs, recover};
pub(super) use stats::stats;

use super::devices::ReconstructedVolume;
use super::persistent::Task;
use super::{Inner, Mounted};
use crate::plugins::Drivers;
use online_expansion::Sizes;
use request::Volume;

/// The CSI plugin.
pub(super) struct Csi {
    drivers: Drivers,
    client: Option<Client>,
    /// Poll interval of claims of volumes in use.
    claim_poll_interval: Duration,
    /// Timeout of attachments.
    attach_timeout: Duration,
    sizes: Sizes,
    /// Initial backoff of failed unstaging.
    pub(super) pause: Duration,
    /// Background tasks of volumes in use, by pod and volume.
    background_tasks: Mutex<BackgroundTasks>,
}

type BackgroundTasks = HashMap<(String, String), HashMap<BackgroundTask, AbortHandle>>;

/// A background task of a volume in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum BackgroundTask {
    /// Periodic republishing.
    Republish,
    /// Online expansion.
    Expand,
}

impl Csi {
    /// A plugin for these drivers.
    pub(super) fn new(
        drivers: Drivers,
        client: Option<Client>,
        claim_poll_interval: Duration,
    ) -> Self {
        let (sizes, background_tasks) = Default::default();
        let attach_timeout = attach::TIMEOUT;
        let pause = staging::FIRST_PAUSE;
        Self {
            drivers,
            client,
            claim_poll_interval,
            attach_timeout,
            sizes,
            pause,
            background_tasks,
        }
    }

    fn node_name(&self) -> &str {
        self.drivers.node_name()
    }

    fn driver(&self, name: &str) -> Result<Driver, Error> {
        self.drivers.get(name).ok_or_else(|| Error::NotRegistered(name.to_owned()))
    }

    /// Registers a background task of a volume, replacing an earlier one.
    fn set_background_task(
        &self,
        uid: &str,
        volume: &str,
        kind: BackgroundTask,
        task: AbortHandle,
    ) {
        let key = (uid.to_owned(), volume.to_owned());
        let before = self.background_tasks().entry(key).or_default().insert(kind, task);
        before.iter().for_each(AbortHandle::abort);
    }

    /// Aborts all background tasks of a volume, whose lock is held, so that no call is in progress.
    fn abort_background_tasks(&self, uid: &str, volume: &str) {
        let background_tasks = self.background_tasks().remove(&(uid.to_owned(), volume.to_owned()));
        background_tasks.iter().flat_map(HashMap::values).for_each(AbortHandle::abort);
    }

    fn background_tasks(&self) -> MutexGuard<'_, BackgroundTasks> {
        self.background_tasks.lock()
    }

    /// Triggers an update of the CSINode if the driver's limit is reached.
    fn check_exhausted<T>(
        &self,
        driver: &str,
        outcome: Result<T, super::Error>,
    ) -> Result<T, super::Error> {
        if outcome.as_ref().is_err_and(error::is_exhausted) {
            self.notify_exhausted(driver);
        }
        outcome
    }

    fn notify_exhausted(&self, driver: &str) {
        if let Some(exhausted) = self.drivers.exhausted(driver) {
            exhausted.notify_one();
        }
    }
}

/// Adds the volume to `volumesInUse`, and waits until it is attached. Nothing needs a cleanup yet,
/// so it may be cancelled.
pub(super) async fn until_attached(
    task: &Task<'_>,
    source: &CSIPersistentVolumeSource,
) -> Result<(), super::Error> {
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
) -> Result<Mounted, super::Error> {
    let volume = Volume::persistent(task, source).await?;
    // Again: an earlier teardown of the pod may have ended since, which removes it from
    // `volumesInUse`.
    attach::mark_in_use(task, &volume).await?;
    let mounted = match task.persistent.block {
        true => block::set_up(task, &volume).await,
        false => mount::set_up(task, &volume).await,
    };
    let mounted = task.node.csi.check_exhausted(&source.driver, mounted)?;
    let expansion = expand::expand(task, &volume).await?;
    online_expansion::start(task, &volume, expansion);
    Ok(mounted)
}

/// Sets up a CSI ephemeral volume.
pub(super) async fn set_up_inline(
    task: &Task<'_>,
    source: &CSIVolumeSource,
) -> Result<Mounted, super::Error> {
    let volume = Volume::inline(task, source).await?;
    let mounted = mount::set_up(task, &volume).await;
    task.node.csi.check_exhausted(&source.driver, mounted)
}

/// Tears down a volume of a pod; it is unstaged after its last user.
pub(super) async fn take_down(
    node: &Arc<Inner>,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), super::Error> {
    match volume.block {
        true => block::take_down(node, uid, &volume.name).await,
        false => mount::take_down(node, uid, &volume.name).await,
    }
}

#[cfg(test)]
mod tests;
