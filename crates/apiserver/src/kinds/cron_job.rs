//! CronJob.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::printers::{self, AGE, Column, NAME, Printer, age, integer, name, since, string, wide};
use super::workload::{self};
use super::{Kind, Strategy, job, validate as rules, warnings};
use crate::api_types::{Resource, grouped, status_of};
use crate::object;
use crate::schema::value::{default, default_absent, items, map_mut, text};
use crate::schema::{Causes, Path};

/// Names of jobs end with the time of their run.
const MAX_NAME: usize = 52;

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        string("Schedule"),
        string("Timezone"),
        Column("Suspend", "boolean", "", 0),
        integer("Active"),
        string("Last Schedule"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["cj"],
        categories: &["all"],
        subresources: &[status_of("batch", "CronJob")],
        counts_generation: true,
        ..grouped("batch", "cronjobs", "cronjob", "CronJob")
    },
    strategy: Strategy {
        default: defaults,
        prepare_create: |cron| drop(cron.insert("status".into(), json!({}))),
        validate,
        printer: &PRINTER,
        warnings: warnings::job_template,
        ..Strategy::PLAIN
    },
};

fn defaults(cron: &mut Map<String, Value>) {
    let Some(spec) = map_mut(cron, "spec") else { return };
    default(spec, "concurrencyPolicy", "Allow");
    default_absent(spec, "suspend", false);
    default_absent(spec, "successfulJobsHistoryLimit", 3);
    default_absent(spec, "failedJobsHistoryLimit", 1);
    // The job's own defaults are the job's to get.
    if let Some(job) = map_mut(spec, "jobTemplate").and_then(|job| map_mut(job, "spec")) {
        workload::default_template(job);
    }
}

fn validate(cron: &Value, old: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&cron["spec"], Path::root("spec"));
    let schedule = text(&spec["schedule"]);
    let schedule_path = path.child("schedule");
    if schedule.is_empty() {
        causes.required(&schedule_path, "");
    } else {
        let had_zone = old.is_some_and(|old| text(&old["spec"]["schedule"]) == schedule);
        if let Err(why) = check_schedule(schedule) {
            causes.invalid(&schedule_path, schedule, why);
        } else if schedule.contains("TZ") && !had_zone {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            causes.invalid(&schedule_path, schedule, detail);
        }
    }
    rules::non_negative(
        &path.child("startingDeadlineSeconds"),
        &spec["startingDeadlineSeconds"],
        causes,
    );
    if let Some(zone) = spec["timeZone"].as_str() {
        let same_zone = old.is_some_and(|old| old["spec"]["timeZone"] == zone);
        let is_local = zone.eq_ignore_ascii_case("local");
        let path = path.child("timeZone");
        match () {
            () if same_zone => {}
            () if zone.is_empty() => {
                causes.invalid(&path, zone, "timeZone must be nil or non-empty string");
            }
            () if is_local => {
                causes.invalid(
                    &path,
                    zone,
                    "timeZone must be an explicit time zone as defined in \
                     https://www.iana.org/time-zones",
                );
            }
            () if jiff::tz::TimeZone::get(zone).is_err() => {
                causes.invalid(&path, zone, format!("unknown time zone {zone}"));
            }
            () => {}
        }
    }
    rules::one_of(
        &path.child("concurrencyPolicy"),
        &spec["concurrencyPolicy"],
        &["Allow", "Forbid", "Replace"],
        causes,
    );
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        rules::non_negative(&path.child(field), &spec[field], causes);
    }
    let template = path.child("jobTemplate");
    let job_path = template.child("spec");
    let job_spec = &spec["jobTemplate"]["spec"];
    if !job_spec["selector"].is_null() {
        let detail = "`selector` will be auto-generated";
        causes.invalid(&job_path.child("selector"), &job_spec["selector"], detail);
    }
    if job_spec["manualSelector"] == true {
        let path = job_path.child("manualSelector");
        causes.not_supported(&path, "true", &["nil", "false"]);
    }
    job::validate_spec(&job_path, job_spec, causes);
    if old.is_none() && object::name(cron).len() > MAX_NAME {
        let metadata = Path::root("metadata");
        let detail = format!("must be no more than {MAX_NAME} characters");
        causes.invalid(&metadata.child("name"), object::name(cron), detail);
    }
}

/// The standard form of five fields, or a name such as `@hourly`.
fn check_schedule(schedule: &str) -> Result<(), String> {
    let zone = ["TZ=", "CRON_TZ="].iter().any(|prefix| schedule.starts_with(prefix));
    let schedule = match zone {
        true => schedule.split_once(' ').map_or("", |(_, rest)| rest.trim()),
        false => schedule,
    };
    if let Some(name) = schedule.strip_prefix('@') {
        return match name {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => {
                Ok(())
            }
            name if name.starts_with("every ") => Ok(()),
            _ => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let bounds: [(u32, u32, &[&str]); 5] =
        [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &DAYS)];
    for (field, (low, high, names)) in fields.iter().zip(bounds) {
        for part in field.split(',') {
            check_part(part, low, high, names)?;
        }
    }
    Ok(())
}

fn check_part(part: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |text: &str| -> Result<u32, String> {
        let by_name = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        match by_name.and_then(|at| u32::try_from(at).ok()) {
            Some(at) => Ok(at.saturating_add(low)),
            None => text.parse().map_err(|_| format!("failed to parse int from {text}")),
        }
    };
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    let (start, end) = match range {
        "*" | "?" => (low, high),
        range => match range.split_once('-') {
            Some((start, end)) => (number(start)?, number(end)?),
            None => (number(range)?, number(range)?),
        },
    };
    match () {
        () if start < low => {
            Err(format!("beginning of range ({start}) below minimum ({low}): {part}"))
        }
        () if end > high => Err(format!("end of range ({end}) above maximum ({high}): {part}")),
        () if start > end => {
            Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"))
        }
        () => match step {
            Some(step) if number(step)? == 0 => {
                Err(format!("step of range should be a positive number: {part}"))
            }
            _ => Ok(()),
        },
    }
}

fn cells(cron: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&cron["spec"], &cron["status"]);
    let job = &spec["jobTemplate"]["spec"];
    let last = match status["lastScheduleTime"].is_null() {
        true => "<none>".to_owned(),
        false => since(&status["lastScheduleTime"], now),
    };
    let suspend = match spec["suspend"].as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let [names, images] = workload::containers(&job["template"]);
    vec![
        name(cron),
        text(&spec["schedule"]).into(),
        printers::or(text(&spec["timeZone"]), "<none>"),
        suspend.into(),
        items(&status["active"]).len().into(),
        last.into(),
        age(cron, now),
        names,
        images,
        workload::selector_cell(&job["selector"]),
    ]
}
