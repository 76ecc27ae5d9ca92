//! Field paths and the list of broken rules that validation collects.

use std::fmt;

use serde::Serialize;

use crate::status::Cause;

/// The path of a field, for example `spec.containers[0].name`. It borrows its parents, so walking
/// an object costs no allocation until a rule is broken.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub(crate) fn root(name: &'a str) -> Self {
        Self { parent: None, step: Step::Name(name) }
    }

    pub(crate) fn child(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Name(name) }
    }

    pub(crate) fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(index) }
    }

    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Name(name) if self.parent.is_some() => write!(f, ".{name}"),
            Step::Name(name) => f.write_str(name),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// Broken rules, in the order found.
#[derive(Debug, Default)]
pub(crate) struct Causes(pub(crate) Vec<Cause>);

/// No object needs more than these many complaints: what is said stays far smaller than the body.
const MAX_CAUSES: usize = 100;
/// The longest value that a message repeats, in bytes.
const MAX_ECHO: usize = 1024;

impl Causes {
    fn push(
        &mut self,
        path: &Path<'_>,
        reason: &'static str,
        what: &str,
        detail: impl fmt::Display,
    ) {
        if self.0.len() >= MAX_CAUSES {
            return;
        }
        let detail = detail.to_string();
        let message = if detail.is_empty() { what.to_owned() } else { format!("{what}: {detail}") };
        self.0.push(Cause { reason, message, field: shortened(path.to_string()) });
    }

    fn push_value(
        &mut self,
        path: &Path<'_>,
        reason: &'static str,
        what: &str,
        value: &(impl Serialize + ?Sized),
        detail: impl fmt::Display,
    ) {
        if self.0.len() >= MAX_CAUSES {
            return;
        }
        let value = shortened(serde_json::to_string(value).unwrap_or_default());
        self.push(path, reason, &format!("{what}: {value}"), detail);
    }

    pub(crate) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, "FieldValueRequired", "Required value", detail);
    }

    pub(crate) fn invalid(
        &mut self,
        path: &Path<'_>,
        value: &(impl Serialize + ?Sized),
        detail: impl fmt::Display,
    ) {
        self.push_value(path, "FieldValueInvalid", "Invalid value", value, detail);
    }

    /// One that does not repeat the value.
    pub(crate) fn invalid_whole(&mut self, path: &Path<'_>, detail: impl fmt::Display) {
        self.push(path, "FieldValueInvalid", "Invalid value", detail);
    }

    pub(crate) fn not_supported(
        &mut self,
        path: &Path<'_>,
        value: &(impl Serialize + ?Sized),
        supported: &[&str],
    ) {
        let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push_value(path, "FieldValueNotSupported", "Unsupported value", value, detail);
    }

    pub(crate) fn duplicate(
        &mut self,
        path: &Path<'_>,
        value: &(impl Serialize + ?Sized),
        detail: &str,
    ) {
        self.push_value(path, "FieldValueDuplicate", "Duplicate value", value, detail);
    }

    pub(crate) fn not_found(&mut self, path: &Path<'_>, value: &str) {
        self.push_value(path, "FieldValueNotFound", "Not found", value, "");
    }

    pub(crate) fn not_found_because(
        &mut self,
        path: &Path<'_>,
        value: &str,
        detail: impl fmt::Display,
    ) {
        self.push_value(path, "FieldValueNotFound", "Not found", value, detail);
    }

    pub(crate) fn forbidden(&mut self, path: &Path<'_>, detail: impl fmt::Display) {
        self.push(path, "FieldValueForbidden", "Forbidden", detail);
    }

    pub(crate) fn too_long(&mut self, path: &Path<'_>, limit: usize) {
        self.push(
            path,
            "FieldValueTooLong",
            "Too long",
            format!("may not be more than {limit} bytes"),
        );
    }

    pub(crate) fn too_many(&mut self, path: &Path<'_>, count: usize, limit: usize) {
        let detail = format!("must have at most {limit} items");
        self.push_value(path, "FieldValueTooMany", "Too many", &count, detail);
    }

    /// One `invalid` per message of a name check.
    pub(crate) fn each(&mut self, path: &Path<'_>, value: &str, messages: Vec<String>) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }
}

/// The text, cut where it is too long to repeat.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_ECHO {
        text.truncate(text.floor_char_boundary(MAX_ECHO));
        text.push('…');
    }
    text
}
