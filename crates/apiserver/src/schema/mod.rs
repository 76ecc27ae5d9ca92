//! What makes a request body an object: decoding and types ([`read`]), and the parts of which the
//! rules of kinds are made: names, quantities, field paths, values.

mod conform;
mod decode;
pub(crate) mod field;
pub(crate) mod names;
mod printed;
pub(crate) mod protobuf;
pub(crate) mod quantity;
pub(crate) mod resources;
pub(crate) mod service;
mod syntax;
pub(crate) mod value;

pub use conform::conform;
pub(crate) use conform::{check_type_meta, conform_metadata, internal_package, word};
pub(crate) use decode::NO_KIND;
pub use decode::{ACCEPTED, Decoded, decode};
pub(crate) use decode::{MAX_DEPTH, json, media_type};
pub(crate) use field::{Causes, Path};
pub use names::is_dns_subdomain;
pub(crate) use names::{label_value, qualified};
pub(crate) use printed::{printed, quoted, type_of};
pub(crate) use syntax::error as syntax_error;

use crate::api_types::Gvk;
use crate::status::{Cause, StatusError, unsupported};

/// Reads a body as an object of this kind: [`decode`] or its protobuf sister, then [`conform`].
/// Returns the object and warnings for the client.
pub fn read(
    gvk: Gvk,
    body: &[u8],
    content_type: Option<&str>,
    validation: FieldValidation,
) -> Result<(serde_json::Value, Vec<String>), StatusError> {
    let decoded = match media_type(content_type) {
        protobuf::MEDIA_TYPE => protobuf::decode(gvk, body)?,
        _ => recognized(gvk, body, content_type)?,
    };
    conform(gvk, decoded, validation)
}

/// Reads a body of JSON or YAML whose kind can be read too.
pub(crate) fn recognized(
    gvk: Gvk,
    body: &[u8],
    content_type: Option<&str>,
) -> Result<Decoded, StatusError> {
    let decoded = decode(body, content_type).and_then(|decoded| {
        check_type_meta(&decoded.value)?;
        Ok(decoded)
    });
    decoded.map_err(|error| unrecognized(gvk, body, error))
}

/// The refusal of a body of which no kind is known.
pub(crate) fn unrecognized(gvk: Gvk, body: &[u8], error: StatusError) -> StatusError {
    if error.code != 400 || gvk == Gvk::DELETE_OPTIONS {
        return error;
    }
    StatusError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {} ({})",
        gvk.kind,
        error.message,
        summary(body)
    ))
}

/// How a body begins: as it is if it is JSON, else in hexadecimal.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let shown = body.get(..SHOWN).unwrap_or(body);
    let text = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if shown.len() < body.len() { format!("{text} ...") } else { text }
}

/// What to do about unknown and duplicate fields (`fieldValidation` in the query).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them.
    Ignore,
    /// Drop them and say so in a warning.
    #[default]
    Warn,
    /// Refuse the request.
    Strict,
}

impl FieldValidation {
    /// Reads the query parameter; absent or empty is `Warn`, anything unknown is the cause of a refusal.
    pub fn parse(text: Option<&str>) -> Result<Self, Cause> {
        match text.unwrap_or_default() {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(unsupported(
                "fieldValidation",
                &format!("{other:?}"),
                &["", "Ignore", "Strict", "Warn"],
            )),
        }
    }
}
