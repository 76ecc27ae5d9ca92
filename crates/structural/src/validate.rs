//! Objects against the values that their schema allows.
//!
//! A value that an update leaves as it was may be wrong: the schema has become stricter since.

use serde_json::{Map, Number, Value};

use crate::error::{FieldError, Kind};
use crate::format;
use crate::lists::key;
use crate::schema::{Additional, ListKind, Schema};

/// The most broken rules that are found.
const MAX_ERRORS: usize = 200;

/// Checks an object, and with `old` only what an update of that changes.
#[must_use]
pub fn validate(object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    node(object, old, schema, "").errors
}

/// What is wrong, and how many rules were looked at: the more, the nearer the value is to what the
/// schema means.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    checks: usize,
}

impl Outcome {
    fn one(error: FieldError) -> Outcome {
        Outcome { errors: vec![error], checks: 0 }
    }

    fn add(&mut self, kind: Kind, path: &str, value: impl Into<Value>, detail: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::new(kind, path, value, detail));
        }
    }

    /// About the value, with its path at the start of what is said.
    fn body(&mut self, path: &str, value: impl Into<Value>, detail: &str) {
        self.add(Kind::Invalid, path, value, format!("{path} in body {detail}"));
    }

    /// About all of the object: such errors name no field.
    fn general(&mut self, detail: String) {
        self.add(Kind::Invalid, "<nil>", "", detail);
    }

    fn merge(&mut self, other: Outcome) {
        let remaining = MAX_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(other.errors.into_iter().take(remaining));
        self.checks = self.checks.saturating_add(other.checks);
    }

    fn counted(mut self, checks: usize) -> Outcome {
        self.checks = self.checks.saturating_add(checks);
        self
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

fn node(value: &Value, old: Option<&Value>, schema: &Schema, path: &str) -> Outcome {
    let found = strictly(value, old, schema, path);
    match !found.is_valid() && old == Some(value) {
        true => Outcome { errors: Vec::new(), checks: found.checks },
        false => found,
    }
}

fn strictly(value: &Value, old: Option<&Value>, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    if !schema.kind.is_empty() || schema.int_or_string || !schema.values.format.is_empty() {
        found.merge(of_type(value, schema, path).counted(1));
    }
    if value.is_null() {
        found.merge(one_of_values(value, schema, path));
        return found;
    }
    found.merge(junctors(value, schema, path).counted(2));
    match value {
        Value::String(text) => found.merge(of_text(text, schema, path).counted(2)),
        Value::Number(number) => found.merge(of_number(number, schema, path).counted(2)),
        Value::Array(list) => found.merge(of_list(list, old, schema, path).counted(2)),
        _ => {}
    }
    found.merge(one_of_values(value, schema, path).counted(1));
    if let Value::Object(map) = value {
        found.merge(of_map(map, old, schema, path).counted(1));
    }
    found.counted(1)
}

/// The name of the value's type.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn of_type(value: &Value, schema: &Schema, path: &str) -> Outcome {
    let kinds: &[&str] =
        if schema.int_or_string { &["integer", "string"] } else { &[schema.kind.as_str()] };
    let has = |kind: &str| kinds.contains(&kind);
    let mismatch = |given: &str| {
        let detail = format!("{path} in body must be of type {}: {given:?}", kinds.join(","));
        Outcome::one(FieldError::new(Kind::TypeInvalid, path, given, detail))
    };
    if value.is_null() {
        let is_wrong = !kinds.iter().all(|kind| kind.is_empty()) && !schema.nullable;
        return if is_wrong { mismatch("null") } else { Outcome::default() };
    }
    let given = type_of(value);
    let is_whole = given == "number"
        && value.as_f64().is_some_and(|number| number.fract() == 0.0)
        && has("integer");
    let is_number = given == "integer" && has("number");
    // A format stands for the type of a text where none is given.
    let has_format = !schema.values.format.is_empty();
    if has_format
        && !has("number")
        && !has("integer")
        && matches!(value, Value::String(_) | Value::Array(_))
        && (schema.kind.is_empty() || has(given))
    {
        return Outcome::default().counted(1);
    }
    if kinds.iter().all(|kind| kind.is_empty()) || has(given) || is_whole || is_number {
        return Outcome::default().counted(1);
    }
    mismatch(given)
}

fn junctors(value: &Value, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    let junctors = &schema.junctors;
    let each = |schemas: &[Schema]| -> Vec<Outcome> {
        schemas.iter().map(|schema| strictly(value, None, schema, path)).collect()
    };
    // The first of those that got furthest.
    let nearest = |outcomes: Vec<Outcome>| {
        outcomes.into_iter().reduce(|best, other| match other.checks > best.checks {
            true => other,
            false => best,
        })
    };
    if !junctors.any_of.is_empty() {
        let outcomes = each(&junctors.any_of);
        if !outcomes.iter().any(Outcome::is_valid) {
            found.general(format!("{path:?} must validate at least one schema (anyOf)"));
            found.merge(nearest(outcomes).unwrap_or_default());
        }
    }
    if !junctors.one_of.is_empty() {
        let outcomes = each(&junctors.one_of);
        let valid = outcomes.iter().filter(|outcome| outcome.is_valid()).count();
        if valid != 1 {
            let what = match valid {
                0 => "Found none valid".to_owned(),
                count => format!("Found {count} valid alternatives"),
            };
            found
                .general(format!("{path:?} must validate one and only one schema (oneOf). {what}"));
        }
        if valid == 0 {
            found.merge(nearest(outcomes).unwrap_or_default());
        }
    }
    if !junctors.all_of.is_empty() {
        let outcomes = each(&junctors.all_of);
        let valid = outcomes.iter().filter(|outcome| outcome.is_valid()).count();
        let count = outcomes.len();
        for outcome in outcomes {
            found.merge(outcome);
        }
        if valid != count {
            let what = if valid == 0 { ". None validated" } else { "" };
            found.general(format!("{path:?} must validate all the schemas (allOf){what}"));
        }
    }
    if let Some(not) = &junctors.not
        && strictly(value, None, not, path).is_valid()
    {
        found.general(format!("{path:?} must not validate the schema (not)"));
    }
    found
}

