//! Counts finished pods once each.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use longshore_client::events::EventType;

use super::backoff::Backoff;
use super::indexes::{Indexes, index_of};
use super::policy::{is_failed, rule_of};
use super::view::{Finish, FinishKind, View, set_condition};
use super::{Controller, completion_mode, has_finalizer, true_condition};
use crate::workload::{Error, count, number, phase, replace_status, size, uid_of};

/// The most pods that the status notes at once.
const MAX_UNCOUNTED: usize = 500;

impl Controller {
    /// Notes finished pods in the status, releases and counts them, and ends the Job if it is time.
    pub(super) async fn track(
        &self,
        key: &str,
        view: &mut View,
        backoff: Backoff,
        mut changed: bool,
    ) -> Result<(), Error> {
        let mut tracked: HashSet<String> = view
            .pods
            .iter()
            .filter(|pod| view.is_tracked(pod))
            .map(|pod| uid_of(&**pod).to_owned())
            .collect();
        let mut counted = Counted::of(&view.job);
        let status = view.job.status.get_or_insert_default();
        changed |= count_released(status, &tracked);
        let Noted { release, is_full, actions } = note(view, &mut changed);
        let terminal = terminal_condition(view, &mut changed);
        if changed {
            self.write(&mut view.job).await?;
            self.state().backoffs.insert(key.to_owned(), backoff);
            counted = self.count(&view.job, counted);
            changed = false;
        }
        for (action, count) in actions {
            self.metrics.job.handled_failures.with([&action]).add(count);
        }
        let released = self.release_all(&release, &mut tracked).await;
        let status = view.job.status.get_or_insert_default();
        changed |= count_released(status, &tracked);
        if released.is_err() {
            if changed {
                self.write(&mut view.job).await?;
            }
            return released;
        }
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let is_counted = uncounted.succeeded.is_none_or(|uids| uids.is_empty())
            && uncounted.failed.is_none_or(|uids| uids.is_empty());
        let ends = terminal.filter(|_| !is_full && is_counted && view.terminating <= 0);
        let status = view.job.status.get_or_insert_default();
        if let Some((kind, finish)) = &ends {
            changed = true;
            set_condition(status, kind, "True", &finish.reason, &finish.message);
            if *kind == "Complete" {
                status.completion_time = Some(crate::workload::now());
            }
        }
        if changed {
            self.write(&mut view.job).await?;
            self.count(&view.job, counted);
        }
        if let Some((kind, finish)) = ends {
            self.state().finished.insert(uid_of(&view.job).to_owned());
            self.report_end(&view.job, kind, &finish);
        }
        Ok(())
    }

    async fn write(&self, job: &mut Job) -> Result<(), Error> {
        *job = replace_status(&self.control.client, job).await?;
        let status = job.status.get_or_insert_default();
        status.uncounted_terminated_pods.get_or_insert_default();
        Ok(())
    }

    /// Removes finalizers; the pods are tracked no more.
    async fn release_all(
        &self,
        release: &[Arc<Pod>],
        tracked: &mut HashSet<String>,
    ) -> Result<(), Error> {
        self.state().released.extend(release.iter().map(|pod| uid_of(&**pod).to_owned()));
        let results = join_all(release.iter().map(|pod| self.release(pod))).await;
        let mut failure = Ok(());
        for (pod, result) in release.iter().zip(results) {
            let uid = uid_of(&**pod);
            match result {
                Ok(()) => {
                    tracked.remove(uid);
                    // it may have been seen, or be gone, before it was noted here
                    let known = self.pods.store().get(&longshore_informer::key_of(&**pod));
                    if known.is_none_or(|known| uid_of(&*known) != uid || !has_finalizer(&known)) {
                        self.state().released.remove(uid);
                    }
                }
                Err(error) => {
                    self.state().released.remove(uid);
                    failure = Err(error);
                }
            }
        }
        failure
    }

    /// Counts what a written status has more of than the one before.
    fn count(&self, job: &Job, before: Counted) -> Counted {
        let metrics = &self.metrics.job;
        let after = Counted::of(job);
        let mode = completion_mode(job);
        for (result, more) in [
            ("succeeded", after.succeeded.saturating_sub(before.succeeded)),
            ("failed", after.failed.saturating_sub(before.failed)),
        ] {
            metrics.pods_finished.with([mode, result]).add(more);
        }
        if let Some(limit) = after.limit {
            for (status, more) in [
                ("succeeded", after.succeeded.saturating_sub(before.succeeded)),
                ("failed", after.failed_indexes.saturating_sub(before.failed_indexes)),
            ] {
                metrics.finished_indexes.with([status, limit]).add(more);
            }
        }
        after
    }

