//! ReplicaSets and ReplicationControllers: as many pods as are asked for, of one template.
//!
//! `kind` is what the two kinds have in common, `rank` says which pods go first, and `status` what is
//! reported.

mod kind;
mod status;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::jiff::Timestamp;
use longshore_informer::{Expectations, Informer, WorkQueue, run_workers};
use longshore_metrics::Histogram;

use self::kind::Replicated;
use self::status::{Failure, calculate};
use crate::Context;
use crate::workload::{
    Error, Owners, PodControl, age_ratios, api, claim, controller_of, first_to_delete,
    index_by_controller, is_active, is_controlled_by, is_terminating, length, new_pod,
    next_availability, owned, owned_or_orphans, replace_status, selector, size, uid_of,
};

/// The most pods that one sync creates or deletes.
const BURST: usize = 500;

/// Runs the controller of ReplicaSets.
pub(crate) async fn run(context: Context) {
    let workers = context.settings.replicaset_workers;
    run_kind::<ReplicaSet>(context, "replicaset", "replicaset-controller", workers).await;
}

/// Runs the controller of ReplicationControllers.
pub(crate) async fn run_replication_controllers(context: Context) {
    let workers = context.settings.replication_controller_workers;
    let (queue, component) = ("replicationmanager", "replication-controller");
    run_kind::<ReplicationController>(context, queue, component, workers).await;
}

async fn run_kind<K: Replicated>(
    context: Context,
    queue: &'static str,
    component: &'static str,
    workers: usize,
) {
    let recorder = context.recorder(component);
    let owners = Owners::<K> {
        informer: context.informers.get(),
        queue: WorkQueue::new(queue, &context.queues),
        expectations: Arc::new(Expectations::default()),
        selector: K::selector,
        delay: Duration::ZERO,
    };
    let pods = context.informers.get::<Pod>();
    index_by_controller(owners.informer.store());
    owners.follow(&pods);
    owners.informer.synced().await;
    pods.synced().await;
    let control = PodControl { client: context.client.clone(), recorder };
    let deletion_ages = context.metrics.deletion_age_ratio.clone();
    let controller = Controller { owners, pods, control, deletion_ages };
    let (queue, stop) = (&controller.owners.queue, &context.stop);
    run_workers(component, queue, workers, stop, |key| controller.sync(key)).await;
}

struct Controller<K: Replicated> {
    owners: Owners<K>,
    pods: Informer<Pod>,
    control: PodControl,
    deletion_ages: Histogram,
}

impl<K: Replicated> Controller<K> {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(owner) = self.owners.informer.store().get(&key) else {
            self.owners.expectations.remove(&key);
            return Ok(());
        };
        let needs_sync = self.owners.expectations.satisfied(&key);
        // what the API would not have accepted is not retried
        let Ok(selector) = selector(K::selector(&owner).as_ref()) else { return Ok(()) };
        let pods = owned_or_orphans(self.pods.store(), &*owner);
        let (active, other): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| is_active(pod));
        let client = &self.control.client;
        let active = claim(client, &*owner, &selector, active, |_| true, None).await?;
        let is_own = |pod: &Arc<Pod>| is_controlled_by(&pod.metadata, uid_of(&*owner));
        let terminating = other.iter().filter(|pod| is_terminating(pod) && is_own(pod)).count();
        let mut failure = None;
        if needs_sync && owner.metadata().deletion_timestamp.is_none() {
            failure = self.manage(&key, &owner, &active).await.err();
        }
        let now = Timestamp::now();
        let reported = failure.as_ref().map(|error| Failure {
            reason: if length(&active) < owner.replicas() {
                "FailedCreate"
            } else {
                "FailedDelete"
            },
            message: error.to_string(),
        });
        let status = calculate(&*owner, &active, terminating, reported, now);
        self.report(&owner, status).await?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let min_ready = owner.min_ready_seconds();
        if min_ready > 0
            && let Some(wait) = next_availability(active.iter().map(|pod| &**pod), min_ready, now)
        {
            self.owners.queue.add_after(key, wait);
        }
        Ok(())
    }

    /// Writes the status if it has changed; once more if the object has, too.
    async fn report(&self, owner: &K, status: status::Status) -> Result<(), Error> {
        if !status.differs_from(owner) {
            return Ok(());
        }
        let client = &self.control.client;
        let mut updated = owner.clone();
        status.store_in(&mut updated);
        let Err(error) = replace_status(client, &updated).await else { return Ok(()) };
        let namespace = owner.metadata().namespace.as_deref().unwrap_or_default();
        let name = owner.metadata().name.as_deref().unwrap_or_default();
        let fresh = longshore_client::optional(api::<K>(client, namespace).get_opt(name)).await?;
        let Some(mut fresh) = fresh.filter(|fresh| uid_of(fresh) == uid_of(owner)) else {
            return if crate::writes::is_not_found(&error) { Ok(()) } else { Err(error.into()) };
        };
        status.store_in(&mut fresh);
        replace_status(client, &fresh).await?;
        Ok(())
    }

    /// Creates or deletes pods.
    async fn manage(&self, key: &str, owner: &K, active: &[Arc<Pod>]) -> Result<(), Error> {
        let missing = owner.replicas() - length(active);
        let expectations = &self.owners.expectations;
        if missing > 0 {
            let count = size(missing).min(BURST);
            let Some(template) = owner.template() else { return Ok(()) };
            let pods = vec![new_pod(owner, template); count];
            expectations.expect_creations(key, count);
            let (created, result) = self.control.create_all(owner, &pods).await;
            // those that failed or were not tried will not be seen
            expectations.creations_observed(key, count.saturating_sub(created));
            return result;
        }
        let count = size(missing.saturating_neg()).min(BURST);
        if count == 0 {
            return Ok(());
        }
        let related = self.related(owner);
        let now = Timestamp::now();
        let doomed = first_to_delete(active, &related, count, now);
        if count < active.len() {
            let ratios = age_ratios(active, &doomed, now);
            ratios.into_iter().for_each(|ratio| self.deletion_ages.observe(ratio));
        }
        expectations.expect_deletions(key, doomed.iter().map(|pod| uid_of(&**pod).to_owned()));
        let deletions = doomed.iter().map(|pod| async {
            let deleted = self.control.delete(owner, pod).await;
            if !matches!(deleted, Ok(true)) {
                expectations.deletion_observed(key, uid_of(&**pod));
            }
            deleted.map(drop)
        });
        join_all(deletions).await.into_iter().collect()
    }

    /// The pods of all objects of the kind that the same controller has, this one's included.
    fn related(&self, owner: &K) -> Vec<Arc<Pod>> {
        let siblings = controller_of(owner.metadata()).map(|reference| {
            self.owners.informer.store().by_index(crate::workload::CONTROLLER_INDEX, &reference.uid)
        });
        let siblings = siblings.unwrap_or_default();
        siblings.iter().flat_map(|sibling| owned(self.pods.store(), &**sibling)).collect()
    }
}
