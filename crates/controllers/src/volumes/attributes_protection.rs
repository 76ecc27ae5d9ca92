//! Keeps VolumeAttributesClasses that claims or volumes have from being deleted, by a finalizer.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::Client;
use longshore_informer::{Event, Informer, Object, WorkQueue, key_of, run_workers};

use super::objects::{
    BY_ATTRIBUTES, attributes_of_claim, attributes_of_volume, index_claims, index_volumes,
};
use super::writes::{protect, protection};
use crate::Context;
use crate::writes::{unless_gone, unless_stopped};

const FINALIZER: &str = "kubernetes.io/vac-protection";

struct Controller {
    client: Client,
    classes: Informer<VolumeAttributesClass>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

/// Queues the classes that the object has no longer.
fn queue_released<K: Object>(
    queue: &WorkQueue<String>,
    event: &Event<K>,
    names: fn(&K) -> Vec<String>,
) {
    let released = match event {
        Event::Added(_) => return,
        Event::Deleted(old) => names(old),
        Event::Updated { old, new } => {
            let kept = names(new);
            names(old).into_iter().filter(|name| !kept.contains(name)).collect()
        }
    };
    released.into_iter().for_each(|name| queue.add(name));
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("vacprotection", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        classes: context.informers.get(),
        claims: context.informers.get(),
        volumes: context.informers.get(),
    };
    index_claims(controller.claims.store());
    index_volumes(controller.volumes.store());
    controller.classes.subscribe({
        let queue = queue.clone();
        move |event: &Event<VolumeAttributesClass>| {
            let class = event.latest();
            if protection(&**class, FINALIZER).is_some() && !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**class));
            }
        }
    });
    controller.claims.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolumeClaim>| {
            queue_released(&queue, event, attributes_of_claim);
        }
    });
    controller.volumes.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolume>| queue_released(&queue, event, attributes_of_volume)
    });
    let all = async {
        controller.classes.synced().await;
        controller.claims.synced().await;
        controller.volumes.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "volumeattributesclass-protection-controller";
    run_workers(name, &queue, 1, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, name: String) -> Result<(), kube::Error> {
        let Some(class) = self.classes.store().get(&name) else { return Ok(()) };
        let Some(is_wanted) = protection(&*class, FINALIZER) else { return Ok(()) };
        let is_used = !self.claims.store().by_index(BY_ATTRIBUTES, &name).is_empty()
            || !self.volumes.store().by_index(BY_ATTRIBUTES, &name).is_empty();
        if !is_wanted && is_used {
            return Ok(());
        }
        let written = protect(&self.client, &self.classes, &*class, FINALIZER, is_wanted).await;
        unless_gone(written).map(drop)
    }
}
