//! Defaults, and nulls that stand for nothing.

use serde_json::{Map, Value};

use crate::schema::{Additional, Schema};

/// Fills in the defaults of absent fields, and of nulls that are no values.
pub fn default(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let is_absent = match map.get(name) {
                    None => true,
                    Some(value) => value.is_null() && !property.nullable,
                };
                if is_absent {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(property) = schema.properties.get(name) {
                    default(value, property);
                } else if let Additional::Like(additional) = &schema.additional {
                    replace_null(value, additional);
                    default(value, additional);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for item in list {
                replace_null(item, items);
                default(item, items);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}

/// Drops nulls of fields that cannot be null and have no default.
pub fn drop_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => drop_nulls_of(map, schema),
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for item in list {
                drop_nulls(item, items);
            }
        }
        _ => {}
    }
}

fn drop_nulls_of(map: &mut Map<String, Value>, schema: &Schema) {
    map.retain(|name, value| {
        let Some(of) = schema.field(name) else { return true };
        if value.is_null() && !of.nullable && of.default.is_none() {
            return false;
        }
        drop_nulls(value, of);
        true
    });
}
