//! Job.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, human, name, since, string, wide};
use super::workload::{self, child, count, ratio};
use super::{Kind, Strategy, validate as rules, warnings};
use crate::api_types::{Resource, grouped, status_of};
use crate::object;
use crate::schema::names;
use crate::schema::value::{
    default, default_absent, is_zero, items, items_mut, map_mut, same, text,
};
use crate::schema::{Causes, Path};

const BACKOFF_LIMIT: i64 = 6;
const MAX_INDEXED: i64 = 100_000;
/// The longest `managedBy`.
const MAX_MANAGER: usize = 63;
const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const OLD_UID_LABEL: &str = "controller-uid";
const NAME_LABELS: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        string("Status"),
        string("Completions"),
        string("Duration"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        categories: &["all"],
        subresources: &[status_of("batch", "Job")],
        counts_generation: true,
        fields: Some(&[("status.successful", "status.succeeded")]),
        ..grouped("batch", "jobs", "job", "Job")
    },
    strategy: Strategy {
        default: |job| {
            if let Some(spec) = map_mut(job, "spec") {
                default_spec(spec);
            }
        },
        prepare_create: |job| drop(job.insert("status".into(), json!({}))),
        identified: generate_selector,
        validate,
        validate_status,
        printer: &PRINTER,
        orphans_by_default: true,
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};

/// Defaults of a job's spec, or of the template of one.
pub(super) fn default_spec(spec: &mut Map<String, Value>) {
    workload::default_template(spec);
    if spec.get("completions").is_none_or(Value::is_null)
        && spec.get("parallelism").is_none_or(Value::is_null)
    {
        spec.insert("completions".into(), 1.into());
    }
    default_absent(spec, "parallelism", 1);
    let per_index = spec.get("backoffLimitPerIndex").is_some_and(|limit| !limit.is_null());
    let limit = if per_index { i64::from(i32::MAX) } else { BACKOFF_LIMIT };
    default_absent(spec, "backoffLimit", limit);
    default_absent(spec, "completionMode", "NonIndexed");
    default_absent(spec, "suspend", false);
    let has_policy = spec.get("podFailurePolicy").is_some_and(|policy| !policy.is_null());
    let replacement = if has_policy { "Failed" } else { "TerminatingOrFailed" };
    default_absent(spec, "podReplacementPolicy", replacement);
    default_absent(spec, "manualSelector", false);
    let Some(policy) = map_mut(spec, "podFailurePolicy") else { return };
    for rule in items_mut(policy.get_mut("rules")) {
        for pattern in items_mut(rule.get_mut("onPodConditions")) {
            default(pattern, "status", "True");
        }
    }
}

/// The selector of a job is its own UID, unless it is chosen by hand.
fn generate_selector(job: &mut Map<String, Value>) {
    let metadata = job.get("metadata").unwrap_or(&Value::Null);
    let (uid, name) = (metadata["uid"].clone(), metadata["name"].clone());
    let Some(spec) = map_mut(job, "spec") else { return };
    let mut labels = None;
    let is_manual = spec.get("manualSelector") == Some(&Value::Bool(true));
    if let Some(own) = child(spec, "template")
        .and_then(|template| child(template, "metadata"))
        .and_then(|metadata| child(metadata, "labels"))
    {
        if !is_manual {
            for label in NAME_LABELS {
                own.entry(label).or_insert_with(|| name.clone());
            }
            for label in [UID_LABEL, OLD_UID_LABEL] {
                own.entry(label).or_insert_with(|| uid.clone());
            }
        }
        labels = Some(own.clone()).filter(|labels| !labels.is_empty());
    }
    if !is_manual
        && let Some(own) =
            child(spec, "selector").and_then(|selector| child(selector, "matchLabels"))
    {
        own.entry(UID_LABEL).or_insert(uid);
    }
    if let (Some(labels), Some(metadata)) = (labels, map_mut(job, "metadata"))
        && metadata.get("labels").is_none_or(is_zero)
    {
        metadata.insert("labels".into(), labels.into());
    }
}

fn validate(job: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &job["spec"];
    let path = Path::root("spec");
    generated_selector(job, causes);
    validate_spec(&path, spec, causes);
    if spec["selector"].is_null() {
        causes.required(&path.child("selector"), "");
    }
    rules::selector(&path.child("selector"), &spec["selector"], causes);
    workload::matching(&path.child("template"), spec, &spec["template"], causes);
    indexed_name(job, causes);
    if let Some(old) = old {
        update(&path, spec, old, causes);
    }
}

