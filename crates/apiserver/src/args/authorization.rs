//! Flags of authorization.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::cache_ttl;
use crate::AuthorizationConfig;
use crate::authz::{AuthorizerConfig, Connection, WebhookConfig};

/// How long a webhook of flags may take.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags of authorization.
#[derive(Debug, Args)]
#[command(next_help_heading = "Authorization")]
pub struct AuthorizationArgs {
    /// An AuthorizationConfiguration with the authorizers, instead of --authorization-mode
    #[arg(long, value_name = "FILE", conflicts_with_all = ["authorization_mode",
        "authorization_webhook_config_file", "authorization_webhook_version",
        "authorization_webhook_cache_authorized_ttl", "authorization_webhook_cache_unauthorized_ttl"])]
    pub authorization_config: Option<PathBuf>,
    /// Authorization modes, tried in order: Node, RBAC, Webhook, ABAC, AlwaysAllow, AlwaysDeny
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,
    /// The policies of the mode ABAC, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
    /// The kubeconfig with the server of the mode Webhook
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The version of its SubjectAccessReviews
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: String,
    /// How long it is cached that it allows something; 0 is not at all
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = cache_ttl)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long it is cached that it does not
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = cache_ttl)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl AuthorizationArgs {
    pub(super) fn config(&self) -> anyhow::Result<AuthorizationConfig> {
        let policy_file = self.authorization_policy_file.clone();
        let mut config = match &self.authorization_config {
            Some(file) => AuthorizationConfig::of_file(file).map_err(|why| {
                anyhow::anyhow!("--authorization-config: {}: {why}", file.display())
            })?,
            None => self.of_modes()?,
        };
        let has_abac = config.local().contains(&crate::Mode::Abac);
        anyhow::ensure!(
            !has_abac || policy_file.is_some(),
            "authorization-mode ABAC's authorization policy file not passed"
        );
        anyhow::ensure!(
            has_abac || policy_file.is_none(),
            "cannot specify --authorization-policy-file without mode ABAC"
        );
        config.policy_file = policy_file;
        Ok(config)
    }

    fn of_modes(&self) -> anyhow::Result<AuthorizationConfig> {
        let modes = &self.authorization_mode;
        for (i, mode) in modes.iter().enumerate() {
            anyhow::ensure!(
                !modes.iter().take(i).any(|other| other == mode),
                "authorization-mode {modes:?} has mode specified more than once"
            );
        }
        let mut file = self.authorization_webhook_config_file.clone();
        let mut authorizers = Vec::new();
        for mode in modes {
            if mode != "Webhook" {
                let mode = mode
                    .parse()
                    .map_err(anyhow::Error::msg)
                    .with_context(|| format!("authorization-mode {mode:?} is not a valid mode"))?;
                authorizers.push(AuthorizerConfig::Local(mode));
                continue;
            }
            let Some(file) = file.take() else {
                anyhow::bail!("authorization-mode Webhook's authorization config file not passed");
            };
            authorizers.push(AuthorizerConfig::Webhook(WebhookConfig {
                name: "default".to_owned(),
                authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
                unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
                timeout: WEBHOOK_TIMEOUT,
                version: self.authorization_webhook_version.clone(),
                denies_on_failure: false,
                connection: Connection::Kubeconfig(file),
                conditions: Vec::new(),
            }));
        }
        anyhow::ensure!(
            file.is_none(),
            "cannot specify --authorization-webhook-config-file without mode Webhook"
        );
        Ok(AuthorizationConfig { authorizers, ..AuthorizationConfig::default() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Mode;
    use crate::args::Cli;

    fn config(line: &str) -> Result<AuthorizationConfig, String> {
        let cli = Cli::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))
            .map_err(|error| error.to_string())?;
        cli.serve.authorization.config().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn authorization_flags_name_the_authorizers() {
        assert_eq!(config("").unwrap().local(), [Mode::Node, Mode::Rbac]);
        let both = "--authorization-mode=Webhook,ABAC --authorization-policy-file=p \
            --authorization-webhook-config-file=w --authorization-webhook-cache-unauthorized-ttl=0";
        let found = config(both).unwrap();
        let [AuthorizerConfig::Webhook(webhook), AuthorizerConfig::Local(Mode::Abac)] =
            found.authorizers.as_slice()
        else {
            panic!("{found:?}")
        };
        assert_eq!(webhook.connection, Connection::Kubeconfig("w".into()));
        assert!(webhook.unauthorized_ttl.is_zero() && !webhook.denies_on_failure);
        assert_eq!(webhook.version, "v1beta1");
        for (line, why) in [
            ("--authorization-mode=Magic", "\"Magic\" is not a valid mode"),
            ("--authorization-mode=RBAC,RBAC", "specified more than once"),
            ("--authorization-mode=ABAC", "policy file not passed"),
            ("--authorization-mode=Webhook", "config file not passed"),
            ("--authorization-policy-file=p", "without mode ABAC"),
            ("--authorization-webhook-config-file=w", "without mode Webhook"),
            ("--authorization-config=/none/a", "/none/a"),
            ("--authorization-config=f --authorization-mode=RBAC", "cannot be used with"),
            ("--authorization-webhook-version=v2", "v2"),
        ] {
            let error = config(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
