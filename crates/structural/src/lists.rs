//! Lists whose items are unique, as values or by their keys.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::{FieldError, Kind};
use crate::schema::{Additional, ListKind, Schema};

/// Checks that no item of a set or of a map of items occurs twice.
#[must_use]
pub fn check_lists(object: &Value, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(object, schema, "", &mut errors);
    errors
}

fn check(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(property) = schema.properties.get(name) {
                    check(value, property, &format!("{path}.{name}"), errors);
                } else if let Additional::Like(additional) = &schema.additional {
                    check(value, additional, &format!("{path}[{name}]"), errors);
                }
            }
        }
        Value::Array(list) => {
            match schema.list {
                Some(ListKind::Set) => {
                    for i in repeated(list.iter()) {
                        let value = list.get(i).cloned().unwrap_or_default();
                        errors.push(duplicate(path, i, value));
                    }
                }
                Some(ListKind::Map) => keys(list, schema, path, errors),
                _ => {}
            }
            let Some(items) = &schema.items else { return };
            for (i, item) in list.iter().enumerate() {
                check(item, items, &format!("{path}[{i}]"), errors);
            }
        }
        _ => {}
    }
}

fn keys(list: &[Value], schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let is_other = |item: &&Value| !item.is_null() && !item.is_object();
    if let Some(i) = list.iter().position(|item| is_other(&item)) {
        let value = list.get(i).cloned().unwrap_or_default();
        let path = format!("{path}[{i}]");
        let why = "must be an object for an array of list-type map";
        errors.push(FieldError::new(Kind::Invalid, &path, value, why));
        return;
    }
    let keys: Vec<Value> = list.iter().map(|item| key(item, &schema.list_keys)).collect();
    for i in repeated(keys.iter()) {
        errors.push(duplicate(path, i, keys.get(i).cloned().unwrap_or_default()));
    }
}

/// The fields of an item that are its key.
pub(crate) fn key(item: &Value, names: &[String]) -> Value {
    let fields: Map<String, Value> =
        names.iter().filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect();
    fields.into()
}

fn duplicate(path: &str, index: usize, value: Value) -> FieldError {
    FieldError::new(Kind::Duplicate, &format!("{path}[{index}]"), value, "")
}

/// The places at which a value occurs for the second time.
fn repeated<'a>(values: impl Iterator<Item = &'a Value>) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut repeated = Vec::new();
    for (i, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times = times.saturating_add(1);
        if *times == 2 {
            repeated.push(i);
        }
    }
    repeated
}
