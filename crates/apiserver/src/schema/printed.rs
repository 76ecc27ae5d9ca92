//! JSON values as Go prints them: some of upstream's messages repeat values so.

use serde_json::Value;

/// A value as `%v` has it: texts as they are, maps by sorted keys.
pub(crate) fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(printed).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            let entry = |key: &&String| format!("{key}:{}", printed(&map[key.as_str()]));
            let entries: Vec<String> = keys.iter().map(entry).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A text in quotes, as `%q` has it.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0b' => quoted.push_str("\\v"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\0'..'\x20' | '\x7f' => quoted.push_str(&format!("\\x{:02x}", u32::from(character))),
            '\u{80}'..'\u{a1}' | '\u{ad}' => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// The type of a value, as `%T` has it.
pub(crate) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_as_go_prints_them() {
        let value = json!({"b": [1, "x y", null], "a": {"c": true, "d": 1.5}, "e": {}, "f": []});
        assert_eq!(printed(&value), "map[a:map[c:true d:1.5] b:[1 x y <nil>] e:map[] f:[]]");
        assert_eq!(type_of(&json!(1)), "int64");
        assert_eq!(type_of(&json!({})), "map[string]interface {}");
    }
}
