//! What the kinds that make pods share: defaults and rules of their templates and selectors, and the
//! cells of their tables.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{defaults, validate};
use crate::schema::value::{default_absent, is_zero, items, map_mut, same, text};
use crate::schema::{Causes, Path};
use crate::selector::LabelSelector;

/// How many old revisions are kept by default.
pub(super) const REVISIONS: i64 = 10;

/// Defaults of the pod template in a spec.
pub(super) fn default_template(spec: &mut Map<String, Value>) {
    if let Some(spec) = map_mut(spec, "template").and_then(|template| map_mut(template, "spec")) {
        defaults::pod::spec(spec);
    }
}

/// The map of that name, made where it is absent.
pub(super) fn child<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    map.entry(name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

/// Defaults of a spec with replicas and a template.
pub(super) fn default_replicas(object: &mut Map<String, Value>) {
    if let Some(spec) = map_mut(object, "spec") {
        default_absent(spec, "replicas", 1);
        default_template(spec);
    }
}

/// Rules of `spec.selector` and `spec.template` of a kind whose pods always restart. `what` is its
/// name in messages, `selects` the name of which an empty selector is invalid.
pub(super) fn selector_and_template(
    spec: &Value,
    template: &Value,
    (what, selects): (&str, &str),
    causes: &mut Causes,
) {
    let path = Path::root("spec");
    selector(&path, spec, selects, causes);
    let template_path = path.child("template");
    matching(&template_path, spec, template, causes);
    validate::pod::template(&template_path, template, causes);
    let pod = &template["spec"];
    let pod_path = template_path.child("spec");
    let policy = text(&pod["restartPolicy"]);
    if policy != "Always" {
        causes.not_supported(&pod_path.child("restartPolicy"), policy, &["Always"]);
    }
    if !pod["activeDeadlineSeconds"].is_null() {
        causes.forbidden(
            &pod_path.child("activeDeadlineSeconds"),
            format!("activeDeadlineSeconds in {what} is not Supported"),
        );
    }
}

/// A selector as Go writes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSelector<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    match_labels: &'a Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<ShownRequirement<'a>>,
}

#[derive(Serialize)]
struct ShownRequirement<'a> {
    key: &'a str,
    operator: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    values: &'a Value,
}

impl ShownSelector<'_> {
    fn of(selector: &Value) -> ShownSelector<'_> {
        let expressions = items(&selector["matchExpressions"]).iter();
        ShownSelector {
            match_labels: &selector["matchLabels"],
            match_expressions: expressions.map(ShownRequirement::of).collect(),
        }
    }
}

impl ShownRequirement<'_> {
    fn of(expression: &Value) -> ShownRequirement<'_> {
        ShownRequirement {
            key: text(&expression["key"]),
            operator: text(&expression["operator"]),
            values: &expression["values"],
        }
    }
}

/// A strategy of updates as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ShownStrategy<'a, R> {
    pub(super) r#type: &'a str,
    pub(super) rolling_update: Option<R>,
}

/// How many pods an update may take away and add.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ShownRolling {
    max_unavailable: Value,
    max_surge: Value,
}

impl ShownStrategy<'_, ShownRolling> {
    pub(super) fn of(strategy: &Value) -> ShownStrategy<'_, ShownRolling> {
        let rolling = &strategy["rollingUpdate"];
        let or_zero = |field: &str| rolling.get(field).cloned().unwrap_or_else(|| 0.into());
        ShownStrategy {
            r#type: text(&strategy["type"]),
            rolling_update: (!rolling.is_null()).then(|| ShownRolling {
                max_unavailable: or_zero("maxUnavailable"),
                max_surge: or_zero("maxSurge"),
            }),
        }
    }
}

fn selector(path: &Path<'_>, spec: &Value, selects: &str, causes: &mut Causes) {
    let path = path.child("selector");
    let selector = &spec["selector"];
    if selector.is_null() {
        // upstream says of a DaemonSet only that its template does not match
        if selects != "daemonset" {
            causes.required(&path, "");
        }
        return;
    }
    validate::selector(&path, selector, causes);
    match LabelSelector::of(selector) {
        Ok(parsed) if parsed.is_empty() => {
            causes.invalid(&path, selector, format!("empty selector is invalid for {selects}"));
        }
        // upstream leaves it at what is wrong in it
        Err(_) if selects == "daemonset" => {}
        Err(_) => {
            let why = if selects == "statefulset" { "" } else { "invalid label selector" };
            causes.invalid(&path, &ShownSelector::of(selector), why);
        }
        Ok(_) => {}
    }
}

