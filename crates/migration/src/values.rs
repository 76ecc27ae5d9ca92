//! Reading of JSON values.

use serde_json::Value;

/// A text, empty if it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The texts in a list.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}
