//! DaemonSets: one pod on each node that fits.
//!
//! `nodes` says on which nodes pods run, `plan` which pods are created and deleted.

mod nodes;
mod plan;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;
use longshore_client::events::EventType;
use longshore_informer::{Event, Expectations, Informer, WorkQueue, key_of, run_workers};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::Actions;
use crate::Context;
use crate::workload::{
    Counts, Current, Error, HASH_LABEL, HashOf, Owners, PodControl, Revisions, claim, count,
    index_by_controller, name_of, namespace_of, new_pod, number, owned_or_orphans, replace_status,
    revision_hash, selector, size, uid_of,
};

/// The most pods that one sync creates, and deletes.
const BURST: usize = 250;
/// The first and the longest pause before a failed pod is replaced.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let owners = Owners::<DaemonSet> {
        informer: context.informers.get(),
        queue: WorkQueue::new("daemonset", &context.queues),
        expectations: Arc::new(Expectations::default()),
        selector: |set| set.spec.as_ref().map(|spec| spec.selector.clone()),
        delay: Duration::ZERO,
    };
    let controller = Controller {
        pods: context.informers.get(),
        nodes: context.informers.get(),
        revisions: context.informers.get(),
        control: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("daemonset-controller"),
        },
        backoffs: Mutex::default(),
        owners,
    };
    index_by_controller(controller.revisions.store());
    controller.owners.follow(&controller.pods);
    let (sets, queue) = (controller.owners.informer.clone(), controller.owners.queue.clone());
    controller.nodes.subscribe(move |event| {
        if changes_fit(event) {
            sets.store().list().iter().for_each(|set| queue.add(key_of(&**set)));
        }
    });
    controller.owners.informer.synced().await;
    controller.pods.synced().await;
    controller.nodes.synced().await;
    controller.revisions.synced().await;
    let (queue, workers) = (&controller.owners.queue, context.settings.daemonset_workers);
    run_workers("daemonset-controller", queue, workers, &context.stop, |key| controller.sync(key))
        .await;
}

/// Whether other pods may fit the node now.
fn changes_fit(event: &Event<Node>) -> bool {
    let Event::Updated { old, new } = event else { return true };
    let spec = |node: &Node| node.spec.clone().unwrap_or_default();
    let (before, after) = (spec(old), spec(new));
    old.metadata.labels != new.metadata.labels
        || before.taints != after.taints
        || before.unschedulable != after.unschedulable
}

