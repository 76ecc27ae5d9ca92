//! Protobuf bodies, which Go clients send for built-in kinds: an envelope that names the kind, and
//! in it the object. They become the same JSON values as any other body, and go the same way.
//!
//! Current limitations: bodies only, answers are always JSON; `managedFields` are not read, since
//! the server drops those of clients anyway.

mod wire;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde_json::{Map, Value, json};

use self::wire::{Fault, Fields, Result, Wire, last, varint};
use super::conform::check_kind;
use super::decode::{Decoded, MAX_DEPTH, State};
use super::value::is_zero;
use crate::api_types::{Field, Gvk, Leaf, Message, Shape, Slot, Type, message, types};
use crate::status::StatusError;

/// The media type of such bodies.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";

/// Reads an object of this kind. 400 for bytes that are none, or one of another kind; 413 for more
/// values than any real object has.
pub(super) fn decode(gvk: Gvk, body: &[u8]) -> Result<Decoded, StatusError> {
    let refuse = |why: Fault| StatusError::bad_request(format!("protobuf: {why}"));
    let Some(envelope) = body.strip_prefix(MAGIC) else {
        return Err(StatusError::bad_request(
            "provided data does not appear to be a protobuf message, expected prefix \"k8s\\x00\"",
        ));
    };
    let (mut object, raw) = open(envelope).map_err(refuse)?;
    // Checked before the rest is read: the fields of another kind would make no sense.
    check_kind(gvk, &mut object)?;
    let ty = types()
        .of(gvk)
        .ok_or_else(|| StatusError::internal(format!("no type for {}", gvk.kind)))?;
    let mut reader = Reader::default();
    let read = reader.message(ty, ty.name, raw, 0, &mut object);
    reader.state.finish(
        read.map(|()| Value::Object(object))
            .map_err(|why| format!("couldn't read the protobuf body: {why}")),
    )
}

/// The object's apiVersion and kind, and its bytes.
fn open(envelope: &[u8]) -> Result<(Map<String, Value>, &[u8])> {
    let (mut object, mut raw) = (Map::new(), &[][..]);
    for field in Fields(envelope) {
        match field? {
            (1, wire) => {
                for field in Fields(wire.bytes()?) {
                    let (number, wire) = field?;
                    let name = match number {
                        1 => "apiVersion",
                        2 => "kind",
                        _ => continue,
                    };
                    object.insert(name.into(), wire.text()?.into());
                }
            }
            (2, wire) => raw = wire.bytes()?,
            (3, wire) if !wire.bytes()?.is_empty() => {
                return Err(Fault::custom("an encoded body is not supported"));
            }
            _ => {}
        }
    }
    Ok((object, raw))
}

#[derive(Default)]
struct Reader {
    state: State,
}

