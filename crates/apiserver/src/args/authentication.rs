//! Flags of authentication.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgAction, Args};
use longshore_serving::FrontProxyHeaders;

use super::{cache_ttl, duration};
use crate::auth::jwt::ALGORITHMS;
use crate::auth::jwt::config::{
    AuthenticationFile, ClaimMappings, ClaimOrExpression, ClaimValidationRule, Issuer,
    JwtAuthenticator,
};
use crate::{
    Anonymous, AuthenticationConfig, FrontProxyConfig, JwtConfig, TokenConfig, TokenWebhookConfig,
};

/// Flags of authentication.
#[derive(Debug, Args)]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationArgs {
    /// Serve requests without credentials as system:anonymous
    /// [default: true]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// An AuthenticationConfiguration with the issuers of tokens, and who is anonymous
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// Accept bootstrap tokens: secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Accept the tokens of this file, with lines of token,user,uid,"group,group"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// The kubeconfig of a webhook that knows the users of tokens
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of its TokenReviews
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    /// How long its answers are cached; 0 is not at all
    #[arg(long, value_name = "DURATION", default_value = "2m0s", value_parser = cache_ttl)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// The OpenID issuer whose tokens are accepted
    #[arg(long, value_name = "URL")]
    pub oidc_issuer_url: Option<String>,
    /// The audience of its tokens
    #[arg(long, value_name = "NAME")]
    pub oidc_client_id: Option<String>,
    /// The CA of the issuer [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
    /// The claim with the name of the user [default: sub]
    #[arg(long, value_name = "CLAIM")]
    pub oidc_username_claim: Option<String>,
    /// What names of users begin with; - is nothing [default: the issuer and #, but for the claim email]
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    pub oidc_username_prefix: Option<String>,
    /// The claim with the groups of the user
    #[arg(long, value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// What names of groups begin with
    #[arg(long, value_name = "PREFIX")]
    pub oidc_groups_prefix: Option<String>,
    /// A claim that tokens must have, as CLAIM=VALUE; may be repeated
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = required_claim)]
    pub oidc_required_claim: Vec<(String, String)>,
    /// How tokens may be signed [default: RS256]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub oidc_signing_algs: Vec<String>,
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
    /// The longest life of a token, such as 24h0m0s: from 1h0m0s to 2^32 seconds; 0 is no limit [default: 0]
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
    /// Reads the files. Errors name the flag.
    pub(super) fn config(&self) -> anyhow::Result<AuthenticationConfig> {
        let (jwt, anonymous) = self.issuers()?;
        let headers = FrontProxyHeaders {
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
        };
        let headers = headers.trimmed().map_err(|why| anyhow::anyhow!("--requestheader-{why}"))?;
        let front_proxy = self
            .requestheader_client_ca_file
            .clone()
            .map(|ca_file| FrontProxyConfig { ca_file, headers });
        let webhook = self.authentication_token_webhook_config_file.clone();
        let webhook = webhook.map(|kubeconfig| TokenWebhookConfig {
            kubeconfig,
            version: self.authentication_token_webhook_version.clone(),
            ttl: self.authentication_token_webhook_cache_ttl,
        });
        Ok(AuthenticationConfig {
            front_proxy,
            anonymous,
            jwt,
            webhook,
            bootstrap_tokens: self.enable_bootstrap_token_auth,
            token_file: self.token_auth_file.clone(),
            tokens: TokenConfig {
                key_files: self.service_account_key_file.clone(),
                signing_key_file: self.service_account_signing_key_file.clone(),
                issuers: self.service_account_issuer.clone(),
                audiences: self.api_audiences.clone(),
                jwks_uri: self.service_account_jwks_uri.clone(),
                max_expiration: self.service_account_max_token_expiration.filter(|max| *max > 0),
                extend_expiration: self.service_account_extend_token_expiration,
            },
        })
    }

    /// The issuers of tokens, and who is anonymous.
    fn issuers(&self) -> anyhow::Result<(JwtConfig, Anonymous)> {
        let given = self.anonymous_auth;
        let anonymous = Anonymous { enabled: given.unwrap_or(true), conditions: Vec::new() };
        let Some(file) = &self.authentication_config else { return Ok((self.oidc()?, anonymous)) };
        anyhow::ensure!(
            !self.has_oidc_flags(),
            "authentication-config file and oidc-* flags are mutually exclusive"
        );
        let (jwt, of_file) = JwtConfig::of_file(file).map_err(|why| {
            let file = file.display();
            anyhow::anyhow!(
                "failed to load authentication configuration from file \"{file}\": {why}"
            )
        })?;
        anyhow::ensure!(
            of_file.is_none() || given.is_none(),
            "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is \
             configured in authentication configuration file"
        );
        Ok((jwt, of_file.unwrap_or(anonymous)))
    }

    fn has_oidc_flags(&self) -> bool {
        let texts = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        texts.iter().any(|text| text.is_some())
            || self.oidc_ca_file.is_some()
            || !self.oidc_required_claim.is_empty()
            || !self.oidc_signing_algs.is_empty()
    }

    /// The issuer of the flags, as a file would say it.
    fn oidc(&self) -> anyhow::Result<JwtConfig> {
        if !self.has_oidc_flags() {
            return Ok(JwtConfig::default());
        }
        let (Some(url), Some(client)) = (&self.oidc_issuer_url, &self.oidc_client_id) else {
            anyhow::bail!(
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* \
                 flags are set"
            );
        };
        let authority = match &self.oidc_ca_file {
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("--oidc-ca-file: read {}", file.display()))?,
            None => String::new(),
        };
        let claim = self.oidc_username_claim.as_deref().unwrap_or("sub");
        let prefix = match self.oidc_username_prefix.as_deref().unwrap_or_default() {
            "-" => String::new(),
            "" if claim != "email" => format!("{url}#"),
            prefix => prefix.to_owned(),
        };
        let mapping = |claim: &str, prefix: String| ClaimOrExpression {
            claim: claim.to_owned(),
            prefix: Some(prefix),
            ..ClaimOrExpression::default()
        };
        let groups = self.oidc_groups_claim.as_deref().filter(|claim| !claim.is_empty());
        let groups_prefix = self.oidc_groups_prefix.clone().unwrap_or_default();
        let required = self.oidc_required_claim.iter().map(|(claim, value)| ClaimValidationRule {
            claim: claim.clone(),
            required_value: value.clone(),
            ..ClaimValidationRule::default()
        });
        let algorithms = match self.oidc_signing_algs.is_empty() {
            true => vec!["RS256".to_owned()],
            false => self.oidc_signing_algs.clone(),
        };
        if let Some(unknown) = algorithms.iter().find(|alg| !ALGORITHMS.contains(&alg.as_str())) {
            anyhow::bail!("oidc: unsupported signing alg: {unknown:?}");
        }
        let authenticator = JwtAuthenticator {
            issuer: Issuer {
                url: url.clone(),
                audiences: vec![client.clone()],
                certificate_authority: authority,
                ..Issuer::default()
            },
            claim_mappings: ClaimMappings {
                username: mapping(claim, prefix),
                groups: groups.map(|claim| mapping(claim, groups_prefix)).unwrap_or_default(),
                ..ClaimMappings::default()
            },
            claim_validation_rules: required.collect(),
            ..JwtAuthenticator::default()
        };
        let file = AuthenticationFile::of_flags(authenticator);
        Ok(JwtConfig { file, path: None, algorithms })
    }
}

