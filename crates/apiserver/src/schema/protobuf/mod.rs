//! Protobuf, which Go clients send and take for built-in kinds, and in which etcd holds them: an
//! envelope that names the kind, and in it the object. Objects become the same JSON values as any
//! other body, and go the same way. They are written by crate api-types.

mod decode;

use longshore_api_types::protobuf::MAGIC;
use longshore_api_types::protobuf::wire::{Fault, Fields, Result};
pub(crate) use longshore_api_types::protobuf::{
    ListWriter, encode, encode_any, encode_range, watch_frame,
};
use serde::de::Error as _;
use serde_json::{Map, Value};

use self::decode::Reader;
use super::conform::check_kind;
use super::decode::{Decoded, State};
use super::unrecognized;
use crate::api_types::{Gvk, types};
use crate::status::StatusError;

/// The media type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Whether bytes are an object in protobuf, as far as their first ones say.
pub(crate) fn is_protobuf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads an object of this kind. 400 for bytes that are none, or one of another kind; 413 for more
/// values than any real object has.
pub(super) fn decode(gvk: Gvk, body: &[u8]) -> Result<Decoded, StatusError> {
    let refuse = |why: Fault| StatusError::bad_request(format!("protobuf: {why}"));
    let Some(envelope) = body.strip_prefix(MAGIC) else {
        let error = StatusError::bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        );
        return Err(unrecognized(gvk, body, error));
    };
    let (mut object, raw) = open(envelope).map_err(refuse)?;
    // Checked before the rest is read: the fields of another kind would make no sense.
    check_kind(gvk, &mut object)?;
    let index = types()
        .index_of(gvk)
        .ok_or_else(|| StatusError::internal(format!("no type for {}", gvk.kind)))?;
    let mut reader = Reader::default();
    let read = reader.object(index, raw, 0, &mut object);
    reader.state.finish(
        read.map(|()| Value::Object(object))
            .map_err(|why| format!("couldn't read the protobuf body: {why}")),
    )
}

/// Reads an object of whatever kind its envelope names. `kind_of` gives the kind of which the fields
/// are, for one that is stored under another version. The error says what is wrong with the bytes.
pub(crate) fn decode_any(
    bytes: &[u8],
    kind_of: impl FnOnce(&str, &str) -> (String, String),
) -> Result<Value, String> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or("not a protobuf object")?;
    let (mut object, raw) = open(envelope).map_err(|why| why.to_string())?;
    let given = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = kind_of(given("apiVersion"), given("kind"));
    let index = types()
        .of_kind(&api_version, &kind)
        .ok_or_else(|| format!("unknown kind {kind:?} in version {api_version:?}"))?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    let mut reader = Reader { state: State::of_stored() };
    let read = reader.object(index, raw, 0, &mut object);
    read.map(|()| Value::Object(object)).map_err(|why| why.to_string())
}

/// The version and the kind that an object says it is of.
pub(crate) fn kind_of(bytes: &[u8]) -> Result<(String, String), String> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or("not a protobuf object")?;
    let (object, _) = open(envelope).map_err(|why| why.to_string())?;
    let given = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    Ok((given("apiVersion").to_owned(), given("kind").to_owned()))
}

/// The range and the number of a `RangeAllocation`.
pub(crate) fn decode_range(bytes: &[u8]) -> Result<(String, Vec<u8>), String> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or("not a protobuf object")?;
    let read = || {
        let (object, raw) = open(envelope)?;
        if object.get("kind").and_then(Value::as_str) != Some("RangeAllocation") {
            return Err(Fault::custom("not a RangeAllocation"));
        }
        let (mut range, mut data) = (String::new(), Vec::new());
        for field in Fields(raw) {
            match field? {
                (2, wire) => wire.text()?.clone_into(&mut range),
                (3, wire) => data = wire.bytes()?.to_vec(),
                _ => {}
            }
        }
        Ok((range, data))
    };
    read().map_err(|why| why.to_string())
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