impl Reader {
    /// Reads the fields of a message into an object. `name` is the type that the message is
    /// written as: that of the object, or one whose fields are part of it.
    fn message(
        &mut self,
        ty: &Type,
        name: &str,
        bytes: &[u8],
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Fault::custom(format_args!("exceeded max depth of {MAX_DEPTH}")));
        }
        let layout: &Message =
            message(name).ok_or_else(|| Fault::custom(format_args!("{name} is not a message")))?;
        for field in Fields(bytes) {
            let (number, wire) = field?;
            match layout.slot(number) {
                Some(Slot::Field { name, is_pointer }) => {
                    let Some(field) = ty.field(name) else { continue };
                    let keeps_zero = is_pointer || ty.required.contains(&name);
                    self.field(field, keeps_zero, wire, depth, object)
                        .map_err(|why| Fault::custom(format_args!("{name}: {why}")))?;
                }
                Some(Slot::Inline(part)) => {
                    self.message(ty, part, wire.bytes()?, depth + 1, object)?;
                }
                // A field that is newer than this server, as in any protobuf.
                None => {}
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        field: &Field,
        keeps_zero: bool,
        wire: Wire<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<()> {
        match field.shape {
            Shape::One => {
                let value = self.leaf(field.leaf, wire, depth)?;
                // Go writes unset fields that are not pointers, and shows only
                // structs among those in JSON.
                if keeps_zero || value.is_object() || !is_zero(&value) {
                    self.count_first(object)?;
                    object.insert(field.name.into(), value);
                }
            }
            Shape::List => {
                self.count_first(object)?;
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    self.items(field.leaf, wire, depth, list)?;
                }
            }
            Shape::Map | Shape::MapOfLists => {
                self.count_first(object)?;
                let (key, value) = self.entry(field, wire.bytes()?, depth)?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                if let Value::Object(map) = map {
                    self.count_first(map)?;
                    map.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn count_first(&mut self, object: &Map<String, Value>) -> Result<()> {
        if object.is_empty() { self.state.count_map() } else { Ok(()) }
    }

    /// One more item of a list, or all of them when they are packed numbers.
    fn items(
        &mut self,
        leaf: Leaf,
        wire: Wire<'_>,
        depth: usize,
        list: &mut Vec<Value>,
    ) -> Result<()> {
        match (leaf, wire) {
            (Leaf::Int32 | Leaf::Int64, Wire::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    let number = varint(&mut packed)?;
                    list.push(self.leaf(leaf, Wire::Number(number), depth)?);
                }
            }
            _ => list.push(self.leaf(leaf, wire, depth)?),
        }
        Ok(())
    }

    /// An entry of a map; an absent key or value is a zero one.
    fn entry(&mut self, field: &Field, bytes: &[u8], depth: usize) -> Result<(String, Value)> {
        let (mut key, mut value) = (String::new(), Wire::Bytes(&[]));
        for part in Fields(bytes) {
            match part? {
                (1, wire) => key = wire.text()?.to_owned(),
                (2, wire) => value = wire,
                _ => {}
            }
        }
        if field.shape == Shape::Map {
            return Ok((key, self.leaf(field.leaf, value, depth)?));
        }
        let mut list = Vec::new();
        for item in Fields(value.bytes()?) {
            if let (1, wire) = item? {
                self.items(field.leaf, wire, depth, &mut list)?;
            }
        }
        Ok((key, list.into()))
    }

    fn leaf(&mut self, leaf: Leaf, wire: Wire<'_>, depth: usize) -> Result<Value> {
        self.state.count::<Fault>()?;
        Ok(match leaf {
            Leaf::String => wire.text()?.into(),
            Leaf::Bytes => STANDARD.encode(wire.bytes()?).into(),
            Leaf::Bool => (wire.number()? != 0).into(),
            Leaf::Int32 | Leaf::Int64 => wire.number()?.into(),
            Leaf::Double => wire.double()?.into(),
            Leaf::Quantity => match last(wire.bytes()?, 1)? {
                Some(text) => text.text()?.into(),
                None => "0".into(),
            },
            Leaf::Time | Leaf::MicroTime => time(wire.bytes()?)?,
            Leaf::IntOrString => int_or_string(wire.bytes()?)?,
            Leaf::Any => raw_json(wire.bytes()?),
            Leaf::Struct(index) => self.structure(index, wire, depth)?,
            Leaf::Either(index) => self.either(index, wire.bytes()?, depth)?,
        })
    }

    fn structure(&mut self, index: usize, wire: Wire<'_>, depth: usize) -> Result<Value> {
        let ty = types().get(index);
        let mut object = Map::new();
        self.message(ty, ty.name, wire.bytes()?, depth + 1, &mut object)?;
        Ok(Value::Object(object))
    }

    /// A message that holds one of several things: a struct, a list of them or of texts, or whether
    /// anything is allowed. What says the latter has its struct second, the others have it first.
    fn either(&mut self, index: usize, bytes: &[u8], depth: usize) -> Result<Value> {
        let (mut allows, mut list) = (None, Vec::new());
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Number(number)) => allows = Some(number != 0),
                (1, wire) => return self.structure(index, wire, depth),
                (2, wire) if allows.is_some() => return self.structure(index, wire, depth),
                (2, wire) => list.push(self.structure(index, wire, depth)?),
                _ => {}
            }
        }
        Ok(allows.map_or_else(|| list.into(), Value::Bool))
    }
}

/// Any object travels as JSON in the first field of a message.
fn raw_json(message: &[u8]) -> Value {
    const FIRST_BYTES: u8 = 1 << 3 | 2;
    let Some((&FIRST_BYTES, rest)) = message.split_first() else { return Value::Null };
    let digits = rest.iter().take_while(|byte| **byte & 0x80 != 0).count();
    let json = rest.get(digits.saturating_add(1)..).unwrap_or_default();
    serde_json::from_slice(json).unwrap_or(Value::Null)
}

/// Seconds and nanoseconds since 1970; without either, no time at all.
fn time(bytes: &[u8]) -> Result<Value> {
    let part = |number| last(bytes, number)?.map_or(Ok(0), Wire::number);
    let (seconds, nanoseconds) = (part(1)?, part(2)?);
    if (seconds, nanoseconds) == (0, 0) {
        return Ok(Value::Null);
    }
    let nanoseconds = i32::try_from(nanoseconds).map_err(Fault::custom)?;
    let time = jiff::Timestamp::new(seconds, nanoseconds).map_err(Fault::custom)?;
    Ok(time.to_string().into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    const STRING: i64 = 1;
    Ok(match last(bytes, 1)?.map_or(Ok(0), Wire::number)? {
        STRING => last(bytes, 3)?.map_or(Ok(""), Wire::text)?.into(),
        _ => last(bytes, 2)?.map_or(Ok(0), Wire::number)?.into(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
