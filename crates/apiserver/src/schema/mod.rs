//! What makes a request body an object: decoding and types ([`read`]), and the parts of which the
//! rules of kinds are made: names, quantities, field paths, values.

mod conform;
mod decode;
pub(crate) mod field;
pub(crate) mod names;
pub(crate) mod protobuf;
pub(crate) mod quantity;
pub(crate) mod service;
pub(crate) mod value;

pub use conform::conform;
pub(crate) use conform::{check_kind, conform_metadata};
pub use decode::{ACCEPTED, Decoded, decode};
pub(crate) use decode::{MAX_DEPTH, json, media_type};
pub(crate) use field::{Causes, Path};
pub use names::is_dns_subdomain;
pub(crate) use names::{label_value, qualified};

use crate::api_types::Gvk;
use crate::status::StatusError;

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
        _ => decode(body, content_type)?,
    };
    conform(gvk, decoded, validation)
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
    /// Reads the query parameter; absent or empty is `Warn`, anything unknown is 422 of those `options`.
    pub fn parse(options: &str, text: Option<&str>) -> Result<Self, StatusError> {
        match text.unwrap_or_default() {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(StatusError::unsupported_option(
                options,
                "fieldValidation",
                &format!("{other:?}"),
                &["", "Ignore", "Strict", "Warn"],
            )),
        }
    }
}
