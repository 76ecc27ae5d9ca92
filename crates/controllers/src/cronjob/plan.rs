//! When a CronJob starts its next Job.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::CronJob;

use super::schedule::Schedule;

/// A little later than scheduled, so that the time is over then.
const DELTA: Duration = Duration::from_millis(100);
/// With more missed times than this a warning is due.
const MANY: i64 = 100;

/// The zone of a CronJob's schedule: its own, or that of the controllers.
///
/// # Errors
/// The name of a zone that is not known.
pub(super) fn zone_of(job: &CronJob) -> Result<TimeZone, &str> {
    match job.spec.time_zone.as_deref() {
        None => Ok(TimeZone::system()),
        Some(name) => TimeZone::get(name).map_err(|_| name),
    }
}

/// A time in the annotation of a Job, as RFC 3339 has it: what has no offset ends in `Z`.
pub(super) fn annotated(time: Timestamp, zone: TimeZone) -> String {
    let time = time.to_zoned(zone);
    let format =
        if time.offset().seconds() == 0 { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    time.strftime(format).to_string()
}

/// The times that a CronJob has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// From when on.
    earliest: Timestamp,
    /// The latest.
    pub(super) latest: Option<Timestamp>,
    /// How many there are; none may still have a latest one, which is the first.
    count: i64,
}

impl Missed {
    /// Whether a warning is due.
    pub(super) fn are_many(&self) -> bool {
        self.count > MANY
    }

    /// The times until now, since the last Job or, if `by_deadline`, the starting deadline. `None`:
    /// the schedule has no times.
    pub(super) fn of(
        job: &CronJob,
        schedule: &Schedule,
        now: Timestamp,
        by_deadline: bool,
    ) -> Option<Self> {
        let created = job.metadata.creation_timestamp.as_ref();
        let last = job.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
        let mut earliest = last.or(created).map_or(now, |time| time.0);
        let deadline = job.spec.starting_deadline_seconds;
        if let Some(seconds) = deadline.filter(|_| by_deadline) {
            let deadline = now.checked_sub(SignedDuration::from_secs(seconds)).ok();
            earliest = deadline.map_or(earliest, |deadline| deadline.max(earliest));
        }
        let none = Self { earliest, latest: None, count: 0 };
        let first = schedule.next(earliest)?;
        if now < first {
            return Some(none);
        }
        let second = schedule.next(first);
        let Some(second) = second.filter(|second| *second <= now) else {
            return Some(Self { latest: Some(first), ..none });
        };
        let period = second.duration_since(first).as_secs().max(1);
        let count = now.duration_since(first).as_secs().checked_div(period)?.saturating_add(1);
        // most of the way is skipped, as if all times were equally far apart
        let skipped = count.saturating_sub(2).saturating_mul(period);
        let mut latest = None;
        let mut time = first.checked_add(SignedDuration::from_secs(skipped)).ok()?;
        while let Some(next) = schedule.next(time).filter(|next| *next <= now) {
            latest = Some(next);
            time = next;
        }
        Some(Self { latest, count, ..none })
    }
}

/// The time until the CronJob is to be looked at again; nothing if the schedule has no more times.
pub(super) fn next_check(job: &CronJob, schedule: &Schedule, now: Timestamp) -> Option<Duration> {
    let missed = Missed::of(job, schedule, now, false)?;
    let from = missed.latest.unwrap_or(if missed.count == 0 { missed.earliest } else { now });
    let wait = schedule.next(from)?.duration_since(now);
    Some(Duration::try_from(wait).unwrap_or_default().saturating_add(DELTA))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::*;

    fn missed(deadline: Option<i64>, last: Value, now: &str) -> (Option<String>, bool) {
        let job: CronJob = serde_json::from_value(json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"schedule": "", "jobTemplate": {}, "startingDeadlineSeconds": deadline},
            "status": {"lastScheduleTime": last},
        }))
        .unwrap();
        let schedule = Schedule::parse("0 * * * *", TimeZone::UTC).unwrap();
        let missed = Missed::of(&job, &schedule, now.parse().unwrap(), true).unwrap();
        (missed.latest.map(|time| time.to_string()), missed.are_many())
    }

    #[test]
    fn cronjob_annotates_times_as_go_prints_them() {
        for (time, zone, expected) in [
            ("2026-01-01T05:00:00Z", "Etc/UTC", "2026-01-01T05:00:00Z"),
            ("2026-01-01T05:00:00Z", "Europe/London", "2026-01-01T05:00:00Z"),
            ("2026-07-01T05:00:00Z", "Europe/London", "2026-07-01T06:00:00+01:00"),
            ("2026-01-01T05:00:00Z", "America/New_York", "2026-01-01T00:00:00-05:00"),
        ] {
            let zone = TimeZone::get(zone).unwrap();
            assert_eq!(annotated(time.parse().unwrap(), zone), expected);
        }
    }

    #[test]
    fn cronjob_with_another_schedule_waits_for_its_next_time() {
        let job: CronJob = serde_json::from_value(json!({
            "metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"},
            "spec": {"schedule": "*/2 * * * *", "jobTemplate": {}},
        }))
        .unwrap();
        let schedule = Schedule::parse("*/2 * * * *", TimeZone::UTC).unwrap();
        let now = "2026-01-01T11:05:00Z".parse().unwrap();
        // 11:04 has passed under the new schedule
        assert_eq!(next_check(&job, &schedule, now), Some(Duration::from_millis(60_100)));
        let never = Schedule::parse("0 0 31 2 *", TimeZone::UTC).unwrap();
        assert_eq!(next_check(&job, &never, now), None);
        assert_eq!(Missed::of(&job, &never, now, true), None, "reported as an invalid schedule");
    }

    #[test]
    fn cronjob_of_an_unknown_zone_names_it() {
        let job = |zone: &str| -> CronJob {
            serde_json::from_value(json!({"metadata": {}, "spec":
                {"schedule": "", "jobTemplate": {}, "timeZone": zone}}))
            .unwrap()
        };
        assert_eq!(zone_of(&job("Nowhere/Land")).err(), Some("Nowhere/Land"));
        assert!(zone_of(&job("Europe/Berlin")).is_ok());
    }

    #[test]
    fn cronjob_finds_the_last_missed_time() {
        let at = |time: &str| Some(time.to_owned());
        for (deadline, last, now, expected) in [
            (None, Value::Null, "2026-01-01T00:59:59Z", (None, false)),
            (None, Value::Null, "2026-01-01T01:00:00Z", (at("2026-01-01T01:00:00Z"), false)),
            (None, Value::Null, "2026-01-01T05:10:00Z", (at("2026-01-01T05:00:00Z"), false)),
            (None, json!("2026-01-01T05:00:00Z"), "2026-01-01T05:10:00Z", (None, false)),
            (None, Value::Null, "2026-02-01T05:10:00Z", (at("2026-02-01T05:00:00Z"), true)),
            (Some(60), Value::Null, "2026-02-01T05:10:00Z", (None, false)),
            (Some(900), Value::Null, "2026-02-01T05:10:00Z", (at("2026-02-01T05:00:00Z"), false)),
        ] {
            assert_eq!(missed(deadline, last, now), expected, "{deadline:?} {now}");
        }
    }
}
