//! What others need in order to verify tokens by themselves: OpenID Connect discovery.

use std::collections::BTreeSet;

use hyper::Uri;
use serde_json::{Value, json};

use super::keys::PublicKey;

/// Where the metadata is served.
pub(crate) const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// Where the keys are served.
pub(crate) const KEY_SET_PATH: &str = "/openid/v1/jwks";

/// The provider's metadata. `None` for an issuer that is no `https` address, or for keys that are at
/// none: discovery is not possible for it.
pub(super) fn configuration(
    issuer: &str,
    jwks_uri: Option<&str>,
    authority: &str,
    keys: &[PublicKey],
) -> Option<Value> {
    let own = format!("https://{authority}{KEY_SET_PATH}");
    let jwks_uri = jwks_uri.unwrap_or(&own);
    let is_https =
        |text: &str| text.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https"));
    if !is_https(issuer) || issuer.contains(['?', '#']) || !is_https(jwks_uri) {
        return None;
    }
    let algorithms: BTreeSet<&str> = keys.iter().map(PublicKey::algorithm).collect();
    Some(json!({
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    }))
}

/// A JSON Web Key Set.
pub(super) fn key_set(keys: &[PublicKey]) -> Value {
    json!({"keys": keys.iter().map(PublicKey::jwk).collect::<Vec<_>>()})
}
