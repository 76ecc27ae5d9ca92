//! Whether a value is of its type, and what tells the items of a list apart.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::element::{Element, Scalar as Text};
use crate::schema::{Items, ListType, MapType, Scalar, Schema, Type, TypeId};

/// A value that is not of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Where it is, for example `.spec.containers[name="web"]`.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl Mismatch {
    fn here(message: impl Into<String>) -> Mismatch {
        Mismatch { path: String::new(), message: message.into() }
    }

    pub(crate) fn below(self, element: &Element<'_>) -> Mismatch {
        Mismatch { path: format!("{element}{}", self.path), ..self }
    }

    pub(crate) fn below_field(self, name: &str) -> Mismatch {
        Mismatch { path: format!(".{name}{}", self.path), ..self }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for Mismatch {}

/// The most mismatches that are named.
const MAX_NAMED: usize = 50;
/// The longest value in a message, in bytes.
const MAX_SHOWN: usize = 1 << 10;

/// Checks a value against its type. Items of a list with the same key are refused.
///
/// # Errors
///
/// The mismatches, as one text.
pub fn validate(schema: &Schema, of: TypeId, value: &Value) -> Result<(), String> {
    let mut found = Vec::new();
    Walk { schema, found: &mut found }.value(of, value, &mut Vec::new());
    match found.as_slice() {
        [] => Ok(()),
        [one] => Err(one.to_string()),
        many => {
            let lines = many.iter().map(|one| format!("\n  {one}"));
            Err(format!("errors:{}", lines.collect::<String>()))
        }
    }
}

struct Walk<'s, 'f> {
    schema: &'s Schema,
    found: &'f mut Vec<Mismatch>,
}

impl Walk<'_, '_> {
    fn report(&mut self, path: &[Element<'_>], message: impl Into<String>) {
        if self.found.len() < MAX_NAMED {
            let path = path.iter().map(ToString::to_string).collect();
            self.found.push(Mismatch { path, message: message.into() });
        }
    }

    fn value<'v>(&mut self, of: TypeId, value: &'v Value, path: &mut Vec<Element<'v>>) {
        if value.is_null() {
            return;
        }
        match self.schema.get(of) {
            Type::Any | Type::Atomic => {}
            Type::Scalar(scalar) => {
                if let Some(why) = scalar_mismatch(*scalar, value) {
                    self.report(path, why);
                }
            }
            Type::Map(of) => self.map(&of.clone(), value, path),
            Type::List(of) => self.list(&of.clone(), value, path),
        }
    }

    fn map<'v>(&mut self, of: &MapType, value: &'v Value, path: &mut Vec<Element<'v>>) {
        let Some(map) = value.as_object() else {
            return self.report(path, format!("expected map, got &{{{}}}", shown(value)));
        };
        for (name, value) in map {
            path.push(Element::field(name.as_str()));
            match of.of(name) {
                Some(below) => self.value(below, value, path),
                None => self.report(path, "field not declared in schema"),
            }
            path.pop();
        }
    }

    fn list<'v>(&mut self, of: &ListType, value: &'v Value, path: &mut Vec<Element<'v>>) {
        let Some(list) = value.as_array() else {
            return self.report(path, format!("expected list, got &{{{}}}", shown(value)));
        };
        let mut seen = BTreeSet::new();
        for (i, item) in list.iter().enumerate() {
            let element = match of.is_granular() {
                false => Element::Index(i64::try_from(i).unwrap_or(i64::MAX)),
                true => match item_element(of, i, item) {
                    Ok(element) => element.into_owned(),
                    Err(error) => return self.report(path, error.message),
                },
            };
            if of.is_granular() && !seen.insert(element.clone()) {
                self.report(path, format!("duplicate entries for key {element}"));
            }
            path.push(element);
            self.value(of.element, item, path);
            path.pop();
        }
    }
}

impl ListType {
    /// Whether its items have owners of their own.
    pub(crate) fn is_granular(&self) -> bool {
        !matches!(self.items, Items::Atomic)
    }
}

/// What tells the item at this place from the others of its list.
pub(crate) fn item_element<'v>(
    of: &'v ListType,
    at: usize,
    item: &'v Value,
) -> Result<Element<'v>, Mismatch> {
    let refuse = |why: String| Err(Mismatch::here(format!("element {at}: {why}")));
    let keys = match &of.items {
        Items::Keys(keys) => keys,
        Items::Set | Items::Atomic => {
            return match item {
                Value::Object(_) => {
                    refuse("associative list without keys has an element that's a map type".into())
                }
                Value::Array(_) => {
                    refuse("not supported: associative list with lists as elements".into())
                }
                Value::Null => refuse(
                    "associative list without keys has an element that's an explicit null".into(),
                ),
                scalar => Ok(Element::Value(Text::of(scalar))),
            };
        }
    };
    let map = match item {
        Value::Object(map) => map,
        Value::Null => {
            return refuse("associative list with keys may not have a null element".into());
        }
        _ => return refuse("associative list with keys may not have non-map elements".into()),
    };
    let fields: Vec<_> = keys
        .iter()
        .filter_map(|key| {
            let value = map.get(key.name.as_ref()).or(key.default.as_ref())?;
            Some((Cow::Borrowed(key.name.as_ref()), Text::of(value)))
        })
        .collect();
    if fields.is_empty() {
        let names: Vec<String> = keys.iter().map(|key| format!("{:?}", key.name)).collect();
        return refuse(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    Ok(Element::Key(fields))
}

fn scalar_mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    match (scalar, value) {
        (Scalar::Number, Value::Number(_))
        | (Scalar::Text, Value::String(_))
        | (Scalar::Bool, Value::Bool(_))
        | (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => None,
        (Scalar::Number, other) => {
            Some(format!("expected numeric (int or float), got {}", go_type(other)))
        }
        (Scalar::Text, other) => {
            let quoted = match other {
                Value::Number(_) | Value::Bool(_) => shown(other),
                other => format!("{}{{…}}", go_type(other)),
            };
            Some(format!("expected string, got &value.valueUnstructured{{Value:{quoted}}}"))
        }
        (Scalar::Bool, other) => Some(format!("expected boolean, got &{{{}}}", shown(other))),
        (Scalar::Any, other) => Some(format!("expected any scalar, got &{{{}}}", shown(other))),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The value as Go prints it, shortened.
fn shown(value: &Value) -> String {
    let mut text = String::new();
    append(&mut text, value);
    if text.len() > MAX_SHOWN {
        let end = (0..=MAX_SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn append(text: &mut String, value: &Value) {
    if text.len() > MAX_SHOWN {
        return;
    }
    match value {
        Value::Null => text.push_str("<nil>"),
        Value::String(value) => text.push_str(value),
        Value::Array(list) => {
            text.push('[');
            for (i, item) in list.iter().enumerate() {
                text.push_str(if i > 0 { " " } else { "" });
                append(text, item);
            }
            text.push(']');
        }
        Value::Object(map) => {
            text.push_str("map[");
            for (i, (name, value)) in map.iter().enumerate() {
                text.push_str(if i > 0 { " " } else { "" });
                text.push_str(name);
                text.push(':');
                append(text, value);
            }
            text.push(']');
        }
        other => text.push_str(&other.to_string()),
    }
}
