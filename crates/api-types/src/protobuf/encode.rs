//! JSON values to messages.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde::de::Error as _;
use serde_json::{Map, Value};

use super::wire::{Fault, Result, Writer};
use super::{EPOCH, MAGIC, MAX_DEPTH, NO_TIME, is_list_of_texts};
use crate::{Field, Layout, Leaf, Place, Shape, layout, types};

/// Go does not mind bits that are left over at the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// An object of a built-in kind, in its envelope, as an object of `api_version`: that of its type
/// unless it is stored under another one. `index`: of its type. The error says what cannot be written.
pub fn encode(index: usize, api_version: &str, object: &Value) -> Result<Vec<u8>, String> {
    let fields = object.as_object().ok_or("not an object")?;
    let kind = text(&object["kind"]);
    sealed(api_version, kind, |out| object_of(out, index, fields, 0))
}

/// An object of a built-in kind without an envelope: the message alone, as Go's `Marshal` writes it. The
/// error says what cannot be written.
pub fn encode_bare(api_version: &str, kind: &str, object: &Value) -> Result<Vec<u8>, String> {
    let index = types().of_kind(api_version, kind);
    let index = index.ok_or_else(|| format!("no type for {api_version} {kind}"))?;
    let fields = object.as_object().ok_or("not an object")?;
    let mut out = Writer::default();
    object_of(&mut out, index, fields, 0).map_err(|why| why.to_string())?;
    Ok(out.0)
}

/// An object or a list of the kind that it names. `None`: that has no form in protobuf, or it does not
/// fit its kind.
pub fn encode_any(object: &Value) -> Option<Vec<u8>> {
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let is_metadata = api_version == "meta.k8s.io/v1";
    if is_metadata && kind == "PartialObjectMetadata" {
        return sealed(api_version, kind, |out| partial(out, object)).ok();
    }
    if let Some(items) = object["items"].as_array() {
        let of = kind.strip_suffix("List")?;
        let index = match is_metadata && of == "PartialObjectMetadata" {
            true => None,
            false => Some(types().of_kind(api_version, of)?),
        };
        let mut list = ListWriter::new(index);
        items.iter().try_for_each(|item| list.push(item)).ok()?;
        return list.finish(api_version, kind, &object["metadata"]).ok();
    }
    let index = types().of_kind(api_version, kind)?;
    layout(index)?;
    encode(index, api_version, object).ok()
}

/// An event of a watch: its length, and a message with its type and the object in its envelope.
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Writer(vec![0; 4]);
    out.bytes(1, kind.as_bytes());
    // `nested` fails only as what it calls does
    let _ = out.nested(2, |out| {
        out.bytes(1, object);
        Ok(())
    });
    let mut frame = out.0;
    let length = u32::try_from(frame.len().saturating_sub(4)).unwrap_or(u32::MAX);
    if let Some(head) = frame.first_chunk_mut() {
        *head = length.to_be_bytes();
    }
    frame
}

/// A list that is written as it is read.
#[derive(Debug)]
pub struct ListWriter {
    /// `None`: the metadata of objects alone.
    index: Option<usize>,
    items: Writer,
}

impl ListWriter {
    /// `index`: of the type of its items.
    #[must_use]
    pub fn new(index: Option<usize>) -> ListWriter {
        ListWriter { index, items: Writer::default() }
    }

    /// The bytes so far.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.items.0.len()
    }

    /// Adds an object. The error says what cannot be written.
    ///
    /// # Errors
    /// It does not fit its kind.
    pub fn push(&mut self, object: &Value) -> Result<(), String> {
        let written = self.items.nested(2, |out| match self.index {
            None => partial(out, object),
            Some(index) => match object.as_object() {
                Some(fields) => object_of(out, index, fields, 0),
                None => Err(Fault::custom("not an object")),
            },
        });
        written.map_err(|why| why.to_string())
    }

    /// The whole list: its beginning, and its items.
    ///
    /// # Errors
    /// Its metadata does not fit.
    pub fn finish(
        self,
        api_version: &str,
        kind: &str,
        metadata: &Value,
    ) -> Result<Vec<u8>, String> {
        sealed(api_version, kind, |out| {
            out.nested(1, |out| named(out, LIST_METADATA, metadata))?;
            out.0.extend_from_slice(&self.items.0);
            Ok(())
        })
    }
}

/// What `write` writes, in an envelope. The fields after it are empty, and there nevertheless.
fn sealed(
    api_version: &str,
    kind: &str,
    write: impl FnOnce(&mut Writer) -> Result<()>,
) -> Result<Vec<u8>, String> {
    let mut out = Writer(Vec::with_capacity(512));
    out.0.extend_from_slice(MAGIC);
    let written = out
        .nested(1, |out| {
            out.bytes(1, api_version.as_bytes());
            out.bytes(2, kind.as_bytes());
            Ok(())
        })
        .and_then(|()| out.nested(2, write));
    written.map_err(|why| why.to_string())?;
    out.bytes(3, &[]);
    out.bytes(4, &[]);
    Ok(out.0)
}