fn required_claim(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((claim, value)) if !claim.is_empty() => Ok((claim.to_owned(), value.to_owned())),
        _ => Err("expected CLAIM=VALUE".to_owned()),
    }
}

/// Seconds, within what upstream takes.
/// 0: there is no limit.
fn expiration(text: &str) -> Result<i64, String> {
    if matches!(text, "0" | "0s") {
        return Ok(0);
    }
    let seconds = i64::try_from(duration(text)?.as_secs()).unwrap_or(i64::MAX);
    match seconds {
        3600..=0x1_0000_0000 => Ok(seconds),
        _ => Err("must be from 1 hour to 2^32 seconds".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn config(line: &str) -> Result<AuthenticationConfig, String> {
        let cli = Cli::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))
            .map_err(|error| error.to_string())?;
        cli.serve.authentication.config().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn authentication_flags_name_an_issuer_as_a_file_does() {
        let base = "--oidc-issuer-url=https://i --oidc-client-id=c";
        let of = |more: &str| config(&format!("{base} {more}")).unwrap().jwt;
        let user = |jwt: JwtConfig| {
            let user = jwt.file.jwt[0].claim_mappings.username.clone();
            (user.claim, user.prefix.unwrap())
        };
        let own = |claim: &str, prefix: &str| (claim.to_owned(), prefix.to_owned());
        assert_eq!(user(of("")), own("sub", "https://i#"));
        assert_eq!(user(of("--oidc-username-claim=email")), own("email", ""));
        assert_eq!(
            user(of("--oidc-username-claim=name --oidc-username-prefix=-")),
            own("name", "")
        );
        assert_eq!(user(of("--oidc-username-prefix=o:")), own("sub", "o:"));
        let full = of("--oidc-groups-claim=g --oidc-groups-prefix=x: --oidc-required-claim=a=b=c \
            --oidc-required-claim=d= --oidc-signing-algs=ES256,PS512");
        assert_eq!(full.algorithms, ["ES256", "PS512"]);
        let first = &full.file.jwt[0];
        assert_eq!(first.claim_mappings.groups.prefix.as_deref(), Some("x:"));
        assert_eq!(first.claim_validation_rules[0].required_value, "b=c");
        assert!(full.file.check(&[]).is_ok());
        assert_eq!(of("").algorithms, ["RS256"]);
        for (line, why) in [
            ("--oidc-issuer-url=https://i", "must be specified together"),
            ("--oidc-groups-claim=g", "must be specified together"),
            (&format!("{base} --oidc-signing-algs=none"), "unsupported signing alg: \"none\""),
            (&format!("{base} --oidc-signing-algs=HS256"), "unsupported signing alg"),
            (&format!("{base} --oidc-ca-file=/none/ca"), "/none/ca"),
            (&format!("{base} --oidc-required-claim=a"), "CLAIM=VALUE"),
            (&format!("{base} --authentication-config=f"), "mutually exclusive"),
            ("--authentication-config=/none/a", "/none/a"),
            ("--authentication-token-webhook-version=v2", "v2"),
        ] {
            let error = config(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn authentication_config_and_flags_do_not_both_say_who_is_anonymous() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
        let flag = format!("--authentication-config={}", file.path().display());
        std::fs::write(file.path(), head).unwrap();
        assert!(config(&flag).unwrap().anonymous.allows("/api"));
        assert!(!config(&format!("{flag} --anonymous-auth=false")).unwrap().anonymous.enabled);
        let health = "anonymous: {enabled: true, conditions: [{path: /livez}]}\n";
        std::fs::write(file.path(), format!("{head}{health}")).unwrap();
        let found = config(&flag).unwrap().anonymous;
        assert!(found.allows("/livez") && !found.allows("/api"));
        let error = config(&format!("{flag} --anonymous-auth")).unwrap_err();
        assert!(error.contains("--anonymous-auth flag cannot be set"), "{error}");
    }
}
