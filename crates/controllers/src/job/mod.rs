//! Jobs: pods that run to their end.
//!
//! Each pod has a finalizer until it is counted, so that none is counted twice or missed. Finished
//! pods are first noted in the status, by UID, then lose their finalizer, and then are counted.
//!
//! `view` is a Job with its pods and what follows from them, `policy` what failed and succeeded pods
//! mean, `backoff` the pause before a failed pod is replaced, `indexes` sets of completion indexes.

mod backoff;
mod indexes;
mod pods;
mod policy;
mod tracking;
mod view;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_client::events::EventType;
use longshore_informer::{
    Event, Expectations, Informer, WorkQueue, key_of, object_key, run_workers,
};
use parking_lot::{Mutex, MutexGuard};

use self::backoff::Backoff;
use self::view::View;
use crate::Context;
use crate::workload::{
    Error, Owners, PodControl, claim, controller_of, length, namespace_of, owned_or_orphans, patch,
    selector, size, uid_of,
};
use crate::writes::is_not_found;

/// The finalizer of pods that are not counted yet.
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Changes of pods are taken together.
const BATCH_PERIOD: Duration = Duration::from_secs(1);
/// The controller's name in `spec.managedBy`.
const NAME: &str = "kubernetes.io/job-controller";
/// The most pods that one sync creates or deletes.
const BURST: usize = 500;

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let owners = Owners::<Job> {
        informer: context.informers.get(),
        queue: WorkQueue::new("job", &context.queues),
        expectations: Arc::new(Expectations::default()),
        selector: |job| job.spec.as_ref()?.selector.clone(),
        delay: BATCH_PERIOD,
    };
    let controller = Controller {
        pods: context.informers.get(),
        orphans: WorkQueue::new("job_orphan_pod", &context.queues),
        control: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("job-controller"),
        },
        state: Arc::default(),
        owners,
    };
    controller.owners.follow(&controller.pods);
    controller.follow();
    controller.owners.informer.synced().await;
    controller.pods.synced().await;
    let (workers, stop) = (context.settings.job_workers, &context.stop);
    tokio::join!(
        run_workers("job-controller", &controller.owners.queue, workers, stop, |key| {
            controller.sync(key)
        }),
        run_workers("job-controller", &controller.orphans, 1, stop, |key| {
            controller.sync_orphan(key)
        }),
    );
}

#[derive(Clone)]
struct Controller {
    owners: Owners<Job>,
    pods: Informer<Pod>,
    /// Keys of pods with the finalizer that no Job counts.
    orphans: WorkQueue<String>,
    control: PodControl,
    state: Arc<Mutex<State>>,
}

/// What this copy has done and the informers have not shown yet.
#[derive(Default)]
struct State {
    /// UIDs of pods without the finalizer.
    released: HashSet<String>,
    /// UIDs of Jobs that have finished.
    finished: HashSet<String>,
    /// Failures by the key of the Job.
    backoffs: HashMap<String, Backoff>,
}

impl Controller {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn follow(&self) {
        let controller = self.clone();
        self.pods.subscribe(move |event| {
            let pod = event.latest();
            if matches!(event, Event::Deleted(_)) || !has_finalizer(pod) {
                controller.state().released.remove(uid_of(&**pod));
            } else if controller.is_orphan(pod) {
                controller.orphans.add(key_of(&**pod));
            }
        });
        let controller = self.clone();
        self.owners.informer.subscribe(move |event| {
            let job = event.latest();
            if let Event::Deleted(_) = event {
                controller.state().finished.remove(uid_of(&**job));
                controller.state().backoffs.remove(&key_of(&**job));
            }
            if matches!(event, Event::Deleted(_)) || is_finished(job) {
                for pod in crate::workload::owned(controller.pods.store(), &**job) {
                    controller.orphans.add(key_of(&*pod));
                }
            }
        });
    }

    /// Whether no unfinished Job counts the pod.
    fn is_orphan(&self, pod: &Pod) -> bool {
        let job =
            controller_of(&pod.metadata).filter(|it| it.kind == "Job").and_then(|reference| {
                let key = object_key(namespace_of(pod), &reference.name);
                let job = self.owners.informer.store().get(&key)?;
                (uid_of(&*job) == reference.uid).then_some(job)
            });
        // pods of other kinds have the finalizer of their own will
        let is_other = controller_of(&pod.metadata).is_some_and(|it| it.kind != "Job");
        has_finalizer(pod) && !is_other && job.is_none_or(|job| is_finished(&job))
    }

    /// Removes the finalizer of a pod that no Job counts.
    async fn sync_orphan(&self, key: String) -> Result<(), Error> {
        let Some(pod) = self.pods.store().get(&key) else { return Ok(()) };
        if !self.is_orphan(&pod) {
            return Ok(());
        }
        // the Job may be newer than the store
        if let Some(reference) = controller_of(&pod.metadata) {
            let jobs = crate::workload::api::<Job>(&self.control.client, namespace_of(&*pod));
            let job = longshore_client::optional(jobs.get_opt(&reference.name)).await?;
            if job.is_some_and(|job| uid_of(&job) == reference.uid && !is_finished(&job)) {
                return Ok(());
            }
        }
        self.release(&pod).await
    }

