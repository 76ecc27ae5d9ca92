//! JSON text to [`Value`] and back.
//!
//! Programs are optimised for size; a list of objects is read and written here, and this crate (with
//! serde_json) is optimised for speed. These functions are not generic, so that their code is made
//! with this crate's options and not with those of whoever calls them. Those of [`decode`] are generic.

pub mod decode;
mod object;

pub use object::Object;

use serde_json::{Error, Value};

/// Reads a value.
///
/// # Errors
///
/// The text is not one JSON value, or is nested deeper than 128 levels.
pub fn read(text: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(text)
}

/// Appends a value's text.
///
/// # Errors
///
/// None is known: a [`Value`] can be written.
pub fn append(text: &mut Vec<u8>, value: &Value) -> Result<(), Error> {
    serde_json::to_writer(text, value)
}

/// A value's text.
///
/// # Errors
///
/// As of [`append`].
pub fn write(value: &Value) -> Result<Vec<u8>, Error> {
    let mut text = Vec::with_capacity(512);
    append(&mut text, value)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_they_were_read() {
        let value = json!({"a": [1, -2, 1.5, "\u{1}\"ü", null, true], "b": {}});
        assert_eq!(read(&write(&value).unwrap()).unwrap(), value);
        assert!(read(b"{} x").is_err());
    }
}
