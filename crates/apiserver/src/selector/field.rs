//! Field selectors: `a=b,c!=d` on the few fields that each resource offers.

use std::borrow::Cow;

use serde_json::Value;

use crate::api_types::Resource;
use crate::schema::value::text;
use crate::status::StatusError;

/// All of its terms must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    /// The field as the shown object has it.
    field: &'static str,
    equal: bool,
    value: String,
}

const META: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl FieldSelector {
    /// Reads a selector; 400 when it cannot, or when the resource does not offer a field.
    pub fn parse(resource: &Resource, text: &str) -> Result<Self, StatusError> {
        let mut terms = Vec::new();
        for term in read_terms(text) {
            super::check_count(terms.len()).map_err(StatusError::bad_request)?;
            let (name, equal, value) = term?;
            if name.is_empty() && value.is_empty() {
                continue;
            }
            terms.push(Term { field: known(resource, name)?, equal, value });
        }
        Ok(Self(terms))
    }

    /// The text of a selector of one name.
    #[must_use]
    pub fn of_name(name: &str) -> String {
        let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        format!("metadata.name={escaped}")
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that it requires, if any (`metadata.name=x`).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.exact("metadata.name")
    }

    /// The value that `=` requires of this field.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }

    /// Whether the fields of this object match, as its resource shows it.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| (read(object, term.field) == term.value.as_str()) == term.equal)
    }
}

/// The `field=value` terms of a selector, whatever its fields are: what a decision about a list may
/// rely on. It is read by the same rules as for the list itself, escapes included.
pub fn equalities(text: &str) -> Result<Vec<(String, String)>, StatusError> {
    let terms: Vec<_> = read_terms(text).collect::<Result<_, _>>()?;
    let equal = terms.into_iter().filter(|(_, equal, _)| *equal);
    Ok(equal.map(|(field, _, value)| (field.to_owned(), value)).collect())
}

/// Field, whether equal, and value of each term; 400 for one that cannot be read.
fn read_terms(text: &str) -> impl Iterator<Item = Result<(&str, bool, String), StatusError>> {
    split_terms(text).into_iter().map(move |term| {
        let (name, equal, value) = split_term(term).ok_or_else(|| {
            StatusError::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{term}'"
            ))
        })?;
        let value = unescape(value).map_err(StatusError::bad_request)?.into_owned();
        Ok((name, equal, value))
    })
}

fn known(resource: &Resource, name: &str) -> Result<&'static str, StatusError> {
    let offered = resource.fields;
    // Kinds of the cluster that have fields of their own have no namespace.
    let lacks =
        name == META[1] && !resource.namespaced && offered.is_some() && resource.custom.is_none();
    if let Some(field) = META.into_iter().find(|f| *f == name && !lacks) {
        return Ok(field);
    }
    if let Some((_, field)) = offered.unwrap_or_default().iter().find(|(known, _)| *known == name) {
        return Ok(field);
    }
    Err(StatusError::bad_request(match offered {
        Some(_) => match resource.kind {
            "Job" => format!("field label {name:?} not supported for Job"),
            "ResourceSlice" => {
                let version = resource.gvk().api_version();
                format!("field label not supported for {version}, Kind=ResourceSlice: {name}")
            }
            _ => format!("field label not supported: {name}"),
        },
        None => {
            format!(
                "{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            )
        }
    }))
}

/// The field's value as text; absent is empty, and false for the fields that are true or false.
fn read<'a>(object: &'a Value, field: &str) -> Cow<'a, str> {
    if field == "source" {
        let component = text(&object["source"]["component"]);
        let reporter = text(&object["reportingComponent"]);
        return Cow::Borrowed(if component.is_empty() { reporter } else { component });
    }
    let value = field.split('.').fold(object, |value, step| &value[step]);
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Null if matches!(field, "spec.unschedulable" | "spec.hostNetwork") => {
            Cow::Borrowed("false")
        }
        Value::Null if matches!(field, "status.replicas" | "status.succeeded") => {
            Cow::Borrowed("0")
        }
        Value::Null => Cow::Borrowed(""),
        other => Cow::Owned(other.to_string()),
    }
}

/// Splits at commas that no backslash precedes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms.retain(|term| !term.is_empty());
    terms
}

/// Field, whether equal, and the value still escaped.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find('=')?;
    let (left, right) = (&term[..at], &term[at + 1..]);
    match (left.strip_suffix('!'), right.strip_prefix('=')) {
        (Some(name), _) => Some((name, false, right)),
        (None, Some(value)) => Some((left, true, value)),
        (None, None) => Some((left, true, right)),
    }
}

fn unescape(value: &str) -> Result<Cow<'_, str>, String> {
    if !value.contains(['\\', ',', '=']) {
        return Ok(Cow::Borrowed(value));
    }
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                other => {
                    let sequence: String = other.into_iter().collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    ));
                }
            },
            ',' | '=' => {
                let code = u32::from(c);
                return Err(format!(
                    "invalid field selector: unescaped character in value: {code}"
                ));
            }
            c => plain.push(c),
        }
    }
    Ok(Cow::Owned(plain))
}