fn generated_selector(job: &Value, causes: &mut Causes) {
    let spec = &job["spec"];
    if spec["manualSelector"] == true || spec["selector"].is_null() {
        return;
    }
    let path = Path::root("spec");
    let template = path.child("template");
    let metadata = template.child("metadata");
    let list = metadata.child("labels");
    let labels = &spec["template"]["metadata"]["labels"];
    let (uid, name) = (object::uid(job), object::name(job));
    let expected =
        [(OLD_UID_LABEL, uid), (NAME_LABELS[1], name), (UID_LABEL, uid), (NAME_LABELS[0], name)];
    for (label, value) in expected {
        match labels[label].as_str() {
            // without a name there is no label of the name to ask for, and its absence is said already
            None if value.is_empty() => {}
            None => causes.required(&list.key(label), &format!("must be '{value}'")),
            Some(given) if given != value => {
                causes.invalid(&list.key(label), labels, format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let selector = &spec["selector"];
    let own: Map<String, Value> =
        expected.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    let own = json!({"metadata": {"labels": own}});
    let parsed = crate::selector::LabelSelector::of(selector);
    if parsed.is_ok_and(|selector| !selector.matches(&own)) {
        causes.invalid(&path.child("selector"), selector, "`selector` not auto-generated");
    }
}

/// Names of pods of an indexed job end with their index.
fn indexed_name(job: &Value, causes: &mut Causes) {
    let spec = &job["spec"];
    let completions = count(&spec["completions"]);
    if spec["completionMode"] != "Indexed" || completions <= 0 {
        return;
    }
    let longest = format!("{}-{}", object::name(job), completions.saturating_sub(1));
    if !names::dns_label(&longest).is_empty() {
        let path = Path::root("metadata");
        let detail = format!("will not able to create pod with invalid DNS label: {longest}");
        causes.invalid(&path.child("name"), object::name(job), detail);
    }
}

/// Rules of a job's spec, or of the template of one.
pub(super) fn validate_spec(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        rules::non_negative(&path.child(field), &spec[field], causes);
    }
    if !spec["maxFailedIndexes"].is_null() && spec["backoffLimitPerIndex"].is_null() {
        let path = path.child("backoffLimitPerIndex");
        causes.required(&path, "when maxFailedIndexes is specified");
    }
    completion_mode(path, spec, causes);
    failure_policy(&path.child("podFailurePolicy"), spec, causes);
    success_policy(&path.child("successPolicy"), spec, causes);
    let replacement = path.child("podReplacementPolicy");
    match (text(&spec["podReplacementPolicy"]), spec["podFailurePolicy"].is_null()) {
        _ if spec["podReplacementPolicy"].is_null() => {}
        ("Failed", _) | ("TerminatingOrFailed", true) => {}
        (other, false) => causes.not_supported(&replacement, other, &["Failed"]),
        (other, true) => {
            causes.not_supported(&replacement, other, &["Failed", "TerminatingOrFailed"]);
        }
    }
    if !spec["managedBy"].is_null() {
        let manager = text(&spec["managedBy"]);
        let field = path.child("managedBy");
        rules::domain_prefixed_path(&field, manager, causes);
        if manager.len() > MAX_MANAGER {
            causes.too_long(&field, MAX_MANAGER);
        }
    }
    let template = path.child("template");
    rules::pod::template(&template, &spec["template"], causes);
    let pod = template.child("spec");
    let restart = pod.child("restartPolicy");
    match text(&spec["template"]["spec"]["restartPolicy"]) {
        "" | "Always" => causes.required(&restart, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if spec["podFailurePolicy"].is_null() => {}
        "OnFailure" => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            causes.invalid(&restart, "OnFailure", detail);
        }
        other => causes.not_supported(&restart, other, &["OnFailure", "Never"]),
    }
}

fn completion_mode(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let mode = &spec["completionMode"];
    match text(mode) {
        "Indexed" => {
            if spec["completions"].is_null() {
                causes.required(&path.child("completions"), "when completion mode is Indexed");
            }
            let parallelism = count(&spec["parallelism"]);
            if parallelism > MAX_INDEXED {
                let detail = "must be less than or equal to 100000 when completion mode is Indexed";
                causes.invalid(&path.child("parallelism"), &parallelism, detail);
            }
            let (failed, completions) =
                (spec["maxFailedIndexes"].as_i64(), spec["completions"].as_i64());
            if let (Some(failed), Some(completions)) = (failed, completions)
                && failed > completions
            {
                let detail = "must be less than or equal to completions";
                causes.invalid(&path.child("maxFailedIndexes"), &failed, detail);
            }
            if let Some(failed) = failed.filter(|failed| *failed > MAX_INDEXED) {
                let detail = format!("must be less than or equal to {MAX_INDEXED}");
                causes.invalid(&path.child("maxFailedIndexes"), &failed, detail);
            }
            if count(&spec["completions"]) > MAX_INDEXED && !spec["backoffLimitPerIndex"].is_null()
            {
                many_indexes(path, spec, causes);
            }
        }
        other if mode.is_null() || other == "NonIndexed" => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if !spec[field].is_null() {
                    let detail = "requires indexed completion mode";
                    causes.invalid(&path.child(field), &spec[field], detail);
                }
            }
        }
        other => {
            let path = path.child("completionMode");
            causes.not_supported(&path, other, &["NonIndexed", "Indexed"]);
        }
    }
}

/// What holds for a job of many indexes of which each has its own failures.
fn many_indexes(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    const MOST: i64 = 10_000;
    if spec["maxFailedIndexes"].is_null() {
        let detail = format!("must be specified when completions is above {MAX_INDEXED}");
        causes.required(&path.child("maxFailedIndexes"), &detail);
    }
    for field in ["parallelism", "maxFailedIndexes"] {
        if let Some(number) = spec[field].as_i64().filter(|number| *number > MOST) {
            let detail = format!(
                "must be less than or equal to {MOST} when completions are above {MAX_INDEXED} and \
                 used with backoff limit per index"
            );
            causes.invalid(&path.child(field), &number, detail);
        }
    }
}

fn failure_policy(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
    let rules_path = path.child("rules");
    let template = &spec["template"]["spec"];
    let is_container = |name: &str| {
        let lists = ["containers", "initContainers"];
        lists.iter().any(|list| items(&template[*list]).iter().any(|c| c["name"] == name))
    };
    for (i, rule) in items(&spec["podFailurePolicy"]["rules"]).iter().enumerate() {
        let path = rules_path.index(i);
        match text(&rule["action"]) {
            "" => {
                let detail = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
                causes.required(&path.child("action"), detail);
            }
            "FailIndex" if spec["backoffLimitPerIndex"].is_null() => {
                let detail = "requires the backoffLimitPerIndex to be set";
                causes.invalid(&path.child("action"), "FailIndex", detail);
            }
            action if !ACTIONS.contains(&action) => {
                causes.not_supported(&path.child("action"), action, &ACTIONS);
            }
            _ => {}
        }
        let (codes, conditions) = (&rule["onExitCodes"], items(&rule["onPodConditions"]));
        match (codes.is_null(), conditions.is_empty()) {
            (false, false) => causes.invalid(
                &path,
                &Value::Null,
                "specifying both OnExitCodes and OnPodConditions is not supported",
            ),
            (true, true) => causes.invalid_whole(
                &path,
                "specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (false, true) => exit_codes(&path.child("onExitCodes"), codes, is_container, causes),
            (true, false) => pod_conditions(&path.child("onPodConditions"), conditions, causes),
        }
    }
}

fn pod_conditions(list: &Path<'_>, conditions: &[Value], causes: &mut Causes) {
    const MAX: usize = 20;
    if conditions.len() > MAX {
        causes.too_many(list, conditions.len(), MAX);
    }
    for (i, condition) in conditions.iter().enumerate() {
        let path = list.index(i);
        let kind = text(&condition["type"]);
        causes.each(&path.child("type"), kind, names::qualified(kind));
        let statuses = ["False", "True", "Unknown"];
        match text(&condition["status"]) {
            "" => {
                let why = "valid values: [\"False\" \"True\" \"Unknown\"]";
                causes.required(&path.child("status"), why);
            }
            _ => rules::supported(&path.child("status"), &condition["status"], &statuses, causes),
        }
    }
}

fn exit_codes(
    path: &Path<'_>,
    codes: &Value,
    is_container: impl Fn(&str) -> bool,
    causes: &mut Causes,
) {
    let operator = text(&codes["operator"]);
    match operator {
        "" => causes.required(&path.child("operator"), "valid values: [\"In\" \"NotIn\"]"),
        "In" | "NotIn" => {}
        other => causes.not_supported(&path.child("operator"), other, &["In", "NotIn"]),
    }
    if let Some(name) = codes["containerName"].as_str().filter(|name| !is_container(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        causes.invalid(&path.child("containerName"), name, detail);
    }
    let list = path.child("values");
    let values: Vec<i64> = items(&codes["values"]).iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        causes.invalid(&list, &codes["values"], "at least one value is required");
    }
    for (i, value) in values.iter().enumerate() {
        if operator == "In" && *value == 0 {
            causes.invalid(&list.index(i), value, "must not be 0 for the In operator");
        }
        if values[..i].contains(value) {
            causes.duplicate(&list.index(i), &Value::from(*value), "");
        }
    }
    if !values.is_sorted() {
        causes.invalid(&list, &codes["values"], "must be ordered");
    }
}

/// A success policy as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SuccessPolicy<'a> {
    rules: Vec<SuccessRule<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SuccessRule<'a> {
    succeeded_indexes: &'a Value,
    succeeded_count: &'a Value,
}

impl SuccessRule<'_> {
    fn of(rule: &Value) -> SuccessRule<'_> {
        SuccessRule {
            succeeded_indexes: &rule["succeededIndexes"],
            succeeded_count: &rule["succeededCount"],
        }
    }
}

