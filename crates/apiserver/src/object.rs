//! Reading and writing the metadata of API objects, which are plain JSON values everywhere in this crate.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// `metadata.name`, empty when absent.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "name")
}

/// `metadata.namespace`, empty when absent.
pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// `metadata.uid`, empty when absent.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// `metadata.resourceVersion`, empty when absent.
pub(crate) fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// Whether a deletion has begun.
pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether something must still happen before the object may go.
pub(crate) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// `metadata`, made when absent. A value that is no object becomes one: bodies are checked before they get here.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// A field that is an object, made when absent.
pub(crate) fn child_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    as_map_mut(as_map_mut(object).entry(field).or_insert_with(|| json!({})))
}

fn as_map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// Takes fields of the metadata from another one.
pub(crate) fn keep(object: &mut Value, other: &Value, fields: &[&str]) {
    let metadata = metadata_mut(object);
    for field in fields {
        match other.get(field) {
            Some(value) => metadata.insert((*field).to_owned(), value.clone()),
            None => metadata.remove(*field),
        };
    }
}

/// Sets `metadata.resourceVersion`.
pub(crate) fn set_resource_version(object: &mut Value, revision: i64) {
    metadata_mut(object).insert("resourceVersion".into(), revision.to_string().into());
}

/// Now, as API objects show it: whole seconds.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A random (version 4) UUID.
pub(crate) fn new_uid() -> Result<String, getrandom::Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// A name made from a `generateName`: five letters and digits that form no word, within 63 characters.
pub(crate) fn generated_name(base: &str) -> Result<String, getrandom::Error> {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const RANDOM: usize = 5;
    const MAX_NAME: usize = 63;
    let mut random = [0u8; RANDOM];
    getrandom::fill(&mut random)?;
    let mut end = base.len().min(MAX_NAME - RANDOM);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let letters =
        random.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    Ok(base[..end].chars().chain(letters).collect())
}
