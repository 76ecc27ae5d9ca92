//! Tokens of service accounts: JSON Web Tokens, signed with a key of the cluster and valid for
//! some audiences and some time. Pure: whether an account still exists is for `serviceaccounts` to
//! say, which issues them; `auth` has them verified.
//!
//! Signing and verifying are those of the TLS library (ring), as it is here anyhow: what a JWT adds
//! are three pieces of base64, while the libraries for it bring a second set of cryptography.

mod claims;
mod discovery;
mod jwt;
mod keys;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde_json::Value;

pub(crate) use claims::{Claims, Kubernetes, LEEWAY, Reference};
pub(crate) use discovery::{CONFIGURATION_PATH, KEY_SET_PATH};
use keys::{PublicKey, SigningKey};

use crate::pki;

/// The default issuer, as of kubeadm.
const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// How tokens of service accounts are issued and verified.
#[derive(Clone, Debug)]
pub struct TokenConfig {
    /// What verifies tokens: PEM files of public keys, private keys or certificates. Empty: the
    /// signing key.
    pub key_files: Vec<PathBuf>,
    /// What signs tokens; without it, a key in the directory of certificates.
    pub signing_key_file: Option<PathBuf>,
    /// The issuers: the first one is used for new tokens, the others are accepted. Empty:
    /// `https://kubernetes.default.svc.cluster.local`.
    pub issuers: Vec<String>,
    /// The audiences that this server accepts, and the default ones of new tokens. Empty: the issuers.
    pub audiences: Vec<String>,
    /// Where others find the keys; without it, this server's advertised address.
    pub jwks_uri: Option<String>,
    /// The longest life of a token, in seconds.
    pub max_expiration: Option<i64>,
    /// Whether the tokens that pods get by themselves live for a year, for clients that never read
    /// them anew.
    pub extend_expiration: bool,
}

impl Default for TokenConfig {
    fn default() -> Self {
        TokenConfig {
            key_files: Vec::new(),
            signing_key_file: None,
            issuers: Vec::new(),
            audiences: Vec::new(),
            jwks_uri: None,
            max_expiration: None,
            extend_expiration: true,
        }
    }
}

/// Why a token is not accepted, or not issued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("not a token of a service account")]
    NotAToken,
    #[error("invalid signature, no keys found")]
    NoKey,
    #[error("invalid signature")]
    Signature,
    #[error("the token's claims cannot be read: {0}")]
    Claims(String),
    #[error("token issuer {0:?} is invalid")]
    Issuer(String),
    #[error("token audiences {has:?} is invalid for the target audiences {wanted:?}")]
    Audience { has: Vec<String>, wanted: Vec<String> },
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("signing failed")]
    Signing,
}

/// Issues and verifies tokens.
pub(crate) struct Tokens {
    signing: SigningKey,
    keys: Vec<PublicKey>,
    issuers: Vec<String>,
    audiences: Vec<String>,
    /// What is served for discovery; `None` for an issuer that is no web site.
    configuration: Option<Value>,
    pub(crate) max_expiration: Option<i64>,
    pub(crate) extend_expiration: bool,
}

impl Tokens {
    /// Reads the keys. `own_key` is what signs when the configuration names nothing, `authority`
    /// (`host:port`) where others reach this server.
    pub(crate) fn new(
        config: &TokenConfig,
        own_key: PathBuf,
        authority: &str,
    ) -> pki::Result<Tokens> {
        let signing = SigningKey::load(config.signing_key_file.as_ref().unwrap_or(&own_key))?;
        let mut keys = Vec::new();
        for file in &config.key_files {
            keys.extend(keys::load_public(file)?);
        }
        if keys.is_empty() {
            keys.push(signing.public().clone());
        }
        let issuers = match config.issuers.is_empty() {
            true => vec![DEFAULT_ISSUER.to_owned()],
            false => config.issuers.clone(),
        };
        let audiences = match config.audiences.is_empty() {
            true => issuers.clone(),
            false => config.audiences.clone(),
        };
        let configuration =
            discovery::configuration(&issuers[0], config.jwks_uri.as_deref(), authority, &keys);
        Ok(Tokens {
            signing,
            keys,
            issuers,
            audiences,
            configuration,
            max_expiration: config.max_expiration,
            extend_expiration: config.extend_expiration,
        })
    }

    /// The issuer of new tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuers[0]
    }

    /// The issuers whose tokens this server verifies with its own keys.
    pub(crate) fn issuers(&self) -> &[String] {
        &self.issuers
    }

    /// The audiences that this server accepts.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// A token that says this.
    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, Error> {
        let claims = serde_json::to_vec(claims).map_err(|_| Error::Signing)?;
        jwt::sign(&self.signing, &claims)
    }

    /// What a token says, and for which of the wanted audiences it is. Times are Unix seconds.
    pub(crate) fn verify(
        &self,
        token: &str,
        wanted: &[String],
        now: i64,
    ) -> Result<(Claims, Vec<String>), Error> {
        let claims = jwt::verify(token, &self.keys)?;
        let claims: Claims =
            serde_json::from_slice(&claims).map_err(|error| Error::Claims(error.to_string()))?;
        let audiences = claims.accept(&self.issuers, wanted, now)?;
        Ok((claims, audiences))
    }

    /// The OpenID provider's metadata, for the verification of tokens elsewhere.
    pub(crate) fn configuration(&self) -> Option<&Value> {
        self.configuration.as_ref()
    }

    /// The keys that verify tokens, as a JSON Web Key Set.
    pub(crate) fn key_set(&self) -> Value {
        discovery::key_set(&self.keys)
    }
}