/// The selector matches the labels of the template.
pub(super) fn matching(path: &Path<'_>, spec: &Value, template: &Value, causes: &mut Causes) {
    let selector = &spec["selector"];
    // none selects nothing
    let is_other = selector.is_null()
        || LabelSelector::of(selector).is_ok_and(|selector| !selector.matches(template));
    if is_other {
        causes.invalid(
            &path.child("metadata").child("labels"),
            &template["metadata"]["labels"],
            "`selector` does not match template `labels`",
        );
    }
}

/// These fields of `spec` are not below zero.
pub(super) fn non_negative(spec: &Value, fields: &[&str], causes: &mut Causes) {
    let path = Path::root("spec");
    for field in fields {
        validate::non_negative(&path.child(field), &spec[*field], causes);
    }
}

/// `spec.selector` is as it was.
pub(super) fn same_selector(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    if let Some(old) = old {
        let path = Path::root("spec");
        let (new, old) = (&object["spec"]["selector"], &old["spec"]["selector"]);
        validate::immutable(&path.child("selector"), new, old, causes);
    }
}

/// Counts in `status`: none is below zero, and those of `parts` are not above `whole`.
pub(super) fn counts(
    status: &Value,
    counts: &[&str],
    (parts, whole): (&[&str], &str),
    causes: &mut Causes,
) {
    let path = Path::root("status");
    for field in counts {
        validate::non_negative(&path.child(field), &status[*field], causes);
    }
    for field in parts {
        not_above(&path, status, field, whole, &format!("status.{whole}"), causes);
    }
}

/// One count in `status` is not above another.
pub(super) fn not_above(
    path: &Path<'_>,
    status: &Value,
    field: &str,
    limit: &str,
    name: &str,
    causes: &mut Causes,
) {
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    if count(field) > count(limit) {
        let detail = format!("cannot be greater than {name}");
        causes.invalid(&path.child(field), &count(field), detail);
    }
}

/// `status.collisionCount` only grows.
pub(super) fn collisions(object: &Value, old: &Value, causes: &mut Causes) {
    let count = |object: &Value| object["status"]["collisionCount"].as_i64();
    if let Some(had) = count(old)
        && count(object).is_none_or(|now| now < had)
    {
        let path = Path::root("status");
        let now = count(object).unwrap_or(0);
        causes.invalid(&path.child("collisionCount"), &now, "cannot be decremented");
    }
}

/// The percentage that a text like `25%` says.
fn percent(value: &Value) -> Option<i64> {
    let digits = value.as_str()?.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// A number or a percentage: what it says.
pub(super) fn amount(value: &Value) -> i64 {
    percent(value).or(value.as_i64()).unwrap_or(0)
}

/// A number or a percentage that is not below zero. With `capped` a percentage is at most 100.
pub(super) fn number_or_percent(path: &Path<'_>, value: &Value, capped: bool, causes: &mut Causes) {
    if value.is_string() && percent(value).is_none() {
        let detail = "a valid percent string must be a numeric string followed by an ending '%' \
                      (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
        causes.invalid(path, value, detail);
    }
    validate::non_negative(path, value, causes);
    if capped && percent(value).is_some_and(|percent| percent > 100) {
        causes.invalid(path, value, "must not be greater than 100%");
    }
}

/// The spec with one field of another's in place of its own.
pub(super) fn with_fields(spec: &Value, other: &Value, fields: &[&str]) -> Value {
    let mut spec = spec.clone();
    if let Some(map) = spec.as_object_mut() {
        for field in fields {
            super::prepare::restore(map, other, field);
        }
    }
    spec
}

/// Whether specs are the same but for these fields.
pub(super) fn same_but_for(new: &Value, old: &Value, fields: &[&str]) -> bool {
    same(&with_fields(new, old, fields), old)
}

/// The cells `Containers` and `Images` of a template.
pub(super) fn containers(template: &Value) -> [Value; 2] {
    let containers = items(&template["spec"]["containers"]);
    ["name", "image"].map(|field| {
        let all: Vec<&str> = containers.iter().map(|c| text(&c[field])).collect();
        all.join(",").into()
    })
}

/// The cell `Selector`.
pub(super) fn selector_cell(selector: &Value) -> Value {
    if selector.is_null() {
        return "<none>".into();
    }
    match LabelSelector::of(selector) {
        Ok(selector) if selector.is_empty() => "<none>".into(),
        Ok(selector) => selector.to_string().into(),
        Err(_) => "<error>".into(),
    }
}

/// A count of `status`, 0 where it is absent.
pub(super) fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// A part of a whole, such as `1/3`.
pub(super) fn ratio(part: impl Display, whole: impl Display) -> Value {
    format!("{part}/{whole}").into()
}