fn success_policy(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let policy = &spec["successPolicy"];
    if policy.is_null() {
        return;
    }
    if spec["completionMode"] != "Indexed" {
        let rules: Vec<SuccessRule<'_>> =
            items(&policy["rules"]).iter().map(SuccessRule::of).collect();
        let shown = SuccessPolicy { rules };
        return causes.invalid(path, &shown, "requires indexed completion mode");
    }
    let list = path.child("rules");
    let all = items(&policy["rules"]);
    if all.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        causes.required(&list, detail);
    }
    for (i, rule) in all.iter().enumerate() {
        if rule["succeededCount"].is_null() && rule["succeededIndexes"].is_null() {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            causes.required(&list.index(i), detail);
        }
        // A job of unknown size has been refused already.
        if let Some(completions) = spec["completions"].as_i64() {
            success_rule(&list.index(i), rule, completions, causes);
        }
    }
}

fn success_rule(path: &Path<'_>, rule: &Value, completions: i64, causes: &mut Causes) {
    const MAX_TEXT: usize = 64 * 1024;
    let indexes = rule["succeededIndexes"].as_str();
    let mut selected = 0;
    if let Some(text) = indexes {
        let field = path.child("succeededIndexes");
        if text.len() > MAX_TEXT {
            causes.too_long(&field, MAX_TEXT);
        }
        match count_indexes(text, completions) {
            Ok(count) => selected = count,
            Err(why) => {
                causes.invalid(&field, text, format!("error parsing succeededIndexes: {why}"));
            }
        }
    }
    let Some(wanted) = rule["succeededCount"].as_i64() else { return };
    let field = path.child("succeededCount");
    rules::non_negative(&field, &rule["succeededCount"], causes);
    if wanted > completions {
        let why = format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        );
        causes.invalid(&field, &wanted, why);
    }
    if indexes.is_some() && wanted > selected {
        let why = format!(
            "must be less than or equal to {selected} (the number of indexes in the specified \
             succeededIndexes field)"
        );
        causes.invalid(&field, &wanted, why);
    }
}