struct Controller {
    owners: Owners<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    control: PodControl,
    /// When the failed pod of a set on a node was deleted last, and the pause after it.
    backoffs: Mutex<HashMap<String, (Instant, Duration)>>,
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let expectations = &self.owners.expectations;
        let Some(set) = self.owners.informer.store().get(&key) else {
            expectations.remove(&key);
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        if spec.selector == LabelSelector::default() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.control.event(&*set, EventType::Warning, "SelectingAll", message);
            return Ok(());
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let client = &self.control.client;
        let Ok(selector) = selector(Some(&spec.selector)) else { return Ok(()) };
        let known = owned_or_orphans(self.revisions.store(), &*set);
        let mut revisions =
            Revisions::new(claim(client, &*set, &selector, known, |_| true, None).await?);
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let current = match revisions
            .current(client, &*set, &spec.template, HashOf::Template, collisions)
            .await?
        {
            Current::Found(current) => current,
            Current::Collision => {
                let mut updated = DaemonSet::clone(&set);
                let status = updated.status.get_or_insert_default();
                status.collision_count = Some(collisions.unwrap_or_default().saturating_add(1));
                replace_status(client, &updated).await?;
                return Err(Error::invalid("the name of the revision is taken"));
            }
        };
        let hash = revision_hash(&current).to_owned();
        let pods = owned_or_orphans(self.pods.store(), &*set);
        let pods = claim(client, &*set, &selector, pods, |_| true, None).await?;
        let nodes = self.nodes.store().list();
        let by_node = nodes::by_node(&pods);
        let mut failure = None;
        let satisfied = expectations.satisfied(&key);
        let now = Timestamp::now();
        if satisfied {
            failure = self.update(&key, &set, &nodes, &by_node, &hash, now).await.err();
            if failure.is_none() {
                let limit = spec.revision_history_limit.unwrap_or(10);
                let live = |one: &ControllerRevision| {
                    let hash = revision_hash(one);
                    uid_of(one) == uid_of(&*current)
                        || pods.iter().any(|pod| nodes::hash_of(pod) == hash)
                };
                let (limit, counts) = (size(count(Some(limit))), Counts::AllBut(&current));
                failure = revisions.truncate(client, limit, counts, live).await.err();
            }
        }
        let status = plan::status(&set, &nodes, &by_node, &hash, now, satisfied);
        if set.status.as_ref() != Some(&status) {
            let updated = DaemonSet { status: Some(status), ..DaemonSet::clone(&set) };
            replace_status(client, &updated).await?;
        }
        let min_ready = count(spec.min_ready_seconds);
        if min_ready > 0
            && let Some(wait) =
                crate::workload::next_availability(pods.iter().map(|pod| &**pod), min_ready, now)
        {
            self.owners.queue.add_after(key, wait);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Creates and deletes pods.
    async fn update(
        &self,
        key: &str,
        set: &Arc<DaemonSet>,
        nodes: &[Arc<Node>],
        by_node: &BTreeMap<String, Vec<Arc<Pod>>>,
        hash: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut actions = plan::manage(set, nodes, by_node, hash, now);
        actions.ended.retain(|pod| self.may_replace(key, set, pod));
        actions.delete.append(&mut actions.ended);
        if actions.is_empty() {
            actions = plan::roll(set, nodes, by_node, hash, now);
        }
        self.act(key, set, actions, hash).await
    }

    /// Whether a pod may be deleted now: a failed one only after a pause.
    fn may_replace(&self, key: &str, set: &DaemonSet, pod: &Pod) -> bool {
        let (name, phase) = (name_of(pod), crate::workload::phase(pod));
        let node = nodes::target(pod).unwrap_or_default();
        let about = format!("daemon pod {}/{name} on node {node}", namespace_of(pod));
        if phase == "Succeeded" {
            let message = format!("Found succeeded {about}, will try to delete it");
            self.control.event(set, EventType::Normal, "SucceededDaemonPod", &message);
        }
        if phase != "Failed" {
            return true;
        }
        let generation = set.metadata.generation.unwrap_or_default();
        let backoff_key = format!("{}/{generation}/{node}", uid_of(set));
        let now = Instant::now();
        let mut backoffs = self.backoffs.lock();
        let forget = BACKOFF.1.saturating_mul(2);
        backoffs.retain(|_, (since, _)| now.saturating_duration_since(*since) < forget);
        let next = match backoffs.get(&backoff_key) {
            None => BACKOFF.0,
            Some((since, pause)) => {
                let left = pause.saturating_sub(now.saturating_duration_since(*since));
                if !left.is_zero() {
                    self.owners.queue.add_after(key.to_owned(), left);
                    return false;
                }
                pause.saturating_mul(2).min(BACKOFF.1)
            }
        };
        backoffs.insert(backoff_key, (now, next));
        let message = format!("Found failed {about}, will try to kill it");
        self.control.event(set, EventType::Warning, "FailedDaemonPod", &message);
        true
    }

    async fn act(
        &self,
        key: &str,
        set: &DaemonSet,
        mut actions: Actions,
        hash: &str,
    ) -> Result<(), Error> {
        actions.create.truncate(BURST);
        actions.delete.truncate(BURST);
        if actions.is_empty() {
            return Ok(());
        }
        let Some(spec) = &set.spec else { return Ok(()) };
        let template = nodes::template(set, &spec.template, hash);
        let pods: Vec<Pod> = actions
            .create
            .iter()
            .map(|node| nodes::bound_to(new_pod(set, &template), node))
            .collect();
        let expectations = &self.owners.expectations;
        let uids = actions.delete.iter().map(|pod| uid_of(&**pod).to_owned());
        expectations.expect(key, pods.len(), uids);
        let (created, result) = self.control.create_all(set, &pods).await;
        expectations.creations_observed(key, pods.len().saturating_sub(created));
        let deletions = actions.delete.iter().map(|pod| async {
            let deleted = self.control.delete(set, pod).await;
            if !matches!(deleted, Ok(true)) {
                expectations.deletion_observed(key, uid_of(&**pod));
            }
            deleted.map(drop)
        });
        let deleted: Result<(), Error> = join_all(deletions).await.into_iter().collect();
        result.and(deleted)
    }
}

/// A number of the status.
fn counted(count: usize) -> i32 {
    number(count)
}