    fn report_end(&self, job: &Job, kind: &str, finish: &Finish) {
        let result = if kind == "Complete" { "succeeded" } else { "failed" };
        let labels = [completion_mode(job), result, finish.reason.as_str()];
        self.metrics.job.finished.with(labels).inc();
        if kind != "Complete" {
            return self.control.event(job, EventType::Warning, &finish.reason, &finish.message);
        }
        let completions = job.spec.as_ref().and_then(|spec| spec.completions);
        let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
        if completions.is_some_and(|wanted| count(succeeded) > count(Some(wanted))) {
            let message = "Too many succeeded pods running after completion count reached";
            self.control.event(job, EventType::Warning, "TooManySucceededPods", message);
        }
        self.control.event(job, EventType::Normal, "Completed", "Job completed");
    }
}

/// What the status of a Job counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    succeeded: u64,
    failed: u64,
    failed_indexes: u64,
    /// Of an indexed Job: what its limit of failures is for, as metrics name it.
    limit: Option<&'static str>,
}

impl Counted {
    fn of(job: &Job) -> Self {
        let unsigned = |number: Option<i32>| u64::try_from(number.unwrap_or_default()).unwrap_or(0);
        let status = job.status.clone().unwrap_or_default();
        let failed = unsigned(status.failed);
        if completion_mode(job) != "Indexed" {
            let succeeded = unsigned(status.succeeded);
            return Self { succeeded, failed, failed_indexes: 0, limit: None };
        }
        let spec = job.spec.as_ref();
        let completions = size(count(spec.and_then(|spec| spec.completions)));
        let total = |text: Option<String>| {
            let indexes = Indexes::parse(&text.unwrap_or_default(), completions);
            u64::try_from(indexes.total()).unwrap_or(u64::MAX)
        };
        let is_per_index = spec.is_some_and(|spec| spec.backoff_limit_per_index.is_some());
        Self {
            succeeded: total(status.completed_indexes),
            failed,
            failed_indexes: total(status.failed_indexes),
            limit: Some(if is_per_index { "perIndex" } else { "global" }),
        }
    }
}

/// What came of [`note`].
struct Noted {
    /// Pods that are to be released.
    release: Vec<Arc<Pod>>,
    /// Whether the status has room for no more.
    is_full: bool,
    /// How many failed pods which action of the failure policy was for.
    actions: BTreeMap<String, u64>,
}

/// Counts noted pods that are tracked no more; whether there were any.
fn count_released(status: &mut JobStatus, tracked: &HashSet<String>) -> bool {
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let mut changed = false;
    for (uids, total) in [
        (&mut uncounted.succeeded, &mut status.succeeded),
        (&mut uncounted.failed, &mut status.failed),
    ] {
        let Some(uids) = uids else { continue };
        let before = uids.len();
        uids.retain(|uid| tracked.contains(uid));
        let counted = before - uids.len();
        if counted > 0 {
            changed = true;
            *total = Some(total.unwrap_or_default().saturating_add(number(counted)));
        }
    }
    changed
}

