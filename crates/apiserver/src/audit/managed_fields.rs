//! Objects without their `managedFields`, which are much of an object and little of an audit.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// An object without managed fields.
pub(super) fn removed(mut object: Value) -> Value {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.remove("managedFields");
    }
    object
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of an object, a list or a table without managed fields. Of a list, only one item at a time is
/// more than text. `None`: it is no such text.
pub(super) fn without(text: &[u8]) -> Option<Bytes> {
    let fields: BTreeMap<Key<'_>, &RawValue> = serde_json::from_slice(text).ok()?;
    let mut written = Vec::with_capacity(text.len());
    written.push(b'{');
    for (i, (Key(name), value)) in fields.iter().enumerate() {
        if i > 0 {
            written.push(b',');
        }
        serde_json::to_writer(&mut written, name).ok()?;
        written.push(b':');
        match name.as_ref() {
            "metadata" => {
                let mut metadata: Value = serde_json::from_str(value.get()).ok()?;
                if let Some(metadata) = metadata.as_object_mut() {
                    metadata.remove("managedFields");
                }
                serde_json::to_writer(&mut written, &metadata).ok()?;
            }
            "items" | "rows" if value.get().starts_with('[') => {
                write_items(&mut written, value, name == "rows")?;
            }
            _ => written.extend_from_slice(value.get().as_bytes()),
        }
    }
    written.push(b'}');
    Some(written.into())
}

fn write_items(written: &mut Vec<u8>, items: &RawValue, are_rows: bool) -> Option<()> {
    let items: Vec<&RawValue> = serde_json::from_str(items.get()).ok()?;
    written.push(b'[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            written.push(b',');
        }
        let mut item: Value = serde_json::from_str(item.get()).ok()?;
        match item.get_mut("object").filter(|_| are_rows) {
            Some(object) => *object = removed(std::mem::take(object)),
            None => item = removed(item),
        }
        serde_json::to_writer(&mut *written, &item).ok()?;
    }
    written.push(b']');
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn audit_omits_managed_fields_of_objects_lists_and_tables() {
        let object = |managed: bool| {
            let mut object =
                json!({"kind": "Pod", "metadata": {"name": "a\n\"b"}, "items\u{1}": {"x": 1}});
            if managed {
                object["metadata"]["managedFields"] = json!([{"manager": "m"}]);
            }
            object
        };
        let of = |managed: bool| {
            [
                object(managed),
                json!({"kind": "PodList", "metadata": {"resourceVersion": "1"},
                    "items": [object(managed), object(managed)]}),
                json!({"kind": "Table", "rows": [{"cells": ["a"], "object": object(managed)}]}),
                json!({"kind": "PodList", "items": []}),
            ]
        };
        for (given, expected) in of(true).iter().zip(of(false)) {
            let text = without(given.to_string().as_bytes()).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), expected);
        }
        assert!(without(b"text").is_none());
    }
}
