//! Objects as YAML that every reader takes for the same: texts are plain only where no version of YAML sees
//! anything else in them.

use std::fmt::Write;

use serde_json::{Map, Value};

/// Writes a value, with the keys of maps in order.
pub(super) fn write(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut text, map, 0),
        Value::Array(list) if !list.is_empty() => items(&mut text, list, 0),
        scalar => {
            inline(&mut text, scalar);
            text.push('\n');
        }
    }
    text
}

fn entries(text: &mut String, map: &Map<String, Value>, depth: usize) {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_unstable();
    for (index, key) in keys.into_iter().enumerate() {
        if index > 0 {
            indent(text, depth);
        }
        string(text, key);
        text.push(':');
        nested(text, &map[key.as_str()], depth);
    }
}

fn items(text: &mut String, list: &[Value], depth: usize) {
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            indent(text, depth);
        }
        text.push('-');
        match item {
            Value::Object(map) if !map.is_empty() => {
                text.push(' ');
                entries(text, map, depth.saturating_add(1));
            }
            Value::Array(list) if !list.is_empty() => {
                text.push(' ');
                items(text, list, depth.saturating_add(1));
            }
            scalar => last(text, scalar),
        }
    }
}

/// What is below a key. Lists stand as deep as their key.
fn nested(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            indent(text, depth.saturating_add(1));
            entries(text, map, depth.saturating_add(1));
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            indent(text, depth);
            items(text, list, depth);
        }
        scalar => last(text, scalar),
    }
}

fn last(text: &mut String, scalar: &Value) {
    text.push(' ');
    inline(text, scalar);
    text.push('\n');
}

fn indent(text: &mut String, depth: usize) {
    for _ in 0..depth {
        text.push_str("  ");
    }
}

/// A value without parts.
fn inline(text: &mut String, value: &Value) {
    match value {
        Value::String(content) => string(text, content),
        // as JSON, which is YAML
        other => drop(write!(text, "{other}")),
    }
}

fn string(text: &mut String, content: &str) {
    if is_plain(content) {
        return text.push_str(content);
    }
    // JSON's quotes and escapes are YAML's, but for characters that end a line there.
    let quoted = Value::from(content).to_string();
    for character in quoted.chars() {
        match character {
            '\u{7f}'..='\u{a0}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            other => text.push(other),
        }
    }
}

/// Whether a text is one without quotes, too.
fn is_plain(content: &str) -> bool {
    /// Other values, to some reader.
    const OTHERS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    content.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && content.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !OTHERS.iter().any(|other| content.eq_ignore_ascii_case(other))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_of_objects() {
        let object = json!({
            "kind": "Pod",
            "metadata": {"name": "a", "labels": {}, "annotations": {"on": "yes", "1": "0x1"}},
            "spec": {"list": [{"b": 1, "a": [true, null]}, [], [[1, 2]], "x: y"], "empty": []},
        });
        let expected = "kind: Pod\nmetadata:\n  annotations:\n    \"1\": \"0x1\"\n    \"on\": \"yes\"\n  \
                        labels: {}\n  name: a\nspec:\n  empty: []\n  list:\n  - a:\n    - true\n    - null\n    \
                        b: 1\n  - []\n  - - - 1\n      - 2\n  - \"x: y\"\n";
        assert_eq!(write(&object), expected);
        assert_eq!(write(&json!({})), "{}\n");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            ".{0,8}".prop_map(Value::from),
            "[-:#yesno0-9.e+~ x]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[-a-z0-9:# ]{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_is_read_as_it_was_written(value in value()) {
            let text = write(&value);
            let read = crate::schema::decode(text.as_bytes(), Some("application/yaml"));
            prop_assert_eq!(read.map(|read| read.value).map_err(|e| e.message), Ok(value), "{}", text);
        }
    }
}
