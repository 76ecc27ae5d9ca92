//! Flags of authentication.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::duration;
use crate::{AuthenticationConfig, FrontProxyConfig, TokenConfig};

/// Flags of authentication.
#[derive(Debug, Args)]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationArgs {
    /// Serve requests without credentials as system:anonymous
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// Accept bootstrap tokens: secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Accept the tokens of this file, with lines of token,user,uid,"group,group"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Keys that verify tokens of service accounts (PEM); may be repeated [default: the signing key]
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// The key that signs tokens of service accounts [default: sa.key in --cert-dir]
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Issuer of service account tokens; given again, an issuer whose tokens are still accepted
    /// [default: https://kubernetes.default.svc.cluster.local]
    #[arg(long, value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// Audiences of tokens for this server [default: the issuers]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Where others find the keys of service accounts [default: at the advertised address]
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
    /// The longest life of a token, such as 24h0m0s: from 1h0m0s to 2^32 seconds [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = expiration)]
    pub service_account_max_token_expiration: Option<i64>,
    /// Extend the expiration of tokens in pods to a year, for clients that never reload them
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub service_account_extend_token_expiration: bool,
    /// The CAs of front proxies, whose headers name users
    #[arg(long, value_name = "FILE", requires = "requestheader_username_headers")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of front proxies [default: any]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with names of users: X-Remote-User is suggested
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with UIDs of users: X-Remote-Uid is suggested
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with groups of users: X-Remote-Group is suggested
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// How headers with extra fields of users begin: X-Remote-Extra- is suggested
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

impl AuthenticationArgs {
    pub(super) fn config(&self) -> AuthenticationConfig {
        let front_proxy =
            self.requestheader_client_ca_file.clone().map(|ca_file| FrontProxyConfig {
                ca_file,
                allowed_names: self.requestheader_allowed_names.clone(),
                username_headers: self.requestheader_username_headers.clone(),
                uid_headers: self.requestheader_uid_headers.clone(),
                group_headers: self.requestheader_group_headers.clone(),
                extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
            });
        AuthenticationConfig {
            front_proxy,
            anonymous: self.anonymous_auth,
            bootstrap_tokens: self.enable_bootstrap_token_auth,
            token_file: self.token_auth_file.clone(),
            tokens: TokenConfig {
                key_files: self.service_account_key_file.clone(),
                signing_key_file: self.service_account_signing_key_file.clone(),
                issuers: self.service_account_issuer.clone(),
                audiences: self.api_audiences.clone(),
                jwks_uri: self.service_account_jwks_uri.clone(),
                max_expiration: self.service_account_max_token_expiration,
                extend_expiration: self.service_account_extend_token_expiration,
            },
        }
    }
}

/// Seconds, within what upstream takes.
fn expiration(text: &str) -> Result<i64, String> {
    let seconds = i64::try_from(duration(text)?.as_secs()).unwrap_or(i64::MAX);
    match seconds {
        3600..=0x1_0000_0000 => Ok(seconds),
        _ => Err("must be from 1 hour to 2^32 seconds".into()),
    }
}
