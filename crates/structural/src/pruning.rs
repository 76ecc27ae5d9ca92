//! Fields that a schema does not name are dropped.

use serde_json::{Map, Value};

use crate::schema::{Additional, Schema};

/// Fields that every object has.
const META: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// The most dropped fields that are named.
const MAX_NAMED: usize = 100;

/// Drops the fields of a whole object that its schema does not name. Returns their paths.
pub fn prune(object: &mut Map<String, Value>, schema: &Schema) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.map(object, schema, true, schema.preserves_unknown);
    pruner.dropped
}

/// Every embedded object and its path, without the object itself.
pub fn embedded<'a>(
    object: &'a mut Map<String, Value>,
    schema: &Schema,
    found: &mut dyn FnMut(&str, &mut Map<String, Value>),
) {
    for (name, value) in object.iter_mut() {
        if let Some(schema) = schema.field(name) {
            embedded_in(value, schema, name, found);
        }
    }
}

fn embedded_in(
    value: &mut Value,
    schema: &Schema,
    path: &str,
    found: &mut dyn FnMut(&str, &mut Map<String, Value>),
) {
    match value {
        Value::Object(map) => {
            if schema.embedded {
                found(path, map);
            }
            for (name, value) in map.iter_mut() {
                if let Some(schema) = schema.field(name) {
                    embedded_in(value, schema, &format!("{path}.{name}"), found);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, item) in list.iter_mut().enumerate() {
                embedded_in(item, items, &format!("{path}[{i}]"), found);
            }
        }
        _ => {}
    }
}

#[derive(Default)]
struct Pruner {
    path: String,
    dropped: Vec<String>,
}

impl Pruner {
    fn value(&mut self, value: &mut Value, schema: Option<&Schema>, keeps: bool) {
        match (value, schema) {
            (Value::Object(map), Some(schema)) => {
                self.map(map, schema, schema.embedded, keeps || schema.preserves_unknown);
            }
            (Value::Object(map), None) if !keeps => {
                for (name, _) in std::mem::take(map) {
                    self.drop(&name);
                }
            }
            (Value::Array(list), schema) if !keeps || schema.is_some() => {
                let keeps = keeps || schema.is_some_and(|schema| schema.preserves_unknown);
                let end = self.path.len();
                for (i, item) in list.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{i}]"));
                    let items = schema.and_then(|schema| schema.items.as_deref());
                    self.value(item, items, keeps);
                    self.path.truncate(end);
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, map: &mut Map<String, Value>, schema: &Schema, is_object: bool, keeps: bool) {
        let mut dropped = Vec::new();
        for (name, value) in map.iter_mut() {
            if is_object && META.contains(&name.as_str()) {
                continue;
            }
            let of = match (schema.properties.get(name), &schema.additional) {
                (Some(property), _) => Some(Some(property)),
                (None, Additional::Like(additional)) => Some(Some(&**additional)),
                (None, Additional::Allowed(_)) => Some(None),
                (None, Additional::None) => None,
            };
            match of {
                Some(of) => {
                    let end = self.path.len();
                    self.step(name);
                    self.value(value, of, false);
                    self.path.truncate(end);
                }
                None if keeps => {}
                None => dropped.push(name.clone()),
            }
        }
        for name in dropped {
            self.drop(&name);
            map.remove(&name);
        }
    }

    fn step(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn drop(&mut self, name: &str) {
        if self.dropped.len() >= MAX_NAMED {
            return;
        }
        let end = self.path.len();
        self.step(name);
        self.dropped.push(self.path.clone());
        self.path.truncate(end);
    }
}
