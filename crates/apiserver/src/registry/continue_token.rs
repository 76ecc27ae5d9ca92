//! The `continue` of a chunked list: where to go on, and as of which revision.

use base64::{DecodeError, Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use longshore_store::Revision;
use serde::{Deserialize, Serialize};

use super::is_path_segment;
use crate::schema::{self, syntax_error};
use crate::status::StatusError;

const VERSION: &str = "meta.k8s.io/v1";

#[derive(Serialize, Deserialize)]
struct Token {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: Revision,
    #[serde(default)]
    start: String,
}

/// The revision of a token that goes on with whatever is there then.
const INCONSISTENT: Revision = -1;

/// A token to go on after `last_key`, which begins with `prefix`.
pub(super) fn encode(
    prefix: &str,
    last_key: &str,
    revision: Revision,
) -> Result<String, StatusError> {
    let relative = last_key.strip_prefix(prefix).unwrap_or(last_key);
    let token = Token { v: VERSION.into(), rv: revision, start: format!("{relative}\0") };
    serde_json::to_vec(&token)
        .map(|json| URL_SAFE_NO_PAD.encode(json))
        .map_err(StatusError::internal)
}

/// The token to go on from the same key, though with what is there now: of a list whose revision is
/// compacted.
pub(super) fn inconsistent(prefix: &str, start: &str) -> Result<String, StatusError> {
    let last_key = start.strip_suffix('\0').unwrap_or(start);
    encode(prefix, last_key, INCONSISTENT)
}

/// The key to start at, and the revision; 0 is the newest.
pub(super) fn decode(prefix: &str, token: &str) -> Result<(String, Revision), StatusError> {
    let invalid = |why: &str| {
        StatusError::bad_request(format!(
            "invalid continue token: continue key is not valid: {why}"
        ))
    };
    let token = read(token).map_err(|why| invalid(&why))?;
    let revision = match token.rv {
        INCONSISTENT => 0,
        revision if token.v == VERSION && revision > 0 => revision,
        _ if token.v == VERSION => {
            let why = format!("incorrect encoded start resourceVersion (version {VERSION})");
            return Err(invalid(&why));
        }
        _ => 0,
    };
    if token.v != VERSION {
        let version = schema::field::shortened(token.v);
        let why = format!("server does not recognize this encoded version {version}");
        return Err(invalid(&why));
    }
    // What a client sends back may have been tampered with: it must not lead out of the prefix.
    let relative = token.start.strip_suffix('\0').unwrap_or(&token.start);
    if !relative.split('/').all(is_path_segment) {
        return Err(invalid(&schema::field::shortened(token.start)));
    }
    Ok((format!("{prefix}{}", token.start), revision))
}

/// Whether a text is a token at all.
pub(crate) fn is_token(token: &str) -> bool {
    read(token).is_ok_and(|token| token.v == VERSION)
}

fn read(token: &str) -> Result<Token, String> {
    let json = URL_SAFE_NO_PAD.decode(token).map_err(|error| {
        let at = match error {
            // padding is no part of it
            _ if token.contains('=') => token.find('=').unwrap_or_default(),
            DecodeError::InvalidByte(at, _) => at,
            _ => token.len().saturating_sub(1) / 4 * 4,
        };
        format!("illegal base64 data at input byte {at}")
    })?;
    serde_json::from_slice(&json).map_err(|error| match syntax_error(&json) {
        Some(why) => why,
        None => error.to_string(),
    })
}
