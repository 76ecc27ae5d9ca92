//! The functions, by what they are about. Each takes its target first, and finds out at evaluation what
//! it is given: what is `dyn` was not checked before.

mod authorization;
pub(crate) mod cost;
mod formats;
mod formatting;
pub(crate) mod lists;
mod networks;
pub(crate) mod numbers;
pub(crate) mod opaque;
pub(crate) mod patterns;
pub(crate) mod quantities;
mod strings;
mod times;

use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::Error;
use crate::decl::DeclKind;
use crate::runtime::meter::Meter;
use crate::runtime::value::{Map, Value};

pub(crate) type Found<'v> = Result<Value<'v>, Error>;
/// A function of its target and arguments.
pub(crate) type Function = for<'v> fn(&mut Meter, &[Value<'v>]) -> Found<'v>;

/// The function of a name.
pub(crate) fn named(name: &str) -> Function {
    match name {
        "_==_" => |meter, args| match args {
            [a, b] => Ok(Value::Bool(meter.equal(a, b)?)),
            _ => Err(Error::no_such_overload()),
        },
        "_!=_" => |meter, args| match args {
            [a, b] => Ok(Value::Bool(!meter.equal(a, b)?)),
            _ => Err(Error::no_such_overload()),
        },
        "!_" => |_, args| match args {
            [Value::Bool(b)] => Ok(Value::Bool(!b)),
            _ => Err(Error::no_such_overload()),
        },
        "@in" => contained,
        "size" => |_, args| match args {
            [of @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
                Ok(Value::Int(i64::try_from(of.size()).unwrap_or(i64::MAX)))
            }
            _ => Err(Error::no_such_overload()),
        },
        "type" => |_, args| match args {
            [of] => Ok(Value::Type(of.type_of())),
            _ => Err(Error::no_such_overload()),
        },
        "dyn" => |_, args| args.first().cloned().ok_or_else(Error::no_such_overload),
        "bool" => |_, args| match args {
            [Value::Bool(b)] => Ok(Value::Bool(*b)),
            [Value::String(text)] => match &**text {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
                _ => Err(conversion("string", "bool")),
            },
            _ => Err(Error::no_such_overload()),
        },
        "bytes" => |meter, args| match args {
            [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
            [Value::String(text)] => {
                meter.bytes(text.len())?;
                Ok(Value::Bytes(text.as_bytes().into()))
            }
            _ => Err(Error::no_such_overload()),
        },
        "string" => text,
        "optional.of" => |_, args| one(args, |value| Ok(Value::some(value))),
        "optional.ofNonZeroValue" => |_, args| {
            one(args, |value| {
                Ok(if is_zero(&value) { Value::Optional(None) } else { Value::some(value) })
            })
        },
        "optional.none" => |_, _| Ok(Value::Optional(None)),
        "value" => |_, args| match args {
            [Value::Optional(Some(of))] => Ok((**of).clone()),
            [Value::Optional(None)] => Err(Error::new("optional.none() dereference")),
            _ => Err(Error::no_such_overload()),
        },
        "hasValue" => |_, args| match args {
            [Value::Optional(of)] => Ok(Value::Bool(of.is_some())),
            _ => Err(Error::no_such_overload()),
        },
        "or" => |_, args| match args {
            [Value::Optional(Some(of)), _] => Ok(Value::Optional(Some(of.clone()))),
            [Value::Optional(None), other] => Ok(other.clone()),
            _ => Err(Error::no_such_overload()),
        },
        "orValue" => |_, args| match args {
            [Value::Optional(Some(of)), _] => Ok((**of).clone()),
            [Value::Optional(None), other] => Ok(other.clone()),
            _ => Err(Error::no_such_overload()),
        },
        "optional.unwrap" | "unwrapOpt" => lists::unwrap,
        "cel.@mapInsert" => map_insert,
        "jsonpatch.escapeKey" => |meter, args| match args {
            [Value::String(text)] => {
                meter.bytes(text.len())?;
                Ok(Value::text(text.replace('~', "~0").replace('/', "~1")))
            }
            _ => Err(Error::no_such_overload()),
        },
        name => {
            let found = numbers::named(name)
                .or_else(|| strings::named(name))
                .or_else(|| lists::named(name))
                .or_else(|| times::named(name))
                .or_else(|| networks::named(name))
                .or_else(|| quantities::named(name))
                .or_else(|| patterns::named(name))
                .or_else(|| formats::named(name))
                .or_else(|| authorization::named(name));
            found.unwrap_or(|_, _| Err(Error::no_such_overload()))
        }
    }
}

pub(crate) fn one<'v>(args: &[Value<'v>], with: impl FnOnce(Value<'v>) -> Found<'v>) -> Found<'v> {
    match args {
        [value] => with(value.clone()),
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn conversion(from: &str, to: &str) -> Error {
    Error::new(format!("type conversion error from '{from}' to '{to}'"))
}

fn contained<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    match args {
        [value, Value::List(list)] => Ok(Value::Bool(meter.contains(list, value)?)),
        [Value::String(key), Value::Map(map @ (Map::Json(..) | Map::Object(..)))] => {
            Ok(Value::Bool(map.field(key).is_some()))
        }
        [key, Value::Map(Map::Nested(map))] => Ok(Value::Bool(
            crate::runtime::value::Key::new(key).is_some_and(|key| map.contains_key(&key)),
        )),
        [key, Value::Map(map)] => Ok(Value::Bool(map.get(key).is_some())),
        _ => Err(Error::no_such_overload()),
    }
}

