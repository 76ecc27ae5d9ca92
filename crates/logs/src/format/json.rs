//! A line in the format of Docker's `json-file` driver.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::{Head, Part};

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default)]
    log: Text,
    #[serde(default, borrow)]
    stream: Cow<'a, str>,
    #[serde(default, borrow)]
    time: Cow<'a, str>,
}

/// The parts of a line; none, if it is invalid or empty.
pub(super) fn parse<E>(
    line: &[u8],
    mut take: impl FnMut(Part<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let Ok(Line { log: Text(log), stream, time }) = serde_json::from_slice(line) else {
        return Ok(());
    };
    if log.is_empty() {
        return Ok(());
    }
    let whole = log.strip_suffix(b"\n");
    let Some(head) = Head::new(time.as_bytes(), stream.as_bytes(), whole.is_none()) else {
        return Ok(());
    };
    take(Part::Head(head))?;
    match whole.unwrap_or(&log) {
        b"" => {}
        text => take(Part::Text(text))?,
    }
    take(Part::End)
}

/// The output of a container. It may not be valid text, so that not all escapes are characters.
#[derive(Default)]
struct Text(Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned().into_bytes()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
