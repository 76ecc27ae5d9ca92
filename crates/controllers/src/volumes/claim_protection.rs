//! Keeps claims that pods use from being deleted, by a finalizer.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use longshore_client::Item;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};

use super::objects::{
    BY_CLAIM, claims_of, ephemeral_name, index_pods, is_deleting, is_made_by, is_terminated,
    volumes_of,
};
use super::writes::{protect, protection};
use crate::Context;
use crate::pods::node_of;
use crate::workload::{Error, name_of, namespace_of};
use crate::writes::{unless_gone, unless_stopped};

const FINALIZER: &str = "kubernetes.io/pvc-protection";

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

/// PURE: whether the claim must stay for the pod. What was made for it is not needed once its node is
/// done with it.
pub(super) fn holds(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let is_shut_down = is_deleting(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    let name = name_of(claim);
    !node_of(pod).is_empty()
        && volumes_of(pod).iter().any(|volume| {
            let named = volume.persistent_volume_claim.as_ref();
            named.is_some_and(|named| named.claim_name == name)
                || (volume.ephemeral.is_some()
                    && !is_shut_down
                    && ephemeral_name(pod, volume) == name
                    && is_made_by(claim, pod))
        })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("pvcprotection", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        claims: context.informers.get(),
        pods: context.informers.get(),
    };
    index_pods(controller.pods.store());
    controller.claims.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolumeClaim>| {
            let claim = event.latest();
            if protection(&**claim, FINALIZER).is_some() && !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**claim));
            }
        }
    });
    controller.pods.subscribe({
        let queue = queue.clone();
        move |event: &Event<Pod>| {
            let pod = event.latest();
            // A pod that runs releases nothing.
            if matches!(event, Event::Deleted(_)) || is_terminated(pod) {
                claims_of(pod).for_each(|claim| queue.add(claim));
            }
        }
    });
    let all = async {
        controller.claims.synced().await;
        controller.pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "persistentvolumeclaim-protection-controller";
    run_workers(name, &queue, 1, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(claim) = self.claims.store().get(&key) else { return Ok(()) };
        let Some(is_wanted) = protection(&*claim, FINALIZER) else { return Ok(()) };
        if !is_wanted && self.is_used(&key, &claim).await? {
            return Ok(());
        }
        unless_gone(protect(&self.client, &self.claims, &*claim, FINALIZER, is_wanted).await)?;
        Ok(())
    }

    /// Whether a pod uses the claim, or one that has come meanwhile.
    async fn is_used(&self, key: &str, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        if self.pods.store().by_index(BY_CLAIM, key).iter().any(|pod| holds(pod, claim)) {
            return Ok(true);
        }
        let api: Api<Item<Pod>> = Api::namespaced(self.client.clone(), namespace_of(claim));
        for pod in api.list(&ListParams::default()).await?.items {
            // Of a pod that does not decode nothing is known: the claim stays.
            match pod.read() {
                Ok(pod) if !holds(&pod, claim) => {}
                Ok(_) | Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }
}
