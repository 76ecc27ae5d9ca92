//! Online expansion of volumes. A node may read its pods' claims but not watch them, so a claim is
//! polled, as a Go kubelet does with every sync of the pod; and more often during a resize. Only
//! for volumes that are expanded on the node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::Api;
use longshore_base::panics;
use longshore_client::{Item, object};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{Expand, Expansion, STORAGE, bytes, claim};
use crate::error::{Error, csi as error};
use crate::persistent::Persistent;
use crate::state::State;
use crate::state::csi::{BackgroundTask, within};
use crate::task::Task;

/// Initial poll interval of a claim that requests a resize; it increases.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A kind of volumes that are made larger while pods use them.
pub(crate) trait Kind: Send + Sync + 'static {
    /// Makes the volume, which has that size on the node, as large as its claim requires.
    fn expand(
        task: &Task<'_>,
        claim: PersistentVolumeClaim,
        node_size: i128,
    ) -> impl Future<Output = Result<Expansion, Error>> + Send;
}

/// Starts to follow the claim of a volume that is set up for a pod, until it is torn down.
pub(crate) fn start<K: Kind>(task: &Task<'_>, volume: &impl Expand, expansion: Expansion) {
    let (persistent, sizes) = (task.persistent, &task.node.csi.sizes);
    let Some(capacity) = &persistent.capacity else { return };
    if persistent.read_only || persistent.claim.is_none() || volume.unsupported().is_some() {
        return;
    }
    let device = volume.device();
    match &expansion {
        Expansion::Expanded(size) => sizes.set(device, bytes(size)),
        Expansion::NotNeeded => sizes.insert_initial(device, bytes(capacity)),
        Expansion::Pending | Expansion::OfflineOnly => {
            let claim_size = persistent.claim_capacity.as_ref().map_or(0, bytes);
            sizes.insert_initial(device, claim_size);
        }
    }
    let follower = ClaimFollower {
        node: Arc::clone(task.node),
        pod: task.pod.clone(),
        persistent: persistent.clone(),
        device: device.to_owned(),
        offline_only_size: (expansion == Expansion::OfflineOnly).then(|| bytes(capacity)),
        seen: None,
    };
    let following = tokio::spawn(panics::contain(follower.run::<K>())).abort_handle();
    task.node.csi.set_background_task(
        task.uid(),
        &persistent.spec_name,
        BackgroundTask::Expand,
        following,
    );
}

struct ClaimFollower {
    node: Arc<State>,
    pod: Pod,
    persistent: Persistent,
    device: String,
    /// The size that needs an offline expansion.
    offline_only_size: Option<i128>,
    /// The last resource version of the claim.
    seen: Option<String>,
}

/// When to poll again.
enum NextPoll {
    /// At the usual interval.
    Idle,
    /// Soon, as the claim has changed.
    Soon,
    /// With an increased interval.
    BackOff,
}

impl ClaimFollower {
    async fn run<K: Kind>(mut self) {
        let longest = self.node.csi.claim_poll_interval;
        let (mut pause, mut last_error) = (longest, None);
        loop {
            sleep(pause).await;
            let next = match self.claim_poll_interval::<K>(&mut last_error).await {
                Ok(next) => next,
                Err(error) => {
                    debug!(volume = self.persistent.spec_name, "failed to read the claim: {error}");
                    NextPoll::BackOff
                }
            };
            pause = match next {
                NextPoll::Idle => longest,
                NextPoll::Soon => FIRST_PAUSE.min(longest),
                NextPoll::BackOff => pause.mul_f64(1.5).min(longest),
            };
        }
    }

    async fn claim_poll_interval<K: Kind>(
        &mut self,
        last_error: &mut Option<String>,
    ) -> Result<NextPoll, Error> {
        let claim = claim(&self.node, &self.pod, &self.persistent).await?;
        let Some(claim) = claim else { return Ok(NextPoll::Idle) };
        // The PersistentVolume may have been changed without the claim.
        self.persistent.capacity = self.capacity().await?;
        let has = self.persistent.capacity.as_ref().map_or(0, bytes);
        if requested_size(&claim).max(has) <= self.node.csi.sizes.get(&self.device) {
            return Ok(NextPoll::Idle);
        }
        let version = claim.metadata.resource_version.clone();
        let is_new = self.seen != version;
        self.seen = version;
        match self.expand_to_capacity::<K>(claim, has).await {
            Ok(()) => *last_error = None,
            Err(error) => {
                let error = error.to_string();
                if last_error.as_ref() != Some(&error) {
                    let (pod, volume) = (&self.pod.metadata.uid, &self.persistent.spec_name);
                    warn!(?pod, volume, "failed to expand volume, will be retried: {error}");
                    *last_error = Some(error);
                }
            }
        }
        Ok(if is_new { NextPoll::Soon } else { NextPoll::BackOff })
    }

    /// Expands the volume to the capacity of its PersistentVolume.
    async fn expand_to_capacity<K: Kind>(
        &mut self,
        claim: PersistentVolumeClaim,
        size: i128,
    ) -> Result<(), Error> {
        let held = self.node.devices.hold(&self.device).await;
        let node_size = self.node.csi.sizes.get(&self.device);
        if size <= node_size || self.offline_only_size == Some(size) {
            return Ok(());
        }
        let task = Task { node: &self.node, pod: &self.pod, persistent: &self.persistent };
        match K::expand(&task, claim, node_size).await? {
            Expansion::Expanded(size) => self.node.csi.sizes.set(&self.device, bytes(&size)),
            Expansion::OfflineOnly => self.offline_only_size = Some(size),
            Expansion::NotNeeded | Expansion::Pending => {}
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
        Ok(amounts.remove(STORAGE))
    }
}

/// The larger of the claim's request and the capacity in its status.
fn requested_size(claim: &PersistentVolumeClaim) -> i128 {
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let asked = asked.and_then(|resources| resources.requests.as_ref());
    let claim_size = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let sizes = [asked, claim_size].into_iter().flatten();
    sizes.filter_map(|amounts| amounts.get(STORAGE)).map(bytes).max().unwrap_or(0)
}
