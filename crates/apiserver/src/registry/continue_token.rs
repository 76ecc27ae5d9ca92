//! The `continue` of a chunked list: where to go on, and as of which revision.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use longshore_store::Revision;
use serde::{Deserialize, Serialize};

use super::is_path_segment;
use crate::status::StatusError;

const VERSION: &str = "meta.k8s.io/v1";

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: Revision,
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
    let invalid = || StatusError::bad_request("continue key is not valid");
    let json = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| invalid())?;
    let token: Token = serde_json::from_slice(&json).map_err(|_| invalid())?;
    // What a client sends back may have been tampered with: it must not lead out of the prefix.
    let relative = token.start.strip_suffix('\0').unwrap_or(&token.start);
    let revision = if token.rv == INCONSISTENT { 0 } else { token.rv };
    let is_valid = token.rv > 0 || token.rv == INCONSISTENT;
    if token.v != VERSION || !is_valid || !relative.split('/').all(is_path_segment) {
        return Err(invalid());
    }
    Ok((format!("{prefix}{}", token.start), revision))
}
