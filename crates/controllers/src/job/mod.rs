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
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_client::events::EventType;
use longshore_informer::{
    Event, Expectations, Informer, Retries, WorkQueue, key_of, object_key, run_workers,
};
use parking_lot::{Mutex, MutexGuard};

use self::backoff::Backoff;
use self::view::View;
use crate::workload::{
    Error, Owners, PodControl, claim, controller_of, is_finished as is_pod_finished, length,
    namespace_of, owned_or_orphans, patch, selector, size, uid_of,
};
use crate::writes::is_not_found;
use crate::{Context, Metrics};

/// The finalizer of pods that are not counted yet.
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Changes of pods are taken together.
const BATCH_PERIOD: Duration = Duration::from_secs(1);
/// The controller's name in `spec.managedBy`.
const NAME: &str = "kubernetes.io/job-controller";
/// The pauses before a sync that failed is tried again.
const RETRIES: Retries =
    Retries { first: Duration::from_secs(1), longest: Duration::from_secs(60), limits_rate: false };
/// The most pods that one sync creates or deletes.
const BURST: usize = 500;

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let owners = Owners::<Job> {
        informer: context.informers.get(),
        queue: WorkQueue::with_retries("job", &context.queues, RETRIES),
        expectations: Arc::new(Expectations::default()),
        selector: |job| job.spec.as_ref()?.selector.clone(),
        delay: BATCH_PERIOD,
    };
    let controller = Controller {
        pods: context.informers.get(),
        orphans: WorkQueue::with_retries("job_orphan_pod", &context.queues, RETRIES),
        control: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("job-controller"),
        },
        state: Arc::default(),
        metrics: context.metrics.clone(),
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
    metrics: Arc<Metrics>,
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
            if let Some(label) = finalizer_event(event) {
                controller.metrics.job.terminated_with_finalizer.with([label]).inc();
            }
            if matches!(event, Event::Deleted(_)) || !has_finalizer(pod) {
                controller.state().released.remove(uid_of(&**pod));
            } else if controller.is_orphan(pod) {
                controller.orphans.add(key_of(&**pod));
            }
        });
        let controller = self.clone();
        self.owners.informer.subscribe(move |event| {
            let job = event.latest();
            if let (Event::Added(_), Some(manager)) = (event, external_manager(job)) {
                controller.metrics.job.external.with([manager]).inc();
            }
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
        let job = controller_of(&pod.metadata).and_then(|reference| {
            let key = object_key(namespace_of(pod), &reference.name);
            let job = self.owners.informer.store().get(&key)?;
            (uid_of(&*job) == reference.uid).then_some(job)
        });
        is_uncounted(pod, job.as_deref())
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
            let job = job.filter(|job| uid_of(job) == reference.uid);
            if !is_uncounted(&pod, job.as_ref()) {
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
        if external_manager(&job).is_some() {
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
        let start = std::time::Instant::now();
        let (action, result) = self.sync_active(key, &job, spec).await;
        let outcome = if result.is_ok() { "success" } else { "error" };
        let labels = [completion_mode(&job), outcome, action];
        self.metrics.job.syncs.with(labels).inc();
        self.metrics.job.sync_duration.with(labels).took(start.elapsed());
        result
    }

    /// Syncs a Job that has not finished; what was done, as metrics name it.
    async fn sync_active(
        &self,
        key: String,
        job: &Job,
        spec: &JobSpec,
    ) -> (&'static str, Result<(), Error>) {
        let mut action = "reconciling";
        let result = self.try_sync(key, job, spec, &mut action).await;
        (action, result)
    }

    async fn try_sync(
        &self,
        key: String,
        job: &Job,
        spec: &JobSpec,
        action: &mut &'static str,
    ) -> Result<(), Error> {
        let satisfied = self.owners.expectations.satisfied(&key);
        let Ok(selector) = selector(spec.selector.as_ref()) else { return Ok(()) };
        let pods = owned_or_orphans(self.pods.store(), job);
        let client = &self.control.client;
        let pods = claim(client, job, &selector, pods, |_| true, Some(FINALIZER)).await?;
        let released = self.state().released.clone();
        let now = Timestamp::now();
        let mut view = View::new(job.clone(), pods, released, now);
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
                let (done, managed) = self.manage(&key, &mut view, backoff, now).await;
                *action = done;
                failure = managed.err();
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

    /// Creates and deletes pods; what was done, as metrics name it.
    async fn manage(
        &self,
        key: &str,
        view: &mut View,
        backoff: Backoff,
        now: Timestamp,
    ) -> (&'static str, Result<(), Error>) {
        let doomed = view.surplus(BURST);
        if !doomed.is_empty() || view.is_suspended() {
            let (deleted, result) = self.delete(key, &view.job, &doomed, true).await;
            view.note_deleted(&deleted);
            return ("pods_deleted", result);
        }
        let terminating =
            if policy::only_replaces_failed(&view.job) { view.terminating } else { 0 };
        let missing = view.wanted() - length(&view.active) - terminating;
        if missing <= 0 {
            return ("tracking", Ok(()));
        }
        let wait =
            if view.limit_per_index().is_none() { backoff.wait(now) } else { Duration::ZERO };
        if !wait.is_zero() {
            self.owners.queue.add_after(key.to_owned(), wait.max(BATCH_PERIOD));
            return ("pods_created", Ok(()));
        }
        let pods = match view.indexes_to_create(size(missing).min(BURST), now) {
            None => vec![pods::new(&view.job, None, None); size(missing).min(BURST)],
            Some((indexes, wait)) => {
                if indexes.is_empty()
                    && let Some(wait) = wait
                {
                    self.owners.queue.add_after(key.to_owned(), wait.max(BATCH_PERIOD));
                    return ("pods_created", Ok(()));
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
        let reason = view.creation_reason();
        let failed = usize::from(result.is_err());
        for (status, count) in [("succeeded", created), ("failed", failed)] {
            if let Some(count) = u64::try_from(count).ok().filter(|count| *count > 0) {
                self.metrics.job.pods_created.with([reason, status]).add(count);
            }
        }
        ("pods_created", result)
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

/// The completion mode of a Job, as metrics name it.
fn completion_mode(job: &Job) -> &'static str {
    match job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) {
        Some("Indexed") => "Indexed",
        _ => "NonIndexed",
    }
}

/// Whether a pod that has ended got the finalizer, or lost it, as metrics name it.
fn finalizer_event(event: &Event<Pod>) -> Option<&'static str> {
    let counts = |pod: &Pod| is_pod_finished(pod) && has_finalizer(pod);
    let after = match event {
        Event::Deleted(_) => false,
        Event::Added(pod) | Event::Updated { new: pod, .. } => counts(pod),
    };
    let before = match event {
        Event::Added(_) => false,
        Event::Deleted(pod) => counts(pod),
        Event::Updated { old, .. } => counts(old),
    };
    match (before, after) {
        (false, true) => Some("add"),
        (true, false) => Some("delete"),
        _ => None,
    }
}

/// The controller of others that syncs the Job.
fn external_manager(job: &Job) -> Option<&str> {
    job.spec.as_ref()?.managed_by.as_deref().filter(|manager| *manager != NAME)
}

/// Whether a pod has the finalizer though nothing counts it: its Job, if there is one, has finished.
/// Pods of other kinds, and those of Jobs that others manage, have it of their managers' will.
fn is_uncounted(pod: &Pod, job: Option<&Job>) -> bool {
    let is_of_job = controller_of(&pod.metadata).is_none_or(|reference| {
        reference.kind == "Job"
            && reference.api_version == <Job as k8s_openapi::Resource>::API_VERSION
    });
    has_finalizer(pod)
        && is_of_job
        && job.is_none_or(|job| is_finished(job) && external_manager(job).is_none())
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn job_counts_ended_pods_that_get_and_lose_the_finalizer() {
        let pod = |phase: &str, finalizers: Value| -> Arc<Pod> {
            let pod = json!({"metadata": {"finalizers": finalizers}, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let (running, ended) =
            (pod("Running", json!([FINALIZER])), pod("Failed", json!([FINALIZER])));
        let released = pod("Failed", json!([]));
        let update =
            |old: &Arc<Pod>, new: &Arc<Pod>| Event::Updated { old: old.clone(), new: new.clone() };
        for (event, expected) in [
            (Event::Added(running.clone()), None),
            (Event::Added(ended.clone()), Some("add")),
            (update(&running, &ended), Some("add")),
            (update(&ended, &ended), None),
            (update(&ended, &released), Some("delete")),
            (Event::Deleted(ended.clone()), Some("delete")),
            (Event::Deleted(released), None),
        ] {
            assert_eq!(finalizer_event(&event), expected);
        }
    }

    #[test]
    fn job_finalizer_goes_only_where_no_manager_counts_the_pod() {
        let pod = |owner: Value, finalizers: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "finalizers": finalizers,
                "ownerReferences": owner}}))
            .unwrap()
        };
        let owner = |kind: &str, version: &str| json!([{"kind": kind, "apiVersion": version, "name": "j", "uid": "u", "controller": true}]);
        let job = |finished: bool, manager: Value| -> Job {
            serde_json::from_value(json!({
                "metadata": {"name": "j", "uid": "u"},
                "spec": {"template": {}, "managedBy": manager},
                "status": {"conditions": finished.then(|| json!([
                    {"type": "Complete", "status": "True"}]))},
            }))
            .unwrap()
        };
        let ours = || pod(owner("Job", "batch/v1"), json!([FINALIZER]));
        let (running, done) = (job(false, Value::Null), job(true, Value::Null));
        let external = job(true, json!("example.com/other"));
        for (pod, job, expected) in [
            (ours(), None, true),
            (ours(), Some(&running), false),
            (ours(), Some(&done), true),
            (ours(), Some(&external), false),
            (pod(Value::Null, json!([FINALIZER])), None, true),
            (pod(owner("Job", "batch/v1"), json!([])), None, false),
            (pod(owner("Other", "batch/v1"), json!([FINALIZER])), None, false),
            (pod(owner("Job", "batch.example.com/v1"), json!([FINALIZER])), None, false),
        ] {
            assert_eq!(is_uncounted(&pod, job), expected, "{pod:?} {job:?}");
        }
    }
}
