//! Volumes that grow while pods use them. A node may read its pods' claims but not watch them, so a
//! claim is looked at from time to time, as a Go kubelet does with every sync of the pod; and soon
//! again while it is on its way to another size. Only those are whose driver has a part in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::Api;
use longshore_base::panics;
use longshore_client::{Item, object};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::super::persistent::{Persistent, PersistentSource, Task};
use super::super::{Error, Inner};
use super::Chore;
use super::api::within;
use super::error;
use super::expand::{self, Grown, bytes};
use super::request::Volume;

/// How soon a claim that has changed, and wants to grow, is looked at again; each time later.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The sizes that volumes have on this node, by their unique names.
#[derive(Default)]
pub(super) struct Sizes(Mutex<HashMap<String, i128>>);

impl Sizes {
    fn get(&self, device: &str) -> i128 {
        self.known().get(device).copied().unwrap_or(0)
    }

    fn set(&self, device: &str, size: i128) {
        self.known().insert(device.to_owned(), size);
    }

    /// The size of a volume that was made ready on this node just now, unless it was before.
    fn begin(&self, device: &str, size: i128) {
        self.known().entry(device.to_owned()).or_insert(size);
    }

    /// The volume has left the node.
    pub(super) fn forget(&self, device: &str) {
        self.known().remove(device);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, i128>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the size of a volume that is set up for a pod, until it is taken down.
pub(super) fn follow(task: &Task<'_>, volume: &Volume<'_>, grown: Grown) {
    let (persistent, sizes) = (task.persistent, &task.node.csi.sizes);
    let Some(capacity) = &persistent.capacity else { return };
    if persistent.read_only || persistent.claim.is_none() || !volume.able.expand {
        return;
    }
    match &grown {
        Grown::Now(size) => sizes.set(&volume.device, bytes(size)),
        Grown::Before => sizes.begin(&volume.device, bytes(capacity)),
        Grown::NotYet | Grown::InUse => {
            let told = persistent.claim_capacity.as_ref().map_or(0, bytes);
            sizes.begin(&volume.device, told);
        }
    }
    let follower = Follower {
        node: Arc::clone(task.node),
        pod: task.pod.clone(),
        persistent: persistent.clone(),
        device: volume.device.clone(),
        refused: (grown == Grown::InUse).then(|| bytes(capacity)),
        seen: None,
    };
    let following = tokio::spawn(panics::contain(follower.run())).abort_handle();
    task.node.csi.keep(task.uid(), &persistent.spec_name, Chore::Grow, following);
}

struct Follower {
    node: Arc<Inner>,
    pod: Pod,
    persistent: Persistent,
    device: String,
    /// The size that the driver cannot give to it while it is used.
    refused: Option<i128>,
    /// The version of the claim that was seen last.
    seen: Option<String>,
}

/// When to look again.
enum Next {
    /// Nothing is to be expected.
    Whenever,
    /// Something has just changed.
    Soon,
    /// Not as soon as the last time.
    Later,
}

impl Follower {
    async fn run(mut self) {
        let longest = self.node.csi.look;
        let (mut pause, mut said) = (longest, None);
        loop {
            sleep(pause).await;
            let next = match self.look(&mut said).await {
                Ok(next) => next,
                Err(error) => {
                    debug!(volume = self.persistent.spec_name, "no look at its claim: {error}");
                    Next::Later
                }
            };
            pause = match next {
                Next::Whenever => longest,
                Next::Soon => FIRST_PAUSE.min(longest),
                Next::Later => pause.mul_f64(1.5).min(longest),
            };
        }
    }

    async fn look(&mut self, said: &mut Option<String>) -> Result<Next, Error> {
        let claim = expand::claim(&self.node, &self.pod, &self.persistent).await?;
        let Some(claim) = claim else { return Ok(Next::Whenever) };
        // Somebody may have raised it by hand, without a word to the claim.
        self.persistent.capacity = self.capacity().await?;
        let has = self.persistent.capacity.as_ref().map_or(0, bytes);
        if wanted(&claim).max(has) <= self.node.csi.sizes.get(&self.device) {
            return Ok(Next::Whenever);
        }
        let version = claim.metadata.resource_version.clone();
        let is_new = self.seen != version;
        self.seen = version;
        match self.grow(claim, has).await {
            Ok(()) => *said = None,
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    let (pod, volume) = (&self.pod.metadata.uid, &self.persistent.spec_name);
                    warn!(?pod, volume, "volume not made larger yet: {error}");
                    *said = Some(error);
                }
            }
        }
        Ok(if is_new { Next::Soon } else { Next::Later })
    }

    /// Has the driver make the volume as large as its PersistentVolume is by now.
    async fn grow(&mut self, claim: PersistentVolumeClaim, size: i128) -> Result<(), Error> {
        let held = self.node.devices.hold(&self.device).await;
        let here = self.node.csi.sizes.get(&self.device);
        if size <= here || self.refused == Some(size) {
            return Ok(());
        }
        let PersistentSource::Csi(source) = &self.persistent.source else { return Ok(()) };
        let task = Task { node: &self.node, pod: &self.pod, persistent: &self.persistent };
        let volume = Volume::persistent(&task, source).await?;
        match expand::expand_to(&task, &volume, claim, Some(here)).await? {
            Grown::Now(size) => self.node.csi.sizes.set(&self.device, bytes(&size)),
            Grown::InUse => self.refused = Some(size),
            Grown::Before | Grown::NotYet => {}
        }
        drop(held);
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Quantity>, Error> {
        let name = &self.persistent.spec_name;
        let action = || format!("get PV {name}");
        let api = Api::<Item<PersistentVolume>>::all(self.node.csi.client(action)?.clone());
        let failed = |reason| error::Error::Api { action: action(), reason };
        let volume = within(object(api.get(name))).await.map_err(failed)?;
        let mut amounts = volume.spec.and_then(|spec| spec.capacity).unwrap_or_default();
        Ok(amounts.remove(expand::STORAGE))
    }
}

/// What a claim asks for, or was told by now.
fn wanted(claim: &PersistentVolumeClaim) -> i128 {
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let asked = asked.and_then(|resources| resources.requests.as_ref());
    let told = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let sizes = [asked, told].into_iter().flatten();
    sizes.filter_map(|amounts| amounts.get(expand::STORAGE)).map(bytes).max().unwrap_or(0)
}