fn map_insert<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let (map, entries) = match args {
        [Value::Map(Map::Owned(map)), key, value] => (map, vec![(key.clone(), value.clone())]),
        [Value::Map(Map::Owned(map)), Value::Map(more)] => {
            let mut entries = Vec::new();
            for key in more.keys() {
                if let Some(value) = more.get(&key) {
                    entries.push((key, value?));
                }
            }
            (map, entries)
        }
        _ => return Err(Error::no_such_overload()),
    };
    meter.work(map.len() + entries.len())?;
    let mut map = (**map).clone();
    for (key, value) in entries {
        let Some(own) = crate::runtime::value::Key::new(&key) else {
            return Err(Error::new(format!("unsupported key type: {}", key.type_of())));
        };
        if map.insert(own, value).is_some() {
            return Err(Error::new(format!("insert failed: key {} already exists", shown(&key))));
        }
    }
    Ok(Value::Map(Map::Owned(Arc::new(map))))
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(b) => !b,
        Value::Int(n) | Value::Duration(n) => *n == 0,
        Value::Uint(n) => *n == 0,
        Value::Double(n) => *n == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.len() == 0,
        Value::Map(map) => map.len() == 0,
        _ => false,
    }
}

/// A value of no parts as `string()` makes it.
fn plain_text(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Double(n) => numbers::text(*n),
        Value::Duration(nanos) => times::duration_text(*nanos),
        Value::Timestamp(at) => at.to_string(),
        Value::Opaque(opaque) => return opaque.text(),
        _ => return None,
    })
}

fn text<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    match args {
        [Value::String(text)] => Ok(Value::String(text.clone())),
        [Value::Bytes(bytes)] => {
            meter.bytes(bytes.len())?;
            match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Value::text(text)),
                Err(_) => Err(Error::new("invalid UTF-8 in bytes, cannot convert to string")),
            }
        }
        [value] => plain_text(value)
            .map_or_else(|| Err(Error::no_such_overload()), |text| Ok(Value::text(text))),
        _ => Err(Error::no_such_overload()),
    }
}

/// A value in an error.
pub(crate) fn shown(value: &Value<'_>) -> String {
    plain_text(value).unwrap_or_else(|| value.type_of().to_string())
}

/// Bytes and times as JSON writes them.
pub(crate) fn json_text(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Bytes(bytes) => Some(STANDARD.encode(bytes)),
        value => plain_text(value),
    }
}

/// The value of a string of a format.
pub(crate) fn formatted<'v>(text: &str, kind: &DeclKind) -> Found<'v> {
    match kind {
        DeclKind::Bytes => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Value::Bytes(bytes.into())),
            Err(_) => Err(Error::new("invalid base64")),
        },
        DeclKind::Duration => match longshore_duration::GoDuration::from_str(text) {
            Ok(duration) => Ok(Value::Duration(duration.as_nanos())),
            Err(_) => Err(Error::new(format!("invalid duration {text}"))),
        },
        _ => times::timestamp(text)
            .or_else(|| times::timestamp(&format!("{text}T00:00:00Z")))
            .map(Value::Timestamp)
            .ok_or_else(|| Error::new(format!("invalid date {text}"))),
    }
}

/// Whether a call with this literal can ever succeed.
pub(crate) fn literal_is_valid(function: &str, text: &str) -> bool {
    match function {
        "matches" => patterns::compile(text).is_ok(),
        "duration" => longshore_duration::GoDuration::from_str(text).is_ok(),
        "timestamp" => times::timestamp(text).is_some(),
        _ => true,
    }
}