/// A `RangeAllocation`, which only the store holds: a range, and a number whose bits say what of it is
/// taken.
pub fn encode_range(range: &str, data: &[u8]) -> Result<Vec<u8>, String> {
    sealed("v1", "RangeAllocation", |out| {
        out.nested(1, |out| named(out, METADATA, &Value::Null))?;
        out.bytes(2, range.as_bytes());
        out.bytes(3, data);
        Ok(())
    })
}

/// The text, empty when it is none.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn partial(out: &mut Writer, object: &Value) -> Result<()> {
    out.nested(1, |out| named(out, METADATA, &object["metadata"]))
}

/// A value of the type of this name.
fn named(out: &mut Writer, name: &str, value: &Value) -> Result<()> {
    let index = types().index_named(name);
    let index = index.ok_or_else(|| Fault::custom(format_args!("no type {name}")))?;
    let none = Map::new();
    object_of(out, index, value.as_object().unwrap_or(&none), 0)
}

/// The fields of an object. `index`: of its type.
fn object_of(
    out: &mut Writer,
    index: usize,
    object: &Map<String, Value>,
    depth: usize,
) -> Result<()> {
    let layout = layout(index).ok_or_else(|| Fault::custom("its type is not a message"))?;
    fields_of(out, layout, object, depth)
}

fn fields_of(
    out: &mut Writer,
    layout: &'static Layout,
    object: &Map<String, Value>,
    depth: usize,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Fault::custom(format_args!("exceeded max depth of {MAX_DEPTH}")));
    }
    for (number, place) in layout.places() {
        match place {
            Place::Inline(part) => {
                out.nested(*number, |out| fields_of(out, part, object, depth.saturating_add(1)))?;
            }
            Place::Field { field, is_pointer, .. } => {
                let value = object.get(field.name).filter(|value| !value.is_null());
                let written = match value {
                    Some(value) => field_of(out, *number, field, value, depth),
                    None if *is_pointer || field.shape != Shape::One => Ok(()),
                    None => zero(out, *number, field, depth),
                };
                written.map_err(|why| Fault::custom(format_args!("{}: {why}", field.name)))?;
            }
        }
    }
    Ok(())
}

fn field_of(
    out: &mut Writer,
    number: u32,
    field: &Field,
    value: &Value,
    depth: usize,
) -> Result<()> {
    match (field.shape, value) {
        (Shape::One, value) => leaf(out, number, field, value, depth),
        (Shape::List, Value::Array(list)) => {
            list.iter().try_for_each(|item| element(out, number, field, item, depth))
        }
        // sorted by their keys, as the entries of any object here
        (Shape::Map, Value::Object(map)) => map.iter().try_for_each(|(key, value)| {
            out.nested(number, |out| {
                out.bytes(1, key.as_bytes());
                element(out, 2, field, value, depth)
            })
        }),
        (Shape::MapOfLists, Value::Object(map)) => map.iter().try_for_each(|(key, value)| {
            out.nested(number, |out| {
                out.bytes(1, key.as_bytes());
                out.nested(2, |out| match value {
                    Value::Array(list) => {
                        list.iter().try_for_each(|item| element(out, 1, field, item, depth))
                    }
                    Value::Null => Ok(()),
                    other => Err(mismatch(other)),
                })
            })
        }),
        (_, other) => Err(mismatch(other)),
    }
}

/// A value within a list or a map, where null stands for the zero value.
fn element(
    out: &mut Writer,
    number: u32,
    field: &Field,
    value: &Value,
    depth: usize,
) -> Result<()> {
    match value {
        Value::Null => zero(out, number, field, depth),
        value => leaf(out, number, field, value, depth),
    }
}

/// What Go writes for a field that is not set, if it is no pointer.
fn zero(out: &mut Writer, number: u32, field: &Field, depth: usize) -> Result<()> {
    match field.leaf {
        Leaf::Bytes => {}
        Leaf::String | Leaf::Time | Leaf::MicroTime | Leaf::Any | Leaf::Either(_) => {
            out.bytes(number, &[]);
        }
        Leaf::Bool | Leaf::Int32 | Leaf::Int64 => out.number(number, 0),
        Leaf::Double => out.double(number, 0.0),
        Leaf::Quantity => quantity(out, number, "0")?,
        Leaf::IntOrString => int_or_string(out, number, 0, "")?,
        Leaf::Struct(index) => {
            out.nested(number, |out| object_of(out, index, &Map::new(), depth.saturating_add(1)))?;
        }
    }
    Ok(())
}

