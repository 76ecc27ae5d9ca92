//! CronJobs: a Job at each time of a schedule.
//!
//! `schedule` reads cron lines, `plan` says which time is due.

mod plan;
mod schedule;

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, Preconditions};
use longshore_client::events::{EventType, Recorder};
use longshore_client::{object, optional};
use longshore_informer::{Event, Informer, WorkQueue, key_of, object_key, run_workers};
use longshore_metrics::Histogram;

use self::plan::{Missed, next_check};
use self::schedule::Schedule;
use crate::Context;
use crate::workload::{
    Error, api, controller_of, controller_reference, count, create, index_by_controller,
    is_controlled_by, name_of, namespace_of, owned, replace_status, size, uid_of,
};
use crate::writes::{is_not_found, reference};

/// The annotation of a Job with the time that it was scheduled for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Runs the controller.
pub(crate) async fn run(context: Context) {
    let controller = Controller {
        client: context.client.clone(),
        recorder: context.recorder("cronjob-controller"),
        cron_jobs: context.informers.get(),
        jobs: context.informers.get(),
        queue: WorkQueue::new("cronjob", &context.queues),
        skew: context.metrics.cronjob_skew.clone(),
    };
    index_by_controller(controller.jobs.store());
    controller.cron_jobs.subscribe({
        let (queue, recorder) = (controller.queue.clone(), controller.recorder.clone());
        move |event: &Event<CronJob>| follow(&queue, &recorder, event)
    });
    let queue = controller.queue.clone();
    controller.jobs.subscribe(move |event: &Event<Job>| {
        for job in event.old().into_iter().chain([event.latest()]) {
            if let Some(owner) = controller_of(&job.metadata).filter(|it| it.kind == "CronJob") {
                queue.add(object_key(namespace_of(&**job), &owner.name));
            }
        }
    });
    controller.cron_jobs.synced().await;
    controller.jobs.synced().await;
    let (queue, workers) = (&controller.queue, context.settings.cronjob_workers);
    run_workers("cronjob-controller", queue, workers, &context.stop, |key| controller.sync(key))
        .await;
}

