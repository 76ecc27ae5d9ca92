//! JSON Web Tokens in their compact form: `header.payload.signature`, each in base64.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};

use super::Error;
use super::keys::{PublicKey, SigningKey};

/// Longer than any token that fits a request's headers.
const MAX_TOKEN: usize = 64 << 10;

#[derive(Deserialize, Serialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Extensions that a reader must understand; we know none.
    #[serde(default, skip_serializing)]
    crit: Option<serde_json::Value>,
}

/// Signs claims, which are JSON.
pub(super) fn sign(key: &SigningKey, claims: &[u8]) -> Result<String, Error> {
    let public = key.public();
    let header = Header { alg: public.algorithm().into(), kid: public.id().into(), crit: None };
    let header = serde_json::to_vec(&header).map_err(|_| Error::Signing)?;
    let mut token = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = key.sign(token.as_bytes()).ok_or(Error::Signing)?;
    token.push('.');
    BASE64.encode_string(signature, &mut token);
    Ok(token)
}

/// The claims of a token that the holder of one of the keys has signed. Nothing of a token is
/// believed before; in particular, the key decides on the algorithm.
pub(super) fn verify(token: &str, keys: &[PublicKey]) -> Result<Vec<u8>, Error> {
    if token.len() > MAX_TOKEN {
        return Err(Error::NotAToken);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(Error::NotAToken)?;
    let (header, payload) = message.split_once('.').ok_or(Error::NotAToken)?;
    let decode = |text: &str| BASE64.decode(text).map_err(|_| Error::NotAToken);
    let header = decode(header)?;
    // A list of its values would read as a header too.
    let header: Header = match header.first() {
        Some(b'{') => serde_json::from_slice(&header).map_err(|_| Error::NotAToken)?,
        _ => return Err(Error::NotAToken),
    };
    // A further dot is no letter of base64.
    let (payload, signature) = (decode(payload)?, decode(signature)?);
    if header.crit.is_some() {
        return Err(Error::NotAToken);
    }
    let mut candidates = keys
        .iter()
        .filter(|key| header.kid.is_empty() || header.kid == key.id())
        .filter(|key| header.alg == key.algorithm())
        .peekable();
    if candidates.peek().is_none() {
        return Err(Error::NoKey);
    }
    match candidates.any(|key| key.verifies(message.as_bytes(), &signature)) {
        true => Ok(payload),
        false => Err(Error::Signature),
    }
}
