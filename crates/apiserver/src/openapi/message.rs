//! PURE: writes a JSON document as a message, by tables that name the keys and the numbers of their fields.
//! Keys that no table has are left out.

use serde_json::{Map, Value};

use crate::api_types::wire::{Result, Writer};

/// How a value is written into a field.
pub(super) enum Form {
    Text,
    Flag,
    Number,
    Double,
    /// A message `Any`, with the value as YAML, which JSON is.
    Any,
    /// An object of these keys.
    Message(fn() -> &'static [Field]),
    /// Each of a list.
    Each(&'static Form),
    /// An object of any keys: a message whose field of this number has a name and a value for each.
    Named(u32, &'static Form),
    /// A message of which this field is all there is.
    Inside(u32, &'static Form),
    /// What the value tells; `None`: it is left out.
    Choice(fn(&Value) -> Option<&'static Form>),
}

/// Key, number of the field, form of the value. The key `x-` stands for all that begin so.
pub(super) type Field = (&'static str, u32, Form);

/// The message of a document.
pub(super) fn encode(fields: &[Field], document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    // Only who writes can refuse a value, and nothing here does.
    let _: Result<()> = message(&mut out, fields, document);
    out.into_bytes()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn message(out: &mut Writer, fields: &[Field], value: &Value) -> Result<()> {
    for (key, value) in entries(value) {
        let is_extension = key.starts_with("x-");
        let wanted = if is_extension { "x-" } else { key };
        let Some((_, number, form)) = fields.iter().find(|(key, ..)| *key == wanted) else {
            continue;
        };
        match is_extension {
            true => named(out, *number, key, form, value)?,
            false => write(out, *number, form, value)?,
        }
    }
    Ok(())
}

fn named(out: &mut Writer, number: u32, name: &str, form: &Form, value: &Value) -> Result<()> {
    out.nested(number, |pair| {
        pair.bytes(1, name.as_bytes());
        write(pair, 2, form, value)
    })
}

fn write(out: &mut Writer, number: u32, form: &Form, value: &Value) -> Result<()> {
    match form {
        Form::Text => out.bytes(number, value.as_str().unwrap_or_default().as_bytes()),
        Form::Flag => out.number(number, i64::from(value.as_bool().unwrap_or_default())),
        Form::Number => out.number(number, value.as_i64().unwrap_or_default()),
        Form::Double => out.double(number, value.as_f64().unwrap_or_default()),
        Form::Any => out.nested(number, |any| {
            any.bytes(2, value.to_string().as_bytes());
            Ok(())
        })?,
        Form::Message(fields) => out.nested(number, |inner| message(inner, fields(), value))?,
        Form::Each(form) => {
            for one in value.as_array().into_iter().flatten() {
                write(out, number, form, one)?;
            }
        }
        Form::Named(inside, form) => out.nested(number, |inner| {
            entries(value).try_for_each(|(key, value)| named(inner, *inside, key, form, value))
        })?,
        Form::Inside(inside, form) => {
            out.nested(number, |inner| write(inner, *inside, form, value))?;
        }
        Form::Choice(choose) => {
            if let Some(form) = choose(value) {
                write(out, number, form, value)?;
            }
        }
    }
    Ok(())
}

/// For tests: the bytes of a field below 128 whose content is shorter than that.
#[cfg(test)]
pub(super) fn field(number: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let [low, high, ..] = (number << 3 | 2).to_le_bytes();
    let mut bytes = match (low, high) {
        (0..0x80, 0) => vec![low],
        // seven bits a byte
        _ => vec![low | 0x80, high << 1 | low >> 7],
    };
    bytes.push(u8::try_from(content.len()).unwrap_or(u8::MAX));
    bytes.extend(content);
    bytes
}

/// For tests: the keys of a document that no table has.
#[cfg(test)]
pub(super) fn left_out(fields: &[Field], document: &Value) -> std::collections::BTreeSet<String> {
    let mut found = std::collections::BTreeSet::new();
    for (key, value) in entries(document).filter(|(key, _)| !key.starts_with("x-")) {
        match fields.iter().find(|(known, ..)| known == key) {
            Some((.., form)) => left_out_of(form, value, &mut found),
            None => drop(found.insert(key.clone())),
        }
    }
    found
}

#[cfg(test)]
fn left_out_of(form: &Form, value: &Value, found: &mut std::collections::BTreeSet<String>) {
    match form {
        Form::Message(fields) => found.extend(left_out(fields(), value)),
        Form::Each(form) => {
            for one in value.as_array().into_iter().flatten() {
                left_out_of(form, one, found);
            }
        }
        Form::Named(_, form) => entries(value).for_each(|(_, one)| left_out_of(form, one, found)),
        Form::Inside(_, form) => left_out_of(form, value, found),
        Form::Choice(choose) => {
            if let Some(form) = choose(value) {
                left_out_of(form, value, found);
            }
        }
        Form::Text | Form::Flag | Form::Number | Form::Double | Form::Any => {}
    }
}