/// Queues a CronJob that changes. With another schedule it waits for the next time of that: what the
/// new schedule would have had in the past is not made up for.
fn follow(queue: &WorkQueue<String>, recorder: &Recorder, event: &Event<CronJob>) {
    let cron = event.latest();
    let key = key_of(&**cron);
    let is_rescheduled = event.old().is_some_and(|old| {
        (&old.spec.schedule, &old.spec.time_zone) != (&cron.spec.schedule, &cron.spec.time_zone)
    });
    if !is_rescheduled {
        return queue.add(key);
    }
    // without a zone that is known the sync says so
    let Ok(zone) = plan::zone_of(cron) else { return queue.add(key) };
    match Schedule::parse(&cron.spec.schedule, zone) {
        Ok(schedule) => match next_check(cron, &schedule, Timestamp::now()) {
            Some(wait) => queue.add_after(key, wait),
            None => queue.add(key),
        },
        Err(_) => {
            let message = format!("unparseable schedule for cronjob: {}", cron.spec.schedule);
            let reason = "UnParseableCronJobSchedule";
            recorder.event(reference(&**cron), EventType::Warning, reason, &message);
        }
    }
}

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    cron_jobs: Informer<CronJob>,
    jobs: Informer<Job>,
    queue: WorkQueue<String>,
    /// How long after its time a Job is created.
    skew: Histogram,
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(known) = self.cron_jobs.store().get(&key) else { return Ok(()) };
        let mut cron = CronJob::clone(&known);
        let jobs: Vec<Job> =
            owned(self.jobs.store(), &cron).iter().map(|job| Job::clone(job)).collect();
        self.clean_up(&mut cron, &jobs).await;
        let synced = self.sync_one(&mut cron, &jobs).await;
        if cron.status != known.status {
            replace_status(&self.client, &cron).await?;
        }
        if let Some(wait) = synced? {
            self.queue.add_after(key, wait);
        }
        Ok(())
    }

    /// Deletes finished Jobs above the limits of the history, the oldest first.
    async fn clean_up(&self, cron: &mut CronJob, jobs: &[Job]) {
        let spec = cron.spec.clone();
        for (kind, limit) in [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ] {
            let Some(limit) = limit else { continue };
            let mut finished: Vec<_> =
                jobs.iter().filter(|job| finished_as(job) == Some(kind)).collect();
            finished.sort_by_cached_key(|job| {
                let start = job.status.as_ref().and_then(|status| status.start_time.as_ref());
                (start.is_none(), start.map(|time| time.0), job.metadata.name.clone())
            });
            let surplus = finished.len().saturating_sub(size(count(Some(limit))));
            for job in finished.into_iter().take(surplus) {
                self.delete(cron, job).await;
            }
        }
    }

    /// Deletes a Job with its pods; whether that succeeded.
    async fn delete(&self, cron: &mut CronJob, job: &Job) -> bool {
        let same = Preconditions { uid: job.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
        let deleted =
            api::<Job>(&self.client, namespace_of(job)).delete(name_of(job), &params).await;
        match deleted {
            Err(error) if !is_not_found(&error) => {
                let message = format!("Deleted job: {}", Error::from(error));
                self.event(cron, EventType::Warning, "FailedDelete", &message);
                false
            }
            _ => {
                forget(cron, uid_of(job));
                let message = format!("Deleted job {}", name_of(job));
                self.event(cron, EventType::Normal, "SuccessfulDelete", &message);
                true
            }
        }
    }

    /// Updates the status by the Jobs that there are.
    async fn note_jobs(&self, cron: &mut CronJob, jobs: &[Job]) -> Result<(), Error> {
        for job in jobs {
            let (name, uid) = (name_of(job), uid_of(job));
            let Some(kind) = finished_as(job) else {
                if !is_active(cron, uid) {
                    // the store may be older than the Job
                    let cron_jobs = api::<CronJob>(&self.client, namespace_of(cron));
                    let fresh = object(cron_jobs.get(name_of(cron))).await?;
                    if is_active(&fresh, uid) {
                        cron.status = fresh.status;
                        cron.metadata.resource_version = fresh.metadata.resource_version;
                        continue;
                    }
                    let message =
                        format!("Saw a job that the controller did not create or forgot: {name}");
                    self.event(cron, EventType::Warning, "UnexpectedJob", &message);
                }
                continue;
            };
            if is_active(cron, uid) {
                forget(cron, uid);
                let message = format!("Saw completed job: {name}, condition: {kind}");
                self.event(cron, EventType::Normal, "SawCompletedJob", &message);
            }
            let completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
            if let Some(completed) = completed.filter(|_| kind == "Complete") {
                let status = cron.status.get_or_insert_default();
                if status.last_successful_time.as_ref().is_none_or(|last| last.0 < completed.0) {
                    status.last_successful_time = Some(completed);
                }
            }
        }
        for active in active(cron) {
            let uid = active.uid.clone().unwrap_or_default();
            if jobs.iter().any(|job| uid_of(job) == uid) {
                continue;
            }
            let name = active.name.clone().unwrap_or_default();
            let jobs = api::<Job>(&self.client, namespace_of(cron));
            if optional(jobs.get_opt(&name)).await?.is_none() {
                let message = format!("Active job went missing: {name}");
                self.event(cron, EventType::Normal, "MissingJob", &message);
                forget(cron, &uid);
            }
        }
        Ok(())
    }

    async fn sync_one(&self, cron: &mut CronJob, jobs: &[Job]) -> Result<Option<Duration>, Error> {
        let now = Timestamp::now();
        self.note_jobs(cron, jobs).await?;
        let spec = cron.spec.clone();
        if cron.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let zone = match plan::zone_of(cron) {
            Ok(zone) => zone,
            Err(name) => {
                let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
                self.event(cron, EventType::Warning, "UnknownTimeZone", &message);
                return Ok(None);
            }
        };
        if spec.suspend == Some(true) {
            return Ok(None);
        }
        if spec.schedule.contains("TZ") {
            let message = format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                spec.schedule
            );
            self.event(cron, EventType::Warning, "UnsupportedSchedule", &message);
        }
        let schedule = match Schedule::parse(&spec.schedule, zone.clone()) {
            Ok(schedule) => schedule,
            Err(error) => {
                let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
                self.event(cron, EventType::Warning, "UnparseableSchedule", &message);
                return Ok(None);
            }
        };
        let Some(missed) = Missed::of(cron, &schedule, now, true) else {
            let message = format!(
                "invalid schedule: {} : time difference between two schedules is less than 1 second",
                spec.schedule
            );
            self.event(cron, EventType::Warning, "InvalidSchedule", &message);
            return Ok(None);
        };
        let Some(time) = missed.latest else { return Ok(next_check(cron, &schedule, now)) };
        if missed.are_many() {
            let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.event(cron, EventType::Warning, "TooManyMissedTimes", message);
        }
        let late = now.duration_since(time).as_secs();
        if spec.starting_deadline_seconds.is_some_and(|deadline| late > deadline) {
            let time = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
            let message = format!("Missed scheduled time to start a job: {time}");
            self.event(cron, EventType::Warning, "MissSchedule", &message);
            return Ok(next_check(cron, &schedule, now));
        }
        let name = job_name(cron, time);
        let last = cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
        if last.is_some_and(|last| last.0 == time)
            || active(cron).iter().any(|it| it.name.as_ref() == Some(&name))
        {
            return Ok(next_check(cron, &schedule, now));
        }
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if !active(cron).is_empty() => {
                let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.event(cron, EventType::Normal, "JobAlreadyActive", message);
                return Ok(next_check(cron, &schedule, now));
            }
            Some("Replace") => self.replace_active(cron).await?,
            _ => {}
        }
        self.start(cron, &name, time, &zone).await?;
        Ok(next_check(cron, &schedule, now))
    }

    async fn replace_active(&self, cron: &mut CronJob) -> Result<(), Error> {
        for active in active(cron) {
            let name = active.name.unwrap_or_default();
            let jobs = api::<Job>(&self.client, namespace_of(cron));
            let job = match object(jobs.get(&name)).await {
                Ok(job) => job,
                Err(error) => {
                    let error = Error::from(error);
                    let message = format!("Get job: {error}");
                    self.event(cron, EventType::Warning, "FailedGet", &message);
                    return Err(error);
                }
            };
            if !self.delete(cron, &job).await {
                let namespace = namespace_of(&job);
                return Err(Error::Invalid(format!("could not replace job {namespace}/{name}")));
            }
        }
        Ok(())
    }

    /// Creates the Job of that time.
    async fn start(
        &self,
        cron: &mut CronJob,
        name: &str,
        time: Timestamp,
        zone: &TimeZone,
    ) -> Result<(), Error> {
        let new = new_job(cron, name, time, zone);
        let job = match create(&self.client, &new).await {
            Ok(job) => {
                if let Some(created) = &job.metadata.creation_timestamp {
                    self.skew.observe(created.0.duration_since(time).as_secs_f64());
                }
                let message = format!("Created job {name}");
                self.event(cron, EventType::Normal, "SuccessfulCreate", &message);
                job
            }
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                // created before, and not noted
                let job = object(api::<Job>(&self.client, namespace_of(&new)).get(name)).await?;
                if !is_controlled_by(&job.metadata, uid_of(cron)) || is_active(cron, uid_of(&job)) {
                    return Ok(());
                }
                job
            }
            Err(error) => {
                let terminating = crate::writes::is_terminating(&error);
                let error = Error::from(error);
                if !terminating {
                    let message = format!("Error creating job: {error}");
                    self.event(cron, EventType::Warning, "FailedCreate", &message);
                }
                return Err(error);
            }
        };
        let status = cron.status.get_or_insert_default();
        status.active.get_or_insert_default().push(reference(&job));
        status.last_schedule_time = Some(Time(time));
        Ok(())
    }

    fn event(&self, about: &CronJob, kind: EventType, reason: &str, message: &str) {
        self.recorder.event(reference(about), kind, reason, message);
    }
}