fn leaf(out: &mut Writer, number: u32, field: &Field, value: &Value, depth: usize) -> Result<()> {
    match (field.leaf, value) {
        (Leaf::String, Value::String(text)) => out.bytes(number, text.as_bytes()),
        (Leaf::Bytes, Value::String(text)) => {
            out.bytes(number, &BASE64.decode(text).map_err(Fault::custom)?);
        }
        (Leaf::Bool, Value::Bool(flag)) => out.number(number, i64::from(*flag)),
        (Leaf::Int32 | Leaf::Int64, Value::Number(_)) => out.number(number, integer(value)?),
        (Leaf::Double, Value::Number(double)) => {
            out.double(number, double.as_f64().unwrap_or_default());
        }
        (Leaf::Quantity, Value::String(text)) => quantity(out, number, text)?,
        (Leaf::Quantity, Value::Number(plain)) => quantity(out, number, &plain.to_string())?,
        (Leaf::Time, Value::String(text)) => time(out, number, text, 0)?,
        (Leaf::MicroTime, Value::String(text)) => time(out, number, text, MICROSECONDS)?,
        (Leaf::IntOrString, Value::String(text)) => int_or_string(out, number, 1, text)?,
        (Leaf::IntOrString, Value::Number(_)) => {
            let value = integer(value)?;
            out.nested(number, |out| {
                out.number(1, 0);
                out.number(2, value);
                out.bytes(3, &[]);
                Ok(())
            })?;
        }
        (Leaf::Any, value) => {
            let json = longshore_json::write(value).map_err(Fault::custom)?;
            out.nested(number, |out| {
                out.bytes(1, &json);
                Ok(())
            })?;
        }
        (Leaf::Struct(index), Value::Object(object)) => {
            structure(out, number, index, object, depth)?;
        }
        (Leaf::Either(index), value) => {
            out.nested(number, |out| either(out, field, index, value, depth))?;
        }
        (_, other) => return Err(mismatch(other)),
    }
    Ok(())
}

fn structure(
    out: &mut Writer,
    number: u32,
    index: usize,
    object: &Map<String, Value>,
    depth: usize,
) -> Result<()> {
    out.nested(number, |out| object_of(out, index, object, depth.saturating_add(1)))
}

/// A message that holds one of several things, as `decode` has them.
fn either(out: &mut Writer, of: &Field, index: usize, value: &Value, depth: usize) -> Result<()> {
    let says_whether = matches!(of.name, "additionalItems" | "additionalProperties");
    match value {
        Value::Bool(allows) if says_whether => out.number(1, i64::from(*allows)),
        Value::Object(object) if says_whether => {
            out.number(1, 1);
            structure(out, 2, index, object, depth)?;
        }
        Value::Object(object) => structure(out, 1, index, object, depth)?,
        Value::Array(list) if !says_whether => {
            for item in list {
                match item {
                    Value::String(text) if is_list_of_texts(of) => out.bytes(2, text.as_bytes()),
                    Value::Object(object) if !is_list_of_texts(of) => {
                        structure(out, 2, index, object, depth)?;
                    }
                    other => return Err(mismatch(other)),
                }
            }
        }
        other => return Err(mismatch(other)),
    }
    Ok(())
}

fn quantity(out: &mut Writer, number: u32, text: &str) -> Result<()> {
    out.nested(number, |out| {
        out.bytes(1, text.as_bytes());
        Ok(())
    })
}

fn int_or_string(out: &mut Writer, number: u32, is_text: i64, text: &str) -> Result<()> {
    out.nested(number, |out| {
        out.number(1, is_text);
        out.number(2, 0);
        out.bytes(3, text.as_bytes());
        Ok(())
    })
}

/// How many nanoseconds the fraction of a time is a multiple of.
const MICROSECONDS: i32 = 1_000;

/// A time in seconds, and with `fraction` in parts of them too.
fn time(out: &mut Writer, number: u32, text: &str, fraction: i32) -> Result<()> {
    let parsed = text.parse::<Timestamp>().map(|time| Offset::UTC.to_datetime(time));
    // Go's times reach a day further than jiff's timestamps.
    let utc = || text.strip_suffix('Z').and_then(|text| text.parse::<DateTime>().ok());
    let time = parsed.ok().or_else(utc).ok_or_else(|| Fault::custom("not a time"))?;
    if time == NO_TIME {
        out.bytes(number, &[]);
        return Ok(());
    }
    let nanoseconds = time.subsec_nanosecond();
    let seconds = time
        .duration_since(EPOCH)
        .checked_sub(jiff::SignedDuration::from_nanos(nanoseconds.into()))
        .ok_or_else(|| Fault::custom("a time that is out of range"))?
        .as_secs();
    let kept = nanoseconds.checked_rem(fraction).map_or(0, |rest| nanoseconds.saturating_sub(rest));
    out.nested(number, |out| {
        out.number(1, seconds);
        out.number(2, kept.into());
        Ok(())
    })
}

/// A number without a fraction.
fn integer(value: &Value) -> Result<i64> {
    value.as_i64().ok_or_else(|| Fault::custom("not an integer of 64 bits"))
}

fn mismatch(value: &Value) -> Fault {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Fault::custom(format_args!("{found} cannot be its value"))
}