/// How many indexes a text such as `0,2-4` names, each below `completions`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut last, mut total) = (None::<i64>, 0_i64);
    for interval in text.split(',') {
        let parts: Vec<&str> = interval.split('-').collect();
        let (first, end) = match parts.as_slice() {
            [one] => (*one, *one),
            [first, end] => (*first, *end),
            _ => {
                return Err(format!(
                    "the fragment {interval:?} violates the requirement that an index interval \
                     can have at most two parts separated by '-'"
                ));
            }
        };
        let number = |text: &str| {
            let number = text.parse::<i32>().map(i64::from);
            let number = number
                .map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
            match number < completions {
                true => Ok(number),
                false => Err(format!("too large index: {text:?}")),
            }
        };
        let (from, to) = (number(first)?, number(end)?);
        if parts.len() == 2 && from >= to {
            return Err(format!("non-increasing order, previous: {from}, current: {to}"));
        }
        if let Some(last) = last.filter(|last| *last >= from) {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        total = total.saturating_add(to.saturating_sub(from)).saturating_add(1);
        last = Some(to);
    }
    Ok(total)
}

fn update(path: &Path<'_>, spec: &Value, old: &Value, causes: &mut Causes) {
    let was = &old["spec"];
    let is_elastic = spec["completionMode"] == "Indexed"
        && spec["completions"] == spec["parallelism"]
        && was["completions"] == was["parallelism"];
    if !is_elastic {
        let (new, old) = (&spec["completions"], &was["completions"]);
        rules::immutable(&path.child("completions"), new, old, causes);
    }
    rules::immutable(&path.child("selector"), &spec["selector"], &was["selector"], causes);
    let (template, new) = (path.child("template"), &spec["template"]);
    if is_template_mutable(old) {
        let mutable = mutable_spec(&new["spec"], &was["template"]["spec"]);
        rules::immutable(&template.child("spec"), &new["spec"], &mutable, causes);
    } else {
        rules::immutable(&template, new, &was["template"], causes);
    }
    for field in
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        rules::immutable(&path.child(field), &spec[field], &was[field], causes);
    }
}