/// Notes finished pods in the status.
fn note(view: &mut View, changed: &mut bool) -> Noted {
    let (mut release, mut is_full) = (Vec::new(), false);
    let mut actions: BTreeMap<String, u64> = BTreeMap::new();
    let (mut succeeded, mut failed, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
    let noted = view.uncounted[0].len() + view.uncounted[1].len();
    let has_failed = matches!(
        view.finish,
        Some(Finish { kind: FinishKind::Failed | FinishKind::FailureTarget, .. })
    );
    let mut pods = view.pods.clone();
    if view.indexes.is_some() {
        pods.sort_by_key(|pod| index_of(pod));
    }
    for pod in pods.iter().filter(|pod| view.is_tracked(pod)) {
        let is_failure = is_failed(pod, &view.job);
        if !may_release(view, pod, is_failure) {
            continue;
        }
        release.push(pod.clone());
        let uid = uid_of(&**pod);
        let index = index_of(pod);
        let valid =
            view.indexes.as_ref().map(|known| index.filter(|index| *index < known.completions));
        let is_noted_failed = view.uncounted[1].contains(uid);
        if phase(pod) == "Succeeded" && !is_noted_failed {
            match (valid, &view.indexes) {
                (Some(Some(index)), Some(known)) if !known.before.has(index) => indexes.push(index),
                (None, _) if !view.uncounted[0].contains(uid) => succeeded.push(uid.to_owned()),
                _ => {}
            }
        } else if (is_failure || has_failed) && !is_noted_failed && valid != Some(None) {
            let rule = rule_of(pod, &view.job);
            if let Some((action, _)) = &rule {
                let count = actions.entry((*action).to_owned()).or_default();
                *count = count.saturating_add(1);
            }
            if rule.is_none_or(|(_, failure)| failure.counts()) {
                failed.push(uid.to_owned());
            }
        }
        if noted + succeeded.len() + failed.len() + indexes.len() >= MAX_UNCOUNTED {
            is_full = true;
            break;
        }
    }
    *changed |= !(succeeded.is_empty() && failed.is_empty() && indexes.is_empty());
    let known = view.indexes.clone();
    let status = view.job.status.get_or_insert_default();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    if !succeeded.is_empty() {
        uncounted.succeeded.get_or_insert_default().extend(succeeded);
    }
    if !failed.is_empty() {
        uncounted.failed.get_or_insert_default().extend(failed);
    }
    if let Some(known) = known {
        // beyond the room, indexes wait for the next sync
        let completed = known.before.with(indexes);
        let text = completed.to_string();
        *changed |= status.completed_indexes.as_deref().unwrap_or_default() != text;
        let total = number(completed.total());
        status.succeeded = (total != 0).then_some(total);
        status.completed_indexes = (!text.is_empty()).then_some(text);
        let failed = known.failed.map(|failed| failed.to_string());
        if status.failed_indexes != failed {
            status.failed_indexes = failed;
            *changed = true;
        }
    }
    Noted { release, is_full, actions }
}

/// Whether a pod is needed no more to know what has become of it.
fn may_release(view: &View, pod: &Pod, is_failure: bool) -> bool {
    if view.job.metadata.deletion_timestamp.is_some()
        || view.finish.is_some()
        || phase(pod) == "Succeeded"
    {
        return true;
    }
    let keeps = index_of(pod).and_then(|index| view.delayed.get(&index));
    is_failure && keeps.is_none_or(|kept| uid_of(&**kept) != uid_of(pod))
}

/// Notes that the Job is about to end, and how; the condition that follows when all is counted.
fn terminal_condition(view: &mut View, changed: &mut bool) -> Option<(&'static str, Finish)> {
    let finish = view.finish.clone()?;
    let (target, kind) = match finish.kind {
        FinishKind::FailureTarget | FinishKind::Failed => ("FailureTarget", "Failed"),
        FinishKind::SuccessCriteriaMet => ("SuccessCriteriaMet", "Complete"),
    };
    if true_condition(&view.job, target).is_none() {
        *changed = true;
        let status = view.job.status.get_or_insert_default();
        set_condition(status, target, "True", &finish.reason, &finish.message);
    }
    Some((kind, finish))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn job_metrics_count_pods_or_indexes() {
        let counted = |spec: Value, status: Value| {
            let mut job = json!({"metadata": {}, "spec": spec, "status": status});
            job["spec"]["template"] = json!({});
            Counted::of(&serde_json::from_value(job).unwrap())
        };
        let plain = counted(json!({"completions": 9}), json!({"succeeded": 3, "failed": 2}));
        let expected = Counted { succeeded: 3, failed: 2, failed_indexes: 0, limit: None };
        assert_eq!(plain, expected);
        let status = json!({"succeeded": 4, "failed": 2, "completedIndexes": "0-2,7",
            "failedIndexes": "3,4"});
        let indexed = |spec: Value| {
            let mut spec = spec;
            spec["completionMode"] = "Indexed".into();
            counted(spec, status.clone())
        };
        let limited = indexed(json!({"completions": 9, "backoffLimitPerIndex": 1}));
        assert_eq!((limited.succeeded, limited.failed_indexes), (4, 2));
        assert_eq!(limited.limit, Some("perIndex"));
        // indexes above the number of completions are none any more
        let fewer = indexed(json!({"completions": 5}));
        assert_eq!((fewer.succeeded, fewer.limit), (3, Some("global")));
    }
}
