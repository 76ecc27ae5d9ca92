//! Broken rules, with upstream's field paths and words.

use serde_json::Value;

/// What kind of rule is broken.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A value that must be there is not.
    Required,
    /// A value is wrong.
    Invalid,
    /// A value is of another type.
    TypeInvalid,
    /// A value is none of these.
    NotSupported(Vec<String>),
    /// A text is longer than this many bytes.
    TooLong(i64),
    /// A list or map has this many entries, and may have that many.
    TooMany(i64, i64),
    /// A value occurs twice.
    Duplicate,
    /// A value may not be there.
    Forbidden,
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// What is broken.
    pub kind: Kind,
    /// The path of the field; empty for the whole object.
    pub path: String,
    /// The value, where one is named.
    pub value: Option<Value>,
    /// What is wrong with it.
    pub detail: String,
}

impl FieldError {
    pub(crate) fn new(
        kind: Kind,
        path: &str,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> FieldError {
        // A path that starts at the root has no name in front of its first dot.
        let path = path.strip_prefix('.').unwrap_or(path).to_owned();
        FieldError { kind, path, value: Some(value.into()), detail: detail.into() }
    }
}