/// Whether the job is suspended, has no pods, and has not begun or has been seen as suspended: its
/// next pods may be made otherwise (upstream's `MutablePodResourcesForSuspendedJobs` and
/// `MutableSchedulingDirectivesForSuspendedJobs`).
fn is_template_mutable(job: &Value) -> bool {
    let status = &job["status"];
    job["spec"]["suspend"] == true
        && (status["startTime"].is_null() || has_condition(job, "Suspended"))
        && count(&status["active"]) == 0
}

/// The stored spec of the pods, with what may change of it.
fn mutable_spec(new: &Value, stored: &Value) -> Value {
    let fields = ["nodeSelector", "tolerations", "schedulingGates"];
    let mut pod = workload::with_fields(stored, new, &fields);
    let affinity = workload::with_fields(
        &match pod["affinity"].is_null() {
            true => json!({}),
            false => pod["affinity"].clone(),
        },
        &new["affinity"],
        &["nodeAffinity"],
    );
    match same(&affinity, &json!({})) && new["affinity"].is_null() {
        true => drop(pod.as_object_mut().and_then(|pod| pod.remove("affinity"))),
        false => pod["affinity"] = affinity,
    }
    for list in ["containers", "initContainers"] {
        if let Some(stored) = pod.get_mut(list).and_then(Value::as_array_mut) {
            take_resources(items(&new[list]), stored);
        }
    }
    pod
}

/// Takes over the resources of containers that are the same by place and name.
fn take_resources(new: &[Value], stored: &mut [Value]) {
    if new.len() != stored.len() {
        return;
    }
    for (new, stored) in new.iter().zip(stored) {
        if new["name"] == stored["name"] {
            *stored = workload::with_fields(stored, new, &["resources"]);
        }
    }
}

fn has_condition(job: &Value, kind: &str) -> bool {
    let conditions = items(&job["status"]["conditions"]);
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn validate_status(job: &Value, old: &Value, causes: &mut Causes) {
    let status = &job["status"];
    workload::counts(
        status,
        &["active", "succeeded", "failed", "ready", "terminating"],
        (&[], ""),
        causes,
    );
    let path = Path::root("status");
    let conditions = path.child("conditions");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if has_condition(old, kind) && !has_condition(job, kind) {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            causes.invalid(&conditions, &Value::Null, detail);
        }
    }
    if has_condition(job, "Complete") && has_condition(job, "Failed") {
        let detail = "cannot set Complete=True and Failed=true conditions";
        causes.invalid(&conditions, &Value::Null, detail);
    }
    for (field, detail) in [
        ("failed", "cannot decrease the failed counter"),
        ("succeeded", "cannot decrease the succeeded counter"),
    ] {
        if count(&status[field]) < count(&old["status"][field]) {
            causes.invalid(&path.child(field), &count(&status[field]), detail);
        }
    }
}

fn cells(job: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&job["spec"], &job["status"]);
    let succeeded = count(&status["succeeded"]);
    let completions = match (spec["completions"].as_i64(), count(&spec["parallelism"])) {
        (Some(completions), _) => ratio(succeeded, completions),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}").into(),
        (None, _) => ratio(succeeded, 1),
    };
    let time = |value: &Value| text(value).parse::<Timestamp>().ok();
    let duration = match (time(&status["startTime"]), time(&status["completionTime"])) {
        (None, _) => String::new(),
        (Some(_), None) => since(&status["startTime"], now),
        (Some(start), Some(end)) => human(end.as_second().saturating_sub(start.as_second())),
    };
    let [names, images] = workload::containers(&spec["template"]);
    vec![
        name(job),
        state(job).into(),
        completions,
        duration.into(),
        age(job, now),
        names,
        images,
        workload::selector_cell(&spec["selector"]),
    ]
}

fn state(job: &Value) -> &'static str {
    match () {
        () if has_condition(job, "Complete") => "Complete",
        () if has_condition(job, "Failed") => "Failed",
        () if object::is_deleting(job) => "Terminating",
        () if has_condition(job, "Suspended") => "Suspended",
        () if has_condition(job, "FailureTarget") => "FailureTarget",
        () if has_condition(job, "SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}
