//! Says who expands the volumes of claims that grew. Drivers do it: none of the plugins that were
//! part of Kubernetes is here.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::api::{Patch, PatchParams};
use longshore_client::Item;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::json;

use super::event::{Events, VolumeEvent};
use super::objects::{
    annotation, claim_phase, claim_uid, requested, storage, volume_name, volume_spec,
};
use crate::Context;
use crate::workload::{Error, api, name_of, namespace_of, uid_of};
use crate::writes::{unless_gone, unless_stopped};

/// On a claim: who expands its volume.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    events: Events,
}

/// What is to be said about a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expansion {
    /// The driver that expands a volume of a plugin that it has taken over.
    pub(super) resizer: Option<&'static str>,
    pub(super) event: Option<VolumeEvent>,
}

/// The size that the claim has, in billionths of a byte.
fn actual(claim: &PersistentVolumeClaim) -> i128 {
    storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))
}

/// PURE: who expands the volume; `None`: it is large enough, or not the claim's.
pub(super) fn expansion(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<Expansion> {
    let is_bound = claim_phase(claim) == "Bound" && claim_uid(volume) == uid_of(claim);
    if !is_bound || requested(claim) <= actual(claim) {
        return None;
    }
    let spec = volume_spec(volume);
    if spec.csi.is_none()
        && let Ok(value) = serde_json::to_value(volume)
        && let Some(plugin) = longshore_migration::plugin(&value)
    {
        let why = format!(
            "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
        );
        let event = VolumeEvent::normal("ExternalExpanding", why);
        return Some(Expansion { resizer: longshore_migration::driver(plugin), event });
    }
    let why = "waiting for an external controller to expand this PVC";
    let event = match spec.csi.is_some() || spec.flex_volume.is_some() {
        true => VolumeEvent::normal("ExternalExpanding", why),
        false => VolumeEvent::warning("ExternalExpanding", why),
    };
    Some(Expansion { resizer: None, event })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("volume_expand", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        claims: context.informers.get(),
        volumes: context.informers.get(),
        events: Events::new(context.recorder("volume_expand")),
    };
    controller.claims.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolumeClaim>| {
            let claim = event.latest();
            let is_same = matches!(event, Event::Updated { old, new }
                if requested(new) <= requested(old) && actual(new) <= actual(old));
            if !is_same && claim_phase(claim) == "Bound" && !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**claim));
            }
        }
    });
    let all = async {
        controller.claims.synced().await;
        controller.volumes.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "persistentvolume-expander-controller";
    run_workers(name, &queue, 1, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(claim) = self.claims.store().get(&key) else { return Ok(()) };
        if claim_phase(&claim) != "Bound" {
            return Ok(());
        }
        // A volume that is late is looked at again.
        let volume = self.volumes.store().get(volume_name(&claim));
        let volume = volume.filter(|volume| claim_uid(volume) == uid_of(&*claim));
        let Some(volume) = volume else {
            return Err(Error::Invalid(format!(
                "persistent Volume is not bound to PVC being updated : {key}"
            )));
        };
        let Some(Expansion { resizer, event }) = expansion(&claim, &volume) else { return Ok(()) };
        self.events.record(&*claim, event);
        let Some(resizer) = resizer.filter(|it| annotation(&*claim, RESIZER) != Some(*it)) else {
            return Ok(());
        };
        let patch = Patch::Merge(json!({"metadata": {
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {RESIZER: resizer},
        }}));
        let api: kube::Api<Item<PersistentVolumeClaim>> = api(&self.client, namespace_of(&*claim));
        unless_gone(api.patch_status(name_of(&*claim), &PatchParams::default(), &patch).await)?;
        Ok(())
    }
}
