//! Values as Go has them in JSON: what is empty left out or not, as its types say.

use std::fmt::{self, Write};

use serde_json::{Map, Value, json};

use crate::types::{Field, Shape, Types};

/// A value of Go's type `ty` as Go writes it after it has read it from protobuf: nothing is null or
/// empty that is not there, and what a type always has is.
pub fn as_go(types: &Types, ty: &str, value: &Value) -> Value {
    match types.shape(ty) {
        Shape::Pointer(_) if value.is_null() => Value::Null,
        Shape::Pointer(inner) | Shape::Alias(inner) => as_go(types, inner, value),
        Shape::Slice(inner) => match value.as_array() {
            Some(items) if !items.is_empty() => {
                items.iter().map(|item| as_go(types, inner, item)).collect()
            }
            _ => Value::Null,
        },
        Shape::Map { inner, .. } => match value.as_object() {
            Some(entries) if !entries.is_empty() => {
                let entry =
                    |(key, value): (&String, &Value)| (key.clone(), as_go(types, inner, value));
                Value::Object(entries.iter().map(entry).collect())
            }
            _ => Value::Null,
        },
        Shape::Struct(fields) => {
            let mut members = Map::new();
            add_fields(types, fields, value, &mut members);
            Value::Object(members)
        }
        Shape::Other => match (ty, value) {
            ("string" | "resource.Quantity", Value::Null) => {
                json!(if ty == "string" { "" } else { "0" })
            }
            ("bool", Value::Null) => json!(false),
            ("v1.Time" | "v1.FieldsV1", Value::Null) => Value::Null,
            (_, Value::Null) => json!(0),
            (_, value) => value.clone(),
        },
    }
}

fn add_fields(types: &Types, fields: &[Field], value: &Value, members: &mut Map<String, Value>) {
    for field in fields {
        match field.json.as_ref() {
            // an embedded struct has its fields in the object itself
            "." => {
                if let Value::Object(own) = as_go(types, field.ty, value) {
                    members.extend(own);
                }
            }
            "-" => {}
            name => {
                let own = as_go(types, field.ty, &value[name]);
                let is_pointer = matches!(types.shape(field.ty), Shape::Pointer(_));
                let is_zero = match &own {
                    Value::Null => true,
                    own if is_pointer => own.is_null(),
                    Value::Bool(on) => !on,
                    Value::Number(number) => number.as_i64() == Some(0),
                    Value::String(text) => text.is_empty(),
                    Value::Array(_) | Value::Object(_) => false,
                };
                if field.is_always || !is_zero {
                    members.insert(name.to_owned(), own);
                }
            }
        }
    }
}

/// Writes a value as Go's `encoding/json` does after it has read it without its type: keys in order,
/// numbers as floating-point ones, and nothing that HTML would take for its own.
///
/// # Errors
/// What `out` fails with.
pub fn write_json(value: &Value, out: &mut dyn Write) -> fmt::Result {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| key.as_str());
            out.write_char('{')?;
            for (index, (key, value)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                text(key, out)?;
                out.write_char(':')?;
                write_json(value, out)?;
            }
            out.write_char('}')
        }
        Value::Array(items) => {
            out.write_char('[')?;
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                write_json(item, out)?;
            }
            out.write_char(']')
        }
        Value::String(own) => text(own, out),
        Value::Number(number) => match number.as_f64() {
            Some(number) => write!(out, "{number}"),
            None => write!(out, "{number}"),
        },
        Value::Null | Value::Bool(_) => write!(out, "{value}"),
    }
}

fn text(text: &str, out: &mut dyn Write) -> fmt::Result {
    out.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\u{8}' => out.write_str("\\b")?,
            '\u{c}' => out.write_str("\\f")?,
            '<' | '>' | '&' | '\0'..'\u{20}' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", u32::from(letter))?;
            }
            letter => out.write_char(letter)?,
        }
    }
    out.write_char('"')
}
