//! Bytes to a JSON value, whatever the bytes are: nesting, the number of values and YAML aliases
//! are bounded, so a body can neither overflow the stack nor grow far beyond its own size.
//! One visitor reads both JSON and YAML.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::field::shortened;
use super::syntax;
use crate::status::StatusError;

/// The deepest nesting of a body or of a patched object; upstream's kinds stay below 30.
pub(crate) use longshore_api_types::protobuf::MAX_DEPTH;
/// The same for YAML, whose reader takes some 20 KiB of stack a level in a debug build.
const MAX_YAML_DEPTH: usize = 50;
/// The most values in one body: some 12 MiB of memory.
const MAX_VALUES: usize = 400_000;
/// The most non-empty maps in one body, each of which costs some 650 bytes however small it is.
const MAX_MAPS: usize = 60_000;
/// The most duplicate fields that are named.
pub(super) const MAX_NAMED_FIELDS: usize = 100;

/// A body, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value.
    pub value: Value,
    /// Paths of fields that occurred twice (the last one counts).
    pub duplicates: Vec<String>,
}

/// Media types of bodies that are objects.
pub const ACCEPTED: &[&str] =
    &["application/json", "application/yaml", super::protobuf::MEDIA_TYPE];

/// The media type without its parameters; a body without one is JSON.
pub(crate) fn media_type(content_type: Option<&str>) -> &str {
    match content_type.unwrap_or_default() {
        "" => "application/json",
        full => full.split(';').next().unwrap_or_default().trim(),
    }
}

/// Reads a JSON or YAML body. 415 for other content types, 400 for text that is neither, 413 for
/// more values than any real object has.
pub fn decode(body: &[u8], content_type: Option<&str>) -> Result<Decoded, StatusError> {
    match media_type(content_type).to_ascii_lowercase().as_str() {
        "application/json" => json(body).map_err(|error| match error.code {
            400 => StatusError::bad_request(format!("{NO_KIND}{}", error.message)),
            _ => error,
        }),
        "application/yaml" => yaml(body),
        _ => Err(StatusError::unsupported_media_type(ACCEPTED)),
    }
}

/// Begins what is said of JSON text that is no object of any kind.
pub(crate) const NO_KIND: &str = "couldn't get version/kind; json parse error: ";

/// Reads JSON. 400 for other text, with what is wrong with it.
pub(crate) fn json(body: &[u8]) -> Result<Decoded, StatusError> {
    let mut state = State::default();
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Node { state: &mut state, depth: 0 }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    state.finish(value.map_err(|e| syntax::error(body).unwrap_or_else(|| e.to_string())))
}

fn yaml(body: &[u8]) -> Result<Decoded, StatusError> {
    let mut state = State::default();
    let node = Node { state: &mut state, depth: 0 };
    let value =
        serde_saphyr::with_deserializer_from_slice_with_options(body, yaml_options(), |reader| {
            node.deserialize(reader)
        });
    state.finish(value.map_err(|e| format!("yaml: {e}")))
}

fn yaml_options() -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! {
        max_depth: MAX_YAML_DEPTH,
        flow_nesting_limit: MAX_YAML_DEPTH,
        max_nodes: MAX_VALUES,
        max_documents: 1,
        max_anchors: 1_000,
        max_aliases: 1_000,
        max_recorded_anchor_events: 100_000,
        max_recorded_anchor_bytes: 8 << 20,
        max_total_scalar_bytes: 16 << 20,
    };
    let mut options = serde_saphyr::Options::default();
    options.budget = budget;
    options.alias_limits.max_total_replayed_events = 100_000;
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    // `defaultMode: 0644` is octal to every Kubernetes client
    options.legacy_octal_numbers = true;
    // no text of the body in error messages: it may be a Secret
    options.with_snippet = false;
    options
}

/// JSON text within another body, at some depth of it; what is no JSON is null.
pub(super) fn embedded<E: de::Error>(
    state: &mut State,
    depth: usize,
    text: &[u8],
) -> Result<Value, E> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Node { state, depth }.deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    // of what is too much, nothing is left out in silence
    match value {
        Err(_) if state.is_exceeded() => Err(E::custom("too many values")),
        value => Ok(value.unwrap_or_default()),
    }
}

/// What one reading keeps track of.
#[derive(Default)]
pub(super) struct State {
    path: String,
    duplicates: Vec<String>,
    values: usize,
    maps: usize,
    /// Anything goes: it is in the store, and must be read.
    is_stored: bool,
}

impl State {
    pub(super) fn finish(self, read: Result<Value, String>) -> Result<Decoded, StatusError> {
        match read {
            Ok(value) => Ok(Decoded { value, duplicates: self.duplicates }),
            Err(_) if self.values > MAX_VALUES => {
                Err(StatusError::too_large(format!("the body holds more than {MAX_VALUES} values")))
            }
            Err(_) if self.maps > MAX_MAPS => {
                Err(StatusError::too_large(format!("the body holds more than {MAX_MAPS} maps")))
            }
            Err(why) => Err(StatusError::bad_request(why)),
        }
    }

    /// For a stored object, to which the fields of many managers may have been added.
    pub(super) fn of_stored() -> State {
        State { is_stored: true, ..State::default() }
    }

    fn is_exceeded(&self) -> bool {
        !self.is_stored && (self.values > MAX_VALUES || self.maps > MAX_MAPS)
    }

    pub(super) fn count<E: de::Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.is_exceeded() { Err(E::custom("too many values")) } else { Ok(()) }
    }

    /// A map gets its first entry.
    pub(super) fn count_map<E: de::Error>(&mut self) -> Result<(), E> {
        self.maps += 1;
        if self.is_exceeded() { Err(E::custom("too many maps")) } else { Ok(()) }
    }
}

/// One value at some depth.
struct Node<'s> {
    state: &'s mut State,
    depth: usize,
}

impl Node<'_> {
    fn child<E: de::Error>(&mut self) -> Result<Node<'_>, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!("exceeded max depth of {MAX_DEPTH}")));
        }
        Ok(Node { state: self.state, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.state.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let end = self.state.path.len();
        loop {
            let child = self.child()?;
            child.state.path.push_str(&format!("[{}]", list.len()));
            let Some(value) = seq.next_element_seed(child)? else { break };
            self.state.path.truncate(end);
            list.push(value);
        }
        self.state.path.truncate(end);
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let end = self.state.path.len();
        while let Some(key) = entries.next_key_seed(Key)? {
            if map.is_empty() {
                self.state.count_map()?;
            }
            if end > 0 {
                self.state.path.push('.');
            }
            self.state.path.push_str(&key);
            let value = entries.next_value_seed(self.child()?)?;
            if map.insert(key, value).is_some() && self.state.duplicates.len() < MAX_NAMED_FIELDS {
                let path = shortened(self.state.path.clone());
                if !self.state.duplicates.contains(&path) {
                    self.state.duplicates.push(path);
                }
            }
            self.state.path.truncate(end);
        }
        Ok(Value::Object(map))
    }
}

/// A map key; YAML's numbers and booleans become their text, as in upstream's YAML reader.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Key {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E>(self, v: bool) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_i64<E>(self, v: i64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_u64<E>(self, v: u64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_f64<E>(self, v: f64) -> Result<String, E> {
        Ok(v.to_string())
    }

    fn visit_str<E>(self, v: &str) -> Result<String, E> {
        Ok(v.to_owned())
    }

    fn visit_string<E>(self, v: String) -> Result<String, E> {
        Ok(v)
    }
}