    /// Removes the finalizer of a pod.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let change = serde_json::json!({"metadata": {
            "uid": pod.metadata.uid,
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }});
        match patch::<Pod>(&self.control.client, &pod.metadata, &change).await {
            Err(error) if !is_not_found(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(job) = self.owners.informer.store().get(&key) else {
            self.owners.expectations.remove(&key);
            return Ok(());
        };
        let Some(spec) = &job.spec else { return Ok(()) };
        if spec.managed_by.as_deref().is_some_and(|manager| manager != NAME) {
            return Ok(());
        }
        if is_finished(&job) {
            let mut state = self.state();
            state.backoffs.remove(&key);
            state.finished.remove(uid_of(&*job));
            return Ok(());
        }
        if self.state().finished.contains(uid_of(&*job)) {
            return Ok(());
        }
        if let Some("NonIndexed" | "Indexed") | None = spec.completion_mode.as_deref() {
        } else {
            let message = "Skipped Job sync because completion mode is unknown";
            self.control.event(&*job, EventType::Warning, "UnknownCompletionMode", message);
            return Ok(());
        }
        let satisfied = self.owners.expectations.satisfied(&key);
        let Ok(selector) = selector(spec.selector.as_ref()) else { return Ok(()) };
        let pods = owned_or_orphans(self.pods.store(), &*job);
        let client = &self.control.client;
        let pods = claim(client, &*job, &selector, pods, |_| true, Some(FINALIZER)).await?;
        let released = self.state().released.clone();
        let now = Timestamp::now();
        let mut view = View::new(Job::clone(&job), pods, released, now);
        let known = self.state().backoffs.get(&key).copied().unwrap_or_default();
        let (succeeded, failed) = view.new_ends();
        let backoff = known.with(&succeeded, &failed);
        view.decide_finish(now);
        if view.finish.is_none()
            && let Some(wait) = view.time_to_deadline(now)
        {
            self.owners.queue.add_after(key.clone(), wait);
        }
        let mut status_changed = false;
        let mut failure = None;
        if view.finish.is_some() {
            let doomed = view.active.clone();
            let (deleted, result) = self.delete(&key, &view.job, &doomed, false).await;
            if deleted.len() != doomed.len() || !satisfied {
                view.finish = None;
            }
            view.note_deleted(&deleted);
            failure = result.err();
        } else {
            let manages = satisfied && job.metadata.deletion_timestamp.is_none();
            if manages {
                failure = self.manage(&key, &mut view, backoff, now).await.err();
            }
            if view.is_complete() {
                view.finish = Some(view::completed());
            } else if manages {
                let changed = view.update_suspension();
                if let Some((reason, message)) = changed {
                    status_changed = true;
                    self.control.event(&view.job, EventType::Normal, reason, message);
                }
            }
        }
        status_changed |= view.update_counts();
        let tracked = self.track(&key, &mut view, backoff, status_changed).await;
        tracked.and(failure.map_or(Ok(()), Err))
    }

    /// Creates and deletes pods.
    async fn manage(
        &self,
        key: &str,
        view: &mut View,
        backoff: Backoff,
        now: Timestamp,
    ) -> Result<(), Error> {
        let doomed = view.surplus(BURST, now);
        if !doomed.is_empty() || view.is_suspended() {
            let (deleted, result) = self.delete(key, &view.job, &doomed, true).await;
            view.note_deleted(&deleted);
            return result;
        }
        let terminating =
            if policy::only_replaces_failed(&view.job) { view.terminating } else { 0 };
        let missing = view.wanted() - length(&view.active) - terminating;
        if missing <= 0 {
            return Ok(());
        }
        let wait =
            if view.limit_per_index().is_none() { backoff.wait(now) } else { Duration::ZERO };
        if !wait.is_zero() {
            self.owners.queue.add_after(key.to_owned(), wait.max(BATCH_PERIOD));
            return Ok(());
        }
        let pods = match view.indexes_to_create(size(missing).min(BURST), now) {
            None => vec![pods::new(&view.job, None, None); size(missing).min(BURST)],
            Some((indexes, wait)) => {
                if indexes.is_empty()
                    && let Some(wait) = wait
                {
                    self.owners.queue.add_after(key.to_owned(), wait.max(BATCH_PERIOD));
                    return Ok(());
                }
                let new = |index| pods::new(&view.job, Some(index), view.delayed.get(&index));
                indexes.into_iter().map(new).collect()
            }
        };
        let pods: Vec<Pod> = pods.into_iter().flatten().collect();
        let expectations = &self.owners.expectations;
        expectations.expect_creations(key, pods.len());
        let (created, result) = self.control.create_all(&view.job, &pods).await;
        expectations.creations_observed(key, pods.len().saturating_sub(created));
        view.created = view.created.saturating_add(created);
        result
    }

    /// Deletes pods; those whose finalizer is of no use any more lose it. Returns those that were.
    async fn delete(
        &self,
        key: &str,
        job: &Job,
        doomed: &[Arc<Pod>],
        release: bool,
    ) -> (Vec<Arc<Pod>>, Result<(), Error>) {
        let expectations = &self.owners.expectations;
        if release && !doomed.is_empty() {
            expectations.expect_deletions(key, doomed.iter().map(|pod| uid_of(&**pod).to_owned()));
        }
        let deletions = doomed.iter().map(|pod| async {
            if release && has_finalizer(pod) {
                self.release(pod).await?;
            }
            self.control.delete(job, pod).await
        });
        let (mut deleted, mut failure) = (Vec::new(), Ok(()));
        for (pod, result) in doomed.iter().zip(join_all(deletions).await) {
            if !matches!(result, Ok(true)) {
                expectations.deletion_observed(key, uid_of(&**pod));
            }
            match result {
                Ok(_) => deleted.push(pod.clone()),
                Err(error) => failure = Err(error),
            }
        }
        (deleted, failure)
    }
}

/// Whether a pod is not counted yet.
fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// The condition of a type that is true.
fn true_condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().find(|it| it.type_ == kind && it.status == "True")
}

/// Whether a Job is complete or has failed.
pub(crate) fn is_finished(job: &Job) -> bool {
    true_condition(job, "Complete").or_else(|| true_condition(job, "Failed")).is_some()
}
