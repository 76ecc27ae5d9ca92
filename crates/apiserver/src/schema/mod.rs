//! What makes a request body an object: decoding and types ([`read`]), defaults
//! ([`apply_defaults`]), what a write may not touch ([`prepare_create`] and its sisters) and rules
//! ([`validate_create`] and its sisters). The registry calls them in that order.
//!
//! Current limitations: volumes other than those a node mounts by itself, Windows fields, affinity
//! and topology spread are checked for their types only.

mod certificates;
mod conform;
mod decode;
mod defaults;
mod events;
mod field;
mod names;
mod prepare;
mod protobuf;
mod qos;
pub(crate) mod quantity;
pub(crate) mod service;
mod validate;
pub(crate) mod value;

pub use conform::conform;
pub use decode::{ACCEPTED, Decoded, decode};
pub(crate) use decode::{MAX_DEPTH, json, media_type};
pub use defaults::apply_defaults;
pub use events::{from_storage, to_storage};
pub(crate) use field::{Causes, Path};
pub use names::is_dns_subdomain;
pub(crate) use names::{label_value, qualified};
pub(crate) use prepare::note_transition;
pub use prepare::{
    prepare_approval, prepare_create, prepare_ephemeral_containers, prepare_namespace_finalize,
    prepare_resize, prepare_status_update, prepare_update,
};
pub use validate::{
    validate_approval, validate_binding, validate_create, validate_ephemeral_containers,
    validate_resize, validate_status_update, validate_update,
};

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
    /// Reads the query parameter; absent or empty is `Warn`, anything unknown is 400.
    pub fn parse(text: Option<&str>) -> Result<Self, StatusError> {
        match text.unwrap_or_default() {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(StatusError::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