fn active(cron: &CronJob) -> Vec<ObjectReference> {
    cron.status.as_ref().and_then(|status| status.active.clone()).unwrap_or_default()
}

fn is_active(cron: &CronJob, uid: &str) -> bool {
    active(cron).iter().any(|job| job.uid.as_deref() == Some(uid))
}

fn forget(cron: &mut CronJob, uid: &str) {
    let status = cron.status.get_or_insert_default();
    let Some(active) = &mut status.active else { return };
    active.retain(|job| job.uid.as_deref() != Some(uid));
    if active.is_empty() {
        status.active = None;
    }
}

/// The condition with which a Job has finished.
fn finished_as(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter().filter(|condition| condition.status == "True");
    let finished = conditions.find(|it| it.type_ == "Complete" || it.type_ == "Failed")?;
    Some(&finished.type_)
}

/// The name of the Job of that time, by which it is created once.
fn job_name(cron: &CronJob, time: Timestamp) -> String {
    format!("{}-{}", name_of(cron), time.as_second().div_euclid(60))
}

fn new_job(cron: &CronJob, name: &str, time: Timestamp, zone: &TimeZone) -> Job {
    let template = cron.spec.job_template.clone();
    let from = template.metadata.unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    let zone = if cron.spec.time_zone.is_some() { zone.clone() } else { TimeZone::UTC };
    annotations.insert(SCHEDULED.to_owned(), plan::annotated(time, zone));
    Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cron.metadata.namespace.clone(),
            labels: from.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
