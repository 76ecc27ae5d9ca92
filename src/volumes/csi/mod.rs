//! Volumes of CSI drivers: staged once on the node, published to each pod, and taken back in the
//! opposite order. A volume's directory holds a note of what it is (`vol_data.json`, as the Go
//! kubelet writes it), by which it is taken down when nothing else knows of it any more.
//!
//! A driver that is away, or hangs, holds up the pods that use its volumes and no others.

mod api;
mod attach;
mod block;
mod context;
mod error;
mod expand;
mod mount;
mod notes;
mod paths;
mod policy;
mod request;
mod selinux;
mod staging;
mod stats;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource};
use kube::Client;
use longshore_csi::Driver;
use tokio::task::AbortHandle;

pub use error::Error;
pub(super) use paths::{device_of_block, device_of_mount};
pub(super) use staging::recover;
pub(super) use stats::stats;
pub use stats::{Amount, Usage};

use super::devices::Left;
use super::persistent::Task;
use super::{Inner, Mounted};
use crate::plugins::Drivers;
use request::Volume;

/// What volumes of drivers are set up with.
pub(super) struct Csi {
    drivers: Drivers,
    client: Option<Client>,
    /// The tasks that publish volumes anew from time to time, by pod and volume.
    republishing: Mutex<HashMap<(String, String), AbortHandle>>,
    /// After how long a volume that could not be unstaged is tried again.
    pub(super) pause: Duration,
}

impl Csi {
    /// The volumes of these drivers.
    pub(super) fn new(drivers: Drivers, client: Option<Client>) -> Self {
        let republishing = Mutex::default();
        Self { drivers, client, republishing, pause: staging::FIRST_PAUSE }
    }

    fn node_name(&self) -> &str {
        self.drivers.node_name()
    }

    fn driver(&self, name: &str) -> Result<Driver, Error> {
        self.drivers.get(name).ok_or_else(|| Error::NotRegistered(name.to_owned()))
    }

    /// Notes the task that publishes a volume anew, in the place of an earlier one.
    fn republish_by(&self, uid: &str, volume: &str, task: Option<AbortHandle>) {
        let mut tasks = self.republishing.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (uid.to_owned(), volume.to_owned());
        let before = match task {
            Some(task) => tasks.insert(key, task),
            None => tasks.remove(&key),
        };
        if let Some(before) = before {
            before.abort();
        }
    }
}

/// Has the volume told to be in use on the node, and waits until it is attached. Nothing is made
/// yet that would have to be taken back, so the wait may be broken off.
pub(super) async fn until_attached(
    task: &Task<'_>,
    source: &CSIPersistentVolumeSource,
) -> Result<(), super::Error> {
    let volume = Volume::persistent(task, source).await?;
    attach::enter(task, &volume).await?;
    if volume.policy.attaches() && (task.persistent.block || !mount::stands(task).await?) {
        task.node.csi.attached(task, &volume).await?;
    }
    Ok(())
}

/// Sets up a volume that outlives the pod.
pub(super) async fn set_up(
    task: &Task<'_>,
    source: &CSIPersistentVolumeSource,
) -> Result<Mounted, super::Error> {
    let volume = Volume::persistent(task, source).await?;
    let mounted = if task.persistent.block {
        block::set_up(task, &volume).await?
    } else {
        mount::set_up(task, &volume).await?
    };
    expand::expand(task, &volume).await?;
    Ok(mounted)
}

/// Sets up a volume that lives as long as its pod.
pub(super) async fn set_up_inline(
    task: &Task<'_>,
    source: &CSIVolumeSource,
) -> Result<Mounted, super::Error> {
    let volume = Volume::inline(task, source).await?;
    mount::set_up(task, &volume).await
}

/// Takes a volume of a pod down, and sees to it that it is unstaged after its last user.
pub(super) async fn take_down(
    node: &Arc<Inner>,
    uid: &str,
    left: &Left,
) -> Result<(), super::Error> {
    node.csi.republish_by(uid, &left.name, None);
    match left.block {
        true => block::take_down(node, uid, &left.name).await,
        false => mount::take_down(node, uid, &left.name).await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
