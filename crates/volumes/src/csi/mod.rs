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
mod growth;
mod mount;
mod notes;
mod paths;
mod policy;
mod request;
mod selinux;
mod staging;
mod stats;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource};
use kube::Client;
use longshore_csi::Driver;
use tokio::task::AbortHandle;

pub use error::Error;
pub(super) use paths::{device_of_block, device_of_mount};
pub(super) use staging::{clear_unnoted, recover};
pub(super) use stats::stats;

use super::devices::Left;
use super::persistent::Task;
use super::{Inner, Mounted};
use crate::plugins::Drivers;
use growth::Sizes;
use request::Volume;

/// How often claims of volumes in use are looked at, if the config says nothing else.
const LOOK: Duration = Duration::from_secs(60);

/// What volumes of drivers are set up with.
pub(super) struct Csi {
    drivers: Drivers,
    client: Option<Client>,
    /// How often claims of volumes in use are looked at.
    look: Duration,
    /// How long a volume may take to be attached.
    attach_patience: Duration,
    sizes: Sizes,
    /// After how long a volume that could not be unstaged is tried again.
    pub(super) pause: Duration,
    /// The tasks that see to volumes while pods use them, by pod and volume.
    chores: Mutex<Chores>,
}

type Chores = HashMap<(String, String), HashMap<Chore, AbortHandle>>;

/// What there is to do for a volume while a pod uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Chore {
    /// To publish it anew from time to time.
    Republish,
    /// To make it larger when its claim is.
    Grow,
}

impl Csi {
    /// The volumes of these drivers.
    pub(super) fn new(drivers: Drivers, client: Option<Client>) -> Self {
        let (sizes, chores) = Default::default();
        let attach_patience = attach::PATIENCE;
        let (look, pause) = (LOOK, staging::FIRST_PAUSE);
        Self { drivers, client, look, attach_patience, sizes, pause, chores }
    }

    /// From here on, claims of volumes in use are looked at so often.
    pub(super) fn look_every(&mut self, period: Duration) {
        self.look = period;
    }

    fn node_name(&self) -> &str {
        self.drivers.node_name()
    }

    fn driver(&self, name: &str) -> Result<Driver, Error> {
        self.drivers.get(name).ok_or_else(|| Error::NotRegistered(name.to_owned()))
    }

    /// Notes the task that does a chore for a volume, in the place of an earlier one.
    fn keep(&self, uid: &str, volume: &str, chore: Chore, task: AbortHandle) {
        let key = (uid.to_owned(), volume.to_owned());
        let before = self.chores().entry(key).or_default().insert(chore, task);
        before.iter().for_each(AbortHandle::abort);
    }

    /// Ends all chores for a volume, which is held: what they have asked the driver for is done.
    fn release(&self, uid: &str, volume: &str) {
        let chores = self.chores().remove(&(uid.to_owned(), volume.to_owned()));
        chores.iter().flat_map(HashMap::values).for_each(AbortHandle::abort);
    }

    fn chores(&self) -> MutexGuard<'_, Chores> {
        // No code panics while it holds the lock.
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the driver had no room for a volume, has the cluster told how much it has.
    fn note_room<T>(
        &self,
        driver: &str,
        outcome: Result<T, super::Error>,
    ) -> Result<T, super::Error> {
        if outcome.as_ref().is_err_and(error::is_exhausted) {
            self.note_exhausted(driver);
        }
        outcome
    }

    fn note_exhausted(&self, driver: &str) {
        if let Some(exhausted) = self.drivers.exhausted(driver) {
            exhausted.notify_one();
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
    // Anew: since it was told to be in use, an earlier end of the pod may have come to its own end,
    // which forgets what the pod uses.
    attach::enter(task, &volume).await?;
    let mounted = match task.persistent.block {
        true => block::set_up(task, &volume).await,
        false => mount::set_up(task, &volume).await,
    };
    let mounted = task.node.csi.note_room(&source.driver, mounted)?;
    let grown = expand::expand(task, &volume).await?;
    growth::follow(task, &volume, grown);
    Ok(mounted)
}

/// Sets up a volume that lives as long as its pod.
pub(super) async fn set_up_inline(
    task: &Task<'_>,
    source: &CSIVolumeSource,
) -> Result<Mounted, super::Error> {
    let volume = Volume::inline(task, source).await?;
    let mounted = mount::set_up(task, &volume).await;
    task.node.csi.note_room(&source.driver, mounted)
}

/// Takes a volume of a pod down, and sees to it that it is unstaged after its last user.
pub(super) async fn take_down(
    node: &Arc<Inner>,
    uid: &str,
    left: &Left,
) -> Result<(), super::Error> {
    match left.block {
        true => block::take_down(node, uid, &left.name).await,
        false => mount::take_down(node, uid, &left.name).await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
