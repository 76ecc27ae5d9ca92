//! One step of the path to a field, as text in `FieldsV1` (`f:spec`, `k:{"name":"web"}`, `v:"a"`,
//! `i:0`) and in messages (`.spec`, `[name="web"]`, `[="a"]`, `[0]`).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use crate::format_error::FormatError;

/// One step of a path. Texts are borrowed from the objects that the path is of, where that is possible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element<'a> {
    /// A field of a struct, or a key of a map.
    Field(Cow<'a, str>),
    /// An item of a list by its key fields, sorted by name.
    Key(Vec<(Cow<'a, str>, Scalar<'a>)>),
    /// An item of a set.
    Value(Scalar<'a>),
    /// An item of a list by its place.
    Index(i64),
}

/// The value of a key field or of an item of a set.
#[derive(Debug, Clone)]
pub enum Scalar<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// A list or map, as JSON: no schema has such keys, but `FieldsV1` can.
    Json(String),
}

impl<'a> Scalar<'a> {
    /// The scalar of a value.
    #[must_use]
    pub fn of(value: &'a Value) -> Scalar<'a> {
        match value {
            Value::String(text) => Scalar::Text(Cow::Borrowed(text)),
            other => Scalar::read(other),
        }
    }

    fn read(value: &Value) -> Scalar<'static> {
        match value {
            Value::Null => Scalar::Null,
            Value::Bool(value) => Scalar::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => Scalar::Int(whole),
                None => whole(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Scalar::Text(Cow::Owned(text.clone())),
            Value::Array(_) | Value::Object(_) => Scalar::Json(value.to_string()),
        }
    }

    fn into_owned(self) -> Scalar<'static> {
        match self {
            Scalar::Null => Scalar::Null,
            Scalar::Bool(value) => Scalar::Bool(value),
            Scalar::Int(value) => Scalar::Int(value),
            Scalar::Float(value) => Scalar::Float(value),
            Scalar::Text(text) => Scalar::Text(Cow::Owned(text.into_owned())),
            Scalar::Json(text) => Scalar::Json(text),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Scalar::Float(_) => 0,
            Scalar::Int(_) => 1,
            Scalar::Text(_) => 2,
            Scalar::Bool(_) => 3,
            Scalar::Json(_) => 4,
            Scalar::Null => 5,
        }
    }

    fn append(&self, text: &mut String) {
        match self {
            Scalar::Null => text.push_str("null"),
            Scalar::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            Scalar::Int(value) => text.push_str(&value.to_string()),
            Scalar::Float(value) => text.push_str(&Value::from(*value).to_string()),
            Scalar::Text(value) => append_string(text, value),
            Scalar::Json(json) => text.push_str(json),
        }
    }
}

/// The float as a whole number if it is one that floats represent exactly.
fn whole(float: f64) -> Scalar<'static> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() <= EXACT {
        // the range was just checked
        #[allow(clippy::cast_possible_truncation)]
        return Scalar::Int(float as i64);
    }
    Scalar::Float(float)
}

impl PartialEq for Scalar<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar<'_> {}

impl PartialOrd for Scalar<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scalar<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => a.cmp(b),
            (Scalar::Int(a), Scalar::Int(b)) => a.cmp(b),
            (Scalar::Float(a), Scalar::Float(b)) => a.total_cmp(b),
            (Scalar::Text(a), Scalar::Text(b)) => a.cmp(b),
            (Scalar::Json(a), Scalar::Json(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// The longest text of an element, in bytes: that of the longest annotation key is below 400.
const MAX_LENGTH: usize = 16 << 10;

impl<'a> Element<'a> {
    /// A field.
    pub fn field(name: impl Into<Cow<'a, str>>) -> Element<'a> {
        Element::Field(name.into())
    }

    /// Reads the text that `FieldsV1` has. `None` for a kind of element that is not known.
    pub(crate) fn parse(text: &'a str) -> Result<Option<Element<'a>>, FormatError> {
        if text.len() > MAX_LENGTH {
            return Err(FormatError::LongKey(text.len()));
        }
        let bad = |why: String| FormatError::Key { key: shortened(text), why };
        let (Some(kind), Some(":")) = (text.get(..1), text.get(1..2)) else {
            return Err(bad("missing colon".into()));
        };
        let rest = &text[2..];
        let json = || serde_json::from_str::<Value>(rest).map_err(|error| bad(error.to_string()));
        Ok(Some(match kind {
            "f" => Element::Field(Cow::Borrowed(rest)),
            "v" => Element::Value(Scalar::read(&json()?)),
            "i" => Element::Index(rest.parse().map_err(|_| bad("the index is no number".into()))?),
            "k" => match json()? {
                Value::Object(map) => Element::Key(key(&map)),
                _ => return Err(bad("the key is no object".into())),
            },
            _ => return Ok(None),
        }))
    }

    /// The text that `FieldsV1` has.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Element::Field(name) => {
                let mut text = String::with_capacity(name.len() + 2);
                text.push_str("f:");
                text.push_str(name);
                text
            }
            Element::Key(fields) => {
                let mut text = String::from("k:{");
                for (i, (name, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        text.push(',');
                    }
                    append_string(&mut text, name);
                    text.push(':');
                    value.append(&mut text);
                }
                text.push('}');
                text
            }
            Element::Value(value) => {
                let mut text = String::from("v:");
                value.append(&mut text);
                text
            }
            Element::Index(index) => format!("i:{index}"),
        }
    }

    /// The same without borrowed texts.
    #[must_use]
    pub fn into_owned(self) -> Element<'static> {
        match self {
            Element::Field(name) => Element::Field(Cow::Owned(name.into_owned())),
            Element::Key(fields) => Element::Key(
                fields
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
                    .collect(),
            ),
            Element::Value(value) => Element::Value(value.into_owned()),
            Element::Index(index) => Element::Index(index),
        }
    }
}

fn key(map: &Map<String, Value>) -> Vec<(Cow<'static, str>, Scalar<'static>)> {
    let mut fields: Vec<_> =
        map.iter().map(|(name, value)| (Cow::Owned(name.clone()), Scalar::read(value))).collect();
    fields.sort();
    fields
}

fn shortened(text: &str) -> String {
    const SHOWN: usize = 64;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn append_string(text: &mut String, value: &str) {
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if value.bytes().all(is_plain) {
        text.push('"');
        text.push_str(value);
        text.push('"');
    } else {
        text.push_str(&Value::from(value).to_string());
    }
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scalar = |value: &Scalar<'_>| {
            let mut text = String::new();
            value.append(&mut text);
            text
        };
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", scalar(value))?;
                }
                f.write_str("]")
            }
            Element::Value(value) => write!(f, "[={}]", scalar(value)),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}
