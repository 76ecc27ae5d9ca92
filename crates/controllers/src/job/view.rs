//! A Job with its pods, and what follows from them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::backoff::{Backoff, finished_at};
use super::indexes::{Indexes, index_of};
use super::pods::{ignored_failures, index_failures};
use super::policy::{self, Failure, failure_of, is_failed};
use super::{has_finalizer, true_condition};
use crate::workload::{
    count, is_active, is_ready, is_terminating, length, newest_first, number, phase, size, uid_of,
};

/// How a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finish {
    pub(super) kind: FinishKind,
    pub(super) reason: String,
    pub(super) message: String,
}

/// The condition that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinishKind {
    /// It is to fail: FailureTarget is to be set.
    FailureTarget,
    /// FailureTarget is set; Failed follows.
    Failed,
    /// It is to succeed: SuccessCriteriaMet is set or to be set.
    SuccessCriteriaMet,
}

/// The Job has all completions.
pub(super) fn completed() -> Finish {
    Finish {
        kind: FinishKind::SuccessCriteriaMet,
        reason: "CompletionsReached".to_owned(),
        message: "Reached expected number of succeeded pods".to_owned(),
    }
}

fn failed(reason: &str, message: &str) -> Finish {
    Finish {
        kind: FinishKind::FailureTarget,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// A Job with its pods.
pub(super) struct View {
    /// With the status that is to be written.
    pub(super) job: Job,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) ready: isize,
    pub(super) terminating: isize,
    /// Pods that were created in this sync.
    pub(super) created: usize,
    /// UIDs of pods whose finalizer is gone, though the pods do not show it.
    pub(super) released: HashSet<String>,
    /// UIDs of pods that the status has as succeeded and as failed, and not counted yet.
    pub(super) uncounted: [HashSet<String>; 2],
    pub(super) succeeded: isize,
    pub(super) failed: isize,
    /// Of an indexed Job: the indexes that had succeeded before, those that have now, and those that
    /// have failed for good if there is a limit for each.
    pub(super) indexes: Option<ViewIndexes>,
    /// Failed pods by index that keep their finalizer until they are replaced.
    pub(super) delayed: BTreeMap<usize, Arc<Pod>>,
    pub(super) finish: Option<Finish>,
}

/// The indexes of an indexed Job.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewIndexes {
    pub(super) completions: usize,
    pub(super) before: Indexes,
    pub(super) succeeded: Indexes,
    pub(super) failed: Option<Indexes>,
}

impl View {
    pub(super) fn new(
        mut job: Job,
        pods: Vec<Arc<Pod>>,
        released: HashSet<String>,
        now: Timestamp,
    ) -> Self {
        let is_suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
        let status = job.status.get_or_insert_default();
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let set = |uids: &Option<Vec<String>>| uids.iter().flatten().cloned().collect();
        let uncounted = [set(&uncounted.succeeded), set(&uncounted.failed)];
        if status.start_time.is_none() && !is_suspended {
            status.start_time = Some(Time(now));
        }
        let active: Vec<_> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
        let mut view = Self {
            ready: count_of(active.iter().filter(|pod| is_ready(pod)).count()),
            terminating: count_of(pods.iter().filter(|pod| is_terminating(pod)).count()),
            created: 0,
            released,
            uncounted,
            succeeded: 0,
            failed: 0,
            indexes: None,
            delayed: BTreeMap::new(),
            finish: None,
            job,
            pods,
            active,
        };
        view.count();
        view
    }

    fn spec(&self) -> Option<&JobSpec> {
        self.job.spec.as_ref()
    }

    fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.spec().is_some_and(|spec| spec.suspend == Some(true))
    }

    /// The number of completions, if there is one.
    fn completions(&self) -> Option<isize> {
        self.spec()?.completions.map(|completions| count(Some(completions)))
    }

    /// How often each index may fail, if there is such a limit.
    pub(super) fn limit_per_index(&self) -> Option<usize> {
        self.spec()?.backoff_limit_per_index.map(|limit| size(count(Some(limit))))
    }

    fn is_indexed(&self) -> bool {
        self.spec().is_some_and(|spec| spec.completion_mode.as_deref() == Some("Indexed"))
    }

    /// Whether a pod is to be counted: it has the finalizer, and an index if the Job has.
    pub(super) fn is_tracked(&self, pod: &Pod) -> bool {
        has_finalizer(pod) && !self.released.contains(uid_of(pod))
    }

    fn has_valid_index(&self, pod: &Pod) -> bool {
        let completions = self.completions().unwrap_or_default();
        !self.is_indexed() || index_of(pod).is_some_and(|index| count_of(index) < completions)
    }

    /// Pods that have ended and the status does not have yet.
    fn new_finished(&self, noted: &HashSet<String>, ended: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let is_new = |pod: &&Arc<Pod>| {
            self.is_tracked(pod)
                && !noted.contains(uid_of(&***pod))
                && self.has_valid_index(pod)
                && ended(pod)
        };
        self.pods.iter().filter(is_new).cloned().collect()
    }

    /// When the pods have ended that the status does not have yet: those that succeeded and failed.
    pub(super) fn new_ends(&self) -> (Vec<Timestamp>, Vec<Timestamp>) {
        let [succeeded, failed] = &self.uncounted;
        let times = |pods: Vec<Arc<Pod>>| pods.iter().filter_map(|pod| finished_at(pod)).collect();
        (
            times(self.new_finished(succeeded, |pod| phase(pod) == "Succeeded")),
            times(self.new_finished(failed, |pod| is_failed(pod, &self.job))),
        )
    }

    fn count(&mut self) {
        let status = self.status();
        let [noted_succeeded, noted_failed] = &self.uncounted;
        let succeeded = self.new_finished(noted_succeeded, |pod| phase(pod) == "Succeeded");
        let failed = self.new_finished(noted_failed, |pod| {
            is_failed(pod, &self.job) && failure_of(pod, &self.job).counts()
        });
        self.succeeded =
            count(status.succeeded) + length(&succeeded) + count_of(noted_succeeded.len());
        self.failed = count(status.failed) + length(&failed) + count_of(noted_failed.len());
        if !self.is_indexed() {
            return;
        }
        let completions = size(self.completions().unwrap_or_default());
        let known = |text: Option<String>| Indexes::parse(&text.unwrap_or_default(), completions);
        let indexes_of = |wanted: &dyn Fn(&Pod) -> bool| -> Vec<usize> {
            let pods = self.pods.iter().filter(|pod| has_finalizer(pod) && wanted(pod));
            pods.filter_map(|pod| index_of(pod)).filter(|index| *index < completions).collect()
        };
        let before = known(status.completed_indexes);
        let succeeded = before.with(indexes_of(&|pod| phase(pod) == "Succeeded"));
        let failed = self.limit_per_index().map(|limit| {
            let has_failed = |pod: &Pod| {
                is_failed(pod, &self.job)
                    && match failure_of(pod, &self.job) {
                        Failure::FailIndex => true,
                        failure => failure.counts() && index_failures(pod) >= limit,
                    }
            };
            known(status.failed_indexes).with(indexes_of(&has_failed))
        });
        self.succeeded = count_of(succeeded.total());
        self.indexes = Some(ViewIndexes { completions, before, succeeded, failed });
        if self.limit_per_index().is_some() {
            self.delay_releases();
        }
    }

    /// Finds the failed pods that keep their finalizer until they are replaced: the last of each index
    /// that is to be tried again.
    fn delay_releases(&mut self) {
        let Some(indexes) = &self.indexes else { return };
        let active: HashSet<usize> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        let failures = |pod: &Pod| index_failures(pod).saturating_add(ignored_failures(pod));
        let mut delayed: BTreeMap<usize, Arc<Pod>> = BTreeMap::new();
        for pod in self.new_finished(&HashSet::new(), |pod| is_failed(pod, &self.job)) {
            let Some(index) = index_of(&pod) else { continue };
            let is_over = indexes.succeeded.has(index)
                || indexes.failed.as_ref().is_some_and(|failed| failed.has(index))
                || active.contains(&index);
            let is_last = delayed.get(&index).is_none_or(|known| {
                failures(known) <= failures(&pod) && finished_at(known) <= finished_at(&pod)
            });
            if !is_over && is_last {
                delayed.insert(index, pod);
            }
        }
        self.delayed = delayed;
    }

    /// Decides whether the Job ends.
    pub(super) fn decide_finish(&mut self, now: Timestamp) {
        let of = |kind, condition: &JobCondition| Finish {
            kind,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        };
        let met = true_condition(&self.job, "SuccessCriteriaMet")
            .map(|condition| of(FinishKind::SuccessCriteriaMet, condition));
        let target = true_condition(&self.job, "FailureTarget")
            .map(|condition| of(FinishKind::Failed, condition));
        self.finish = met
            .or(target)
            .or_else(|| self.failed_by_policy())
            .or_else(|| self.failed_by_limit(now))
            .or_else(|| self.failed_by_indexes())
            .or_else(|| {
                let indexes = self.indexes.as_ref()?;
                let policy = self.spec()?.success_policy.as_ref();
                let message = policy::success(policy, indexes.completions, &indexes.succeeded)?;
                Some(Finish {
                    kind: FinishKind::SuccessCriteriaMet,
                    reason: "SuccessPolicy".to_owned(),
                    message,
                })
            });
    }

    fn failed_by_policy(&self) -> Option<Finish> {
        let mut failed = self.pods.iter().filter(|pod| is_failed(pod, &self.job));
        failed.find_map(|pod| match failure_of(pod, &self.job) {
            Failure::FailJob(message) => Some(self::failed("PodFailurePolicy", &message)),
            _ => None,
        })
    }

    fn failed_by_limit(&self, now: Timestamp) -> Option<Finish> {
        let limit = count(Some(self.spec()?.backoff_limit.unwrap_or(6)));
        if self.failed > limit || self.has_too_many_restarts(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(failed("BackoffLimitExceeded", message));
        }
        let is_late = self.time_to_deadline(now).is_some_and(|left| left.is_zero());
        let message = "Job was active longer than specified deadline";
        is_late.then(|| failed("DeadlineExceeded", message))
    }

    /// Whether containers that are started again in place were so too often.
    fn has_too_many_restarts(&self, limit: isize) -> bool {
        let policy =
            self.spec().and_then(|spec| spec.template.spec.as_ref()?.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let running = self.pods.iter().filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let restarts = |statuses: &Option<Vec<ContainerStatus>>| -> isize {
            statuses.iter().flatten().map(|status| count(Some(status.restart_count))).sum()
        };
        let restarts: isize = running
            .filter_map(|pod| pod.status.as_ref())
            .map(|status| {
                restarts(&status.init_container_statuses) + restarts(&status.container_statuses)
            })
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn failed_by_indexes(&self) -> Option<Finish> {
        let indexes = self.indexes.as_ref()?;
        let failures = indexes.failed.as_ref()?.total();
        let most = self.spec()?.max_failed_indexes;
        if most.is_some_and(|most| failures > size(count(Some(most)))) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(failed("MaxFailedIndexesExceeded", message));
        }
        let is_over = failures > 0 && failures + indexes.succeeded.total() >= indexes.completions;
        is_over.then(|| failed("FailedIndexes", "Job has failed indexes"))
    }

    /// The time that the Job may still be active, if that is limited.
    pub(super) fn time_to_deadline(&self, now: Timestamp) -> Option<Duration> {
        let seconds = self.spec()?.active_deadline_seconds.filter(|_| !self.is_suspended())?;
        let started = self.job.status.as_ref()?.start_time.as_ref()?.0;
        let left = SignedDuration::from_secs(seconds).checked_sub(now.duration_since(started))?;
        Some(Duration::try_from(left).unwrap_or_default())
    }

    /// Why pods are created, as metrics name it.
    pub(super) fn creation_reason(&self) -> &'static str {
        let policy = self.spec().and_then(|spec| spec.pod_replacement_policy.as_deref());
        match (policy, self.failed > 0, self.terminating > 0) {
            (Some("Failed"), true, _) => "recreate_failed",
            (_, true, _) | (_, _, true) => "recreate_terminating_or_failed",
            _ => "new",
        }
    }

    /// Whether there are all completions and no pod is active.
    pub(super) fn is_complete(&self) -> bool {
        if !self.active.is_empty() || self.created > 0 {
            return false;
        }
        match self.completions() {
            None => self.succeeded > 0,
            Some(completions) => self.succeeded >= completions,
        }
    }

    /// The number of pods that should be active.
    pub(super) fn wanted(&self) -> isize {
        let parallelism = count(self.spec().map(|spec| spec.parallelism.unwrap_or(1)));
        match self.completions() {
            // one success is enough, and the others end by themselves
            None if self.succeeded > 0 => length(&self.active),
            None => parallelism,
            Some(completions) => (completions - self.succeeded).min(parallelism).max(0),
        }
    }

    /// Active pods that are too many.
    pub(super) fn surplus(&self, most: usize) -> Vec<Arc<Pod>> {
        let wanted = if self.is_suspended() { 0 } else { self.wanted() };
        let surplus = size(length(&self.active) - wanted);
        let (mut doomed, rest) = self.duplicates();
        if doomed.len() < surplus {
            doomed.extend(newest_first(&rest, surplus - doomed.len()));
        }
        if !self.is_suspended() {
            doomed.truncate(most);
        }
        doomed
    }

    /// Active pods without a valid index, or of one that another pod has; and the others.
    fn duplicates(&self) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
        let Some(indexes) = &self.indexes else { return (Vec::new(), self.active.clone()) };
        let mut by_index: HashMap<usize, Vec<Arc<Pod>>> = HashMap::new();
        let mut doomed = Vec::new();
        for pod in &self.active {
            match index_of(pod).filter(|index| *index < indexes.completions) {
                Some(index) => by_index.entry(index).or_default().push(pod.clone()),
                None => doomed.push(pod.clone()),
            }
        }
        let mut rest = Vec::new();
        for pods in by_index.into_values() {
            let first = newest_first(&pods, pods.len() - 1);
            let is_doomed =
                |pod: &&Arc<Pod>| first.iter().any(|one| uid_of(&**one) == uid_of(&***pod));
            rest.extend(pods.iter().filter(|pod| !is_doomed(pod)).cloned());
            doomed.extend(first);
        }
        (doomed, rest)
    }

    /// The indexes for which pods are to be created; those whose pause is not over are left out, and
    /// the shortest of these pauses is returned too. Nothing for a Job without indexes.
    pub(super) fn indexes_to_create(
        &self,
        count: usize,
        now: Timestamp,
    ) -> Option<(Vec<usize>, Option<Duration>)> {
        let indexes = self.indexes.as_ref()?;
        let mut taken = indexes.succeeded.with(self.active.iter().filter_map(|pod| index_of(pod)));
        if policy::only_replaces_failed(&self.job) {
            let terminating = self.pods.iter().filter(|pod| is_terminating(pod));
            taken = taken.with(terminating.filter_map(|pod| index_of(pod)));
        }
        if let Some(failed) = &indexes.failed {
            taken = taken.merged(failed);
        }
        let mut missing = taken.missing(count, indexes.completions);
        let mut shortest: Option<Duration> = None;
        missing.retain(|index| {
            let Some(failed) = self.delayed.get(index) else { return true };
            let failures = index_failures(failed).saturating_add(ignored_failures(failed)) + 1;
            let ended = finished_at(failed).unwrap_or(now);
            let wait = Backoff::after(failures, ended).wait(now);
            if !wait.is_zero() {
                shortest = Some(shortest.map_or(wait, |known| known.min(wait)));
            }
            wait.is_zero()
        });
        Some((missing, shortest))
    }

    /// Pods were deleted: they are terminating now.
    pub(super) fn note_deleted(&mut self, deleted: &[Arc<Pod>]) {
        let is_deleted =
            |pod: &Arc<Pod>| deleted.iter().any(|one| uid_of(&**one) == uid_of(&**pod));
        self.active.retain(|pod| !is_deleted(pod));
        self.terminating += length(deleted);
        self.ready -= count_of(deleted.iter().filter(|pod| is_ready(pod)).count());
    }

    /// Updates the condition Suspended; the event if it has changed.
    pub(super) fn update_suspension(&mut self) -> Option<(&'static str, &'static str)> {
        let now = crate::workload::now();
        let is_suspended = self.is_suspended();
        let known = self.status().conditions.into_iter().flatten();
        let known = known.into_iter().find(|it| it.type_ == "Suspended");
        let status = self.job.status.get_or_insert_default();
        match (is_suspended, known.as_ref().map(|known| known.status.as_str())) {
            (true, Some("True")) | (false, None | Some("False")) => None,
            (true, _) => {
                set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended");
                status.start_time = None;
                Some(("Suspended", "Job suspended"))
            }
            (false, _) => {
                set_condition(status, "Suspended", "False", "JobResumed", "Job resumed");
                status.start_time = Some(now);
                Some(("Resumed", "Job resumed"))
            }
        }
    }

    /// Updates the counts of pods that run; whether they have changed.
    pub(super) fn update_counts(&mut self) -> bool {
        let active = length(&self.active) + count_of(self.created);
        let (ready, terminating) = (number(self.ready.max(0)), number(self.terminating));
        let status = self.job.status.get_or_insert_default();
        let changed = count(status.active) != active
            || status.ready != Some(ready)
            || status.terminating != Some(terminating);
        status.active = (active != 0).then(|| number(active));
        (status.ready, status.terminating) = (Some(ready), Some(terminating));
        changed
    }
}

/// A number of items as a count.
pub(super) fn count_of(items: usize) -> isize {
    isize::try_from(items).unwrap_or(isize::MAX)
}

/// Sets a condition, if it is not so already.
pub(super) fn set_condition(
    status: &mut JobStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
) {
    let now = crate::workload::now();
    let new = JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(known)
            if known.status == new.status
                && known.reason == new.reason
                && known.message == new.message => {}
        Some(known) => *known = new,
        None => conditions.push(new),
    }
}