fn of_text(text: &str, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    let values = &schema.values;
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(most) = values.max_length.filter(|most| length > *most) {
        found.add(Kind::TooLong(most), path, "", "");
    }
    if let Some(least) = values.min_length.filter(|least| length < *least) {
        found.body(path, text, &format!("should be at least {least} chars long"));
    }
    if let Some(pattern) = &values.pattern {
        match &pattern.compiled {
            Ok(compiled) if compiled.is_match(text) => {}
            Ok(_) => found.body(path, text, &format!("should match '{}'", pattern.text)),
            Err(why) => {
                let pattern = &pattern.text;
                let detail = format!("should match '{pattern}, but pattern is invalid: {why}'");
                found.body(path, text, &detail);
            }
        }
    }
    let format = &values.format;
    let is_of_text = !matches!(schema.kind.as_str(), "integer" | "number");
    if is_of_text && !format.is_empty() && !format::is_valid(format, text) {
        let detail = format!("{path} in body must be of type {format}: {text:?}");
        found.add(Kind::TypeInvalid, path, text, detail);
    }
    found
}

fn of_number(number: &Number, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    let values = &schema.values;
    let given = number.as_f64().unwrap_or_default();
    if schema.kind == "integer"
        && values.format == "int32"
        && number.as_i64().is_none_or(|number| i32::try_from(number).is_err())
    {
        found.general(format!("Checked value must be of type integer with format int32 in {path}"));
    }
    if let Some(factor) = values.multiple_of {
        let times = given / factor;
        if factor <= 0.0 {
            let detail =
                format!("factor MultipleOf declared for {path} must be positive: {factor}");
            found.add(Kind::Invalid, path, factor, detail);
        } else if (times - times.round()).abs() > 1e-9 {
            found.body(path, number.clone(), &format!("should be a multiple of {factor}"));
        }
    }
    if let Some(most) = values.maximum {
        let excluded = values.exclusive_maximum;
        if given > most || excluded && given >= most {
            let than = if excluded { "less than" } else { "less than or equal to" };
            found.body(path, number.clone(), &format!("should be {than} {most}"));
        }
    }
    if let Some(least) = values.minimum {
        let excluded = values.exclusive_minimum;
        if given < least || excluded && given <= least {
            let than = if excluded { "greater than" } else { "greater than or equal to" };
            found.body(path, number.clone(), &format!("should be {than} {least}"));
        }
    }
    found
}

fn of_list(list: &[Value], old: Option<&Value>, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    let values = &schema.values;
    if let Some(items) = &schema.items {
        let old = old.and_then(Value::as_array).filter(|_| schema.list == Some(ListKind::Map));
        for (i, item) in list.iter().enumerate() {
            let before = old.and_then(|old| {
                let wanted = key(item, &schema.list_keys);
                old.iter().find(|other| key(other, &schema.list_keys) == wanted)
            });
            found.merge(node(item, before, items, &format!("{path}[{i}]")));
        }
    }
    let count = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if let Some(least) = values.min_items.filter(|least| count < *least) {
        found.body(path, count, &format!("should have at least {least} items"));
    }
    if let Some(most) = values.max_items.filter(|most| count > *most) {
        found.add(Kind::TooMany(count, most), path, "", "");
    }
    if values.unique_items {
        let mut seen = std::collections::HashSet::new();
        if !list.iter().all(|item| seen.insert(item.to_string())) {
            found.body(path, "", "shouldn't contain duplicates");
        }
    }
    found
}

fn one_of_values(value: &Value, schema: &Schema, path: &str) -> Outcome {
    let Some(any) = &schema.values.any else { return Outcome::default() };
    let is_same = |known: &Value| {
        known == value
            || matches!((known.as_f64(), value.as_f64()), (Some(known), Some(value)) if known == value)
    };
    if any.is_empty() || any.iter().any(is_same) {
        return Outcome::default();
    }
    let names = any.iter().map(|known| match known {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let kind = Kind::NotSupported(names.collect());
    Outcome::one(FieldError::new(kind, path, value.clone(), ""))
}

fn of_map(map: &Map<String, Value>, old: Option<&Value>, schema: &Schema, path: &str) -> Outcome {
    let mut found = Outcome::default();
    let values = &schema.values;
    let count = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(least) = values.min_properties.filter(|least| count < *least) {
        found.body(path, count, &format!("should have at least {least} properties"));
    }
    if let Some(most) = values.max_properties.filter(|most| count > *most) {
        found.add(Kind::TooMany(count, most), path, "", "");
    }
    for (name, value) in map {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let before = old.and_then(|old| old.get(name));
        match (schema.properties.get(name), &schema.additional) {
            (Some(property), _) => found.merge(node(value, before, property, &below)),
            (None, Additional::Like(additional)) => {
                found.merge(node(value, before, additional, &format!("{path}.{name}")));
            }
            (None, Additional::Allowed(false)) => {
                let detail = format!("{path}.{name} in body is a forbidden property");
                found.add(Kind::Invalid, path, name.as_str(), detail);
            }
            (None, _) => {}
        }
    }
    for name in &values.required {
        if !map.contains_key(name) {
            found.add(Kind::Required, &format!("{path}.{name}"), Value::Null, "");
        }
    }
    found
}
