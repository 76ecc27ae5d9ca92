//! Keeps volumes that are bound from being deleted, by a finalizer.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Client;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};

use super::objects::volume_phase;
use super::writes::{protect, protection};
use crate::Context;
use crate::writes::{unless_gone, unless_stopped};

const FINALIZER: &str = "kubernetes.io/pv-protection";

/// PURE: whether the volume gets the finalizer or loses it; `None`: it stays as it is.
pub(super) fn decide(volume: &PersistentVolume) -> Option<bool> {
    protection(volume, FINALIZER).filter(|is_wanted| *is_wanted || volume_phase(volume) != "Bound")
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("pvprotection", &context.queues);
    let volumes = context.informers.get::<PersistentVolume>();
    volumes.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolume>| {
            if decide(event.latest()).is_some() && !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**event.latest()));
            }
        }
    });
    if !unless_stopped(&context, volumes.synced()).await {
        return;
    }
    let name = "persistentvolume-protection-controller";
    run_workers(name, &queue, 1, &context.stop, |key| sync(&context.client, &volumes, key)).await;
}

async fn sync(
    client: &Client,
    volumes: &Informer<PersistentVolume>,
    name: String,
) -> Result<(), kube::Error> {
    let Some(volume) = volumes.store().get(&name) else { return Ok(()) };
    let Some(is_wanted) = decide(&volume) else { return Ok(()) };
    unless_gone(protect(client, volumes, &*volume, FINALIZER, is_wanted).await).map(drop)
}
