//! Messages to JSON values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use serde::de::Error as _;
use serde_json::{Map, Value, json};

use crate::api_types::{Field, Layout, Leaf, Place, Shape, layout, types};
use crate::schema::decode::{MAX_DEPTH, State, embedded};
use crate::schema::value::is_zero;
use longshore_api_types::protobuf::wire::{Fault, Fields, Result, Wire, last, varint};
use longshore_api_types::protobuf::{EPOCH, NO_TIME, is_list_of_texts};

#[derive(Default)]
pub(super) struct Reader {
    pub(super) state: State,
}

impl Reader {
    /// Reads the fields of a message into an object. `index`: of the object's type.
    pub(super) fn object(
        &mut self,
        index: usize,
        bytes: &[u8],
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<()> {
        let layout = layout(index).ok_or_else(|| Fault::custom("its type is not a message"))?;
        self.message(layout, bytes, depth, object)
    }

    fn message(
        &mut self,
        layout: &'static Layout,
        bytes: &[u8],
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Fault::custom(format_args!("exceeded max depth of {MAX_DEPTH}")));
        }
        for field in Fields(bytes) {
            let (number, wire) = field?;
            match layout.place(number) {
                Some(Place::Field { field, keeps_zero, .. }) => {
                    self.field(field, *keeps_zero, wire, depth, object)
                        .map_err(|why| Fault::custom(format_args!("{}: {why}", field.name)))?;
                }
                Some(Place::Inline(part)) => {
                    self.message(part, wire.bytes()?, depth.saturating_add(1), object)?;
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
                let value = self.leaf(field, wire, depth)?;
                // Go writes unset fields that are not pointers, and shows few of those in JSON.
                if !value.is_null() && (keeps_zero || !is_zero(&value)) {
                    self.count_first(object)?;
                    object.insert(field.name.into(), value);
                }
            }
            Shape::List => {
                self.count_first(object)?;
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    self.items(field, wire, depth, list)?;
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
        field: &Field,
        wire: Wire<'_>,
        depth: usize,
        list: &mut Vec<Value>,
    ) -> Result<()> {
        match (field.leaf, wire) {
            (Leaf::Int32 | Leaf::Int64, Wire::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    let number = varint(&mut packed)?;
                    list.push(self.leaf(field, Wire::Number(number), depth)?);
                }
            }
            _ => list.push(self.leaf(field, wire, depth)?),
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
            return Ok((key, self.leaf(field, value, depth)?));
        }
        let mut list = Vec::new();
        for item in Fields(value.bytes()?) {
            if let (1, wire) = item? {
                self.items(field, wire, depth, &mut list)?;
            }
        }
        Ok((key, list.into()))
    }

    fn leaf(&mut self, field: &Field, wire: Wire<'_>, depth: usize) -> Result<Value> {
        self.state.count::<Fault>()?;
        Ok(match field.leaf {
            Leaf::String => wire.text()?.into(),
            Leaf::Bytes => STANDARD.encode(wire.bytes()?).into(),
            Leaf::Bool => (wire.number()? != 0).into(),
            Leaf::Int32 | Leaf::Int64 => wire.number()?.into(),
            Leaf::Double => double(wire.double()?),
            Leaf::Quantity => match last(wire.bytes()?, 1)? {
                Some(text) => text.text()?.into(),
                None => "0".into(),
            },
            Leaf::Time => time(wire.bytes()?, "%Y-%m-%dT%H:%M:%SZ")?,
            Leaf::MicroTime => time(wire.bytes()?, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
            Leaf::IntOrString => int_or_string(wire.bytes()?)?,
            Leaf::Any => match last(wire.bytes()?, 1)? {
                Some(json) => embedded(&mut self.state, depth, json.bytes()?)?,
                None => Value::Null,
            },
            Leaf::Struct(index) => self.structure(index, wire, depth)?,
            Leaf::Either(index) => self.either(field, index, wire.bytes()?, depth)?,
        })
    }

    fn structure(&mut self, index: usize, wire: Wire<'_>, depth: usize) -> Result<Value> {
        let mut object = Map::new();
        self.object(index, wire.bytes()?, depth.saturating_add(1), &mut object)?;
        // A whole object within another one, which has no envelope of its own.
        let kinds = &types().get(index).kinds;
        if let Some((api_version, kind)) = kinds.first().and_then(|of| of.rsplit_once('/')) {
            object.insert("apiVersion".into(), api_version.into());
            object.insert("kind".into(), kind.into());
        }
        Ok(Value::Object(object))
    }

    /// A message that holds one of several things: a struct, a list of them or of texts, or whether
    /// anything is allowed. What says the latter has its struct second, the others have it first.
    fn either(&mut self, of: &Field, index: usize, bytes: &[u8], depth: usize) -> Result<Value> {
        let (mut allows, mut list) = (None, Vec::new());
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Number(number)) => allows = Some(number != 0),
                (1, wire) => return self.structure(index, wire, depth),
                (2, wire) if allows.is_some() => return self.structure(index, wire, depth),
                (2, wire) if is_list_of_texts(of) => list.push(wire.text()?.into()),
                (2, wire) => list.push(self.structure(index, wire, depth)?),
                _ => {}
            }
        }
        Ok(allows.map_or_else(|| list.into(), Value::Bool))
    }
}

/// A floating-point number; a whole one has no decimal point in JSON, as Go writes it.
fn double(number: f64) -> Value {
    // What an f64 holds without a gap to the next whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.fract() == 0.0 && number.abs() <= EXACT {
        true => (number as i64).into(),
        false => number.into(),
    }
}

/// Seconds and nanoseconds since 1970; without either, no time at all.
fn time(bytes: &[u8], format: &str) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let part = |number| last(bytes, number)?.map_or(Ok(0), Wire::number);
    let (seconds, nanoseconds) = (part(1)?, part(2)?);
    let nanoseconds = i32::try_from(nanoseconds).map_err(Fault::custom)?;
    let since = SignedDuration::from_secs(seconds)
        .checked_add(SignedDuration::from_nanos(nanoseconds.into()))
        .ok_or_else(|| Fault::custom("a time that is out of range"))?;
    let time = EPOCH.checked_add(since).map_err(Fault::custom)?;
    match time.year() {
        ..0 => Err(Fault::custom("a time before the year 0")),
        _ if time == NO_TIME => Ok(Value::Null),
        _ => Ok(time.strftime(format).to_string().into()),
    }
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    const STRING: i64 = 1;
    Ok(match last(bytes, 1)?.map_or(Ok(0), Wire::number)? {
        STRING => last(bytes, 3)?.map_or(Ok(""), Wire::text)?.into(),
        _ => last(bytes, 2)?.map_or(Ok(0), Wire::number)?.into(),
    })
}
