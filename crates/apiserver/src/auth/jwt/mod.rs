//! Tokens of issuers outside of the cluster: JSON Web Tokens, verified with the keys of the issuer whom
//! they name, and the users that their claims say (`--authentication-config`, `--oidc-*`).
//!
//! Nothing of a token counts before its signature is verified, but the choice of the issuer.
//!
//! Current limitations: no egress selectors.

mod claims;
pub(crate) mod config;
mod distributed;
mod keys;
mod provider;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::claims::Mapping;
use self::config::{Anonymous, AuthenticationFile, Checked};
use self::distributed::DistributedClaim;
pub(crate) use self::keys::ALGORITHMS;
use self::keys::Token;
use self::provider::Provider;
use crate::config_file::{FollowedFile, Rejected};
use crate::user::User;

/// How often issuers without keys are asked, and the file is looked at.
const INTERVAL: Duration = Duration::from_secs(10);
/// How far the clock of an issuer may be ahead (seconds).
const NOT_BEFORE_LEEWAY: i64 = 300;

/// One issuer.
struct Authenticator {
    url: String,
    audiences: Vec<String>,
    algorithms: Vec<String>,
    mapping: Mapping,
    provider: Provider,
    /// The claim of the groups, where tokens may have it elsewhere.
    distributed: Option<DistributedClaim>,
}

impl Authenticator {
    fn new(checked: Checked, algorithms: &[String]) -> Result<Authenticator, String> {
        let Checked { issuer, mapping } = checked;
        let provider = Provider::new(&issuer)?;
        let algorithms = algorithms.to_vec();
        let distributed = mapping
            .groups_claim()
            .map(|name| DistributedClaim::new(name, &issuer, &algorithms))
            .transpose()?;
        Ok(Authenticator {
            url: issuer.url,
            audiences: issuer.audiences,
            algorithms,
            mapping,
            provider,
            distributed,
        })
    }

    /// The user of a token that names this issuer.
    async fn user(&self, token: &Token<'_>, now: i64) -> Result<User, String> {
        let (keys, generation) = self.provider.keys().ok_or("authenticator not initialized")?;
        let failed = |why: &dyn std::fmt::Display| format!("verify token: {why}");
        token.check_algorithm(&self.algorithms).map_err(|why| failed(&why))?;
        // what an unsigned token says decides only that no keys are fetched for it
        check_claims(token.unverified(), &self.url, &self.audiences, now)
            .map_err(|why| failed(&why))?;
        let newer;
        let claims = match token.verify(&keys) {
            Ok(claims) => claims,
            Err(why) => match self.provider.newer_keys(Some(generation)).await {
                Some(keys) => {
                    newer = keys;
                    token.verify(&newer).map_err(|why| failed(&why))?
                }
                None => return Err(failed(&why)),
            },
        };
        let Some(distributed) = &self.distributed else { return self.mapping.user(claims) };
        match distributed.value(claims, now).await? {
            None => self.mapping.user(claims),
            Some(groups) => {
                let mut claims = claims.clone();
                claims[distributed.name()] = groups;
                self.mapping.user(&claims)
            }
        }
    }
}

/// Whether a token with these claims is of the issuer, for one of the audiences, and good at that time.
fn check_claims(
    claims: &Value,
    issuer: &str,
    audiences: &[String],
    now: i64,
) -> Result<(), String> {
    let own = claims["iss"].as_str().unwrap_or_default();
    let is_google = own == "accounts.google.com" && issuer == "https://accounts.google.com";
    if own != issuer && !is_google {
        return Err(format!(
            "id token issued by a different provider, expected {issuer:?} got {own:?}"
        ));
    }
    let for_us = |audience: &Value| {
        audience.as_str().is_some_and(|audience| audiences.iter().any(|own| own == audience))
    };
    let has = &claims["aud"];
    if !has.as_array().map_or_else(|| for_us(has), |all| all.iter().any(for_us)) {
        return Err(format!("expected audience in {audiences:?} got {has}"));
    }
    let seconds = |claim: &Value| match claim {
        Value::Number(number) => {
            number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds as i64))
        }
        _ => None,
    };
    let expires = seconds(&claims["exp"]).ok_or("the token has no expiration")?;
    if now > expires {
        return Err(format!("token is expired (Token Expiry: {})", shown(expires)));
    }
    match &claims["nbf"] {
        Value::Null => Ok(()),
        begins => {
            let begins = seconds(begins).ok_or("its nbf is not a number")?;
            match now.saturating_add(NOT_BEFORE_LEEWAY) < begins {
                true => {
                    Err(format!("current time before the nbf (not before) time: {}", shown(begins)))
                }
                false => Ok(()),
            }
        }
    }
}

fn shown(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Where issuers come from.
#[derive(Clone, Debug, Default)]
pub struct JwtConfig {
    /// The issuers at the start.
    pub(crate) file: AuthenticationFile,
    /// The file that they are read from again when it changes, with its text.
    pub(crate) path: Option<(PathBuf, String)>,
    /// The algorithms that tokens may be signed with.
    pub(crate) algorithms: Vec<String>,
}

impl JwtConfig {
    /// Reads a file: the configuration, and who is anonymous if the file says so.
    pub(crate) fn of_file(path: &Path) -> Result<(JwtConfig, Option<Anonymous>), String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let file = AuthenticationFile::parse(&text)?;
        let anonymous = file.anonymous.clone();
        let algorithms = ALGORITHMS.map(str::to_owned).into();
        Ok((JwtConfig { file, path: Some((path.to_owned(), text)), algorithms }, anonymous))
    }
}

/// All issuers, which change with the file.
pub(super) struct JwtAuthenticators {
    config: JwtConfig,
    /// Issuers whose tokens others verify.
    disallowed: Vec<String>,
    current: RwLock<Arc<Vec<Authenticator>>>,
    file: Option<FollowedFile>,
}

impl JwtAuthenticators {
    /// Checks the configuration; nothing is fetched.
    pub(super) fn new(config: JwtConfig, disallowed: Vec<String>) -> Result<Self, String> {
        let all = build(&config.file, &disallowed, &config.algorithms)
            .map_err(|why| format!("invalid authentication configuration: {why}"))?;
        let followed = |(path, text): &(PathBuf, String)| {
            FollowedFile::new(path.clone(), text, INTERVAL, INTERVAL)
        };
        let file = config.path.as_ref().map(followed);
        Ok(JwtAuthenticators { config, disallowed, current: RwLock::new(Arc::new(all)), file })
    }

    /// The user of a token; `None`: it is of no issuer that is known.
    pub(super) async fn user(&self, token: &str) -> Option<Result<User, String>> {
        let all = self.current.read().clone();
        if all.is_empty() {
            return None;
        }
        let token = Token::read(token).ok()?;
        let issuer = token.untrusted_issuer();
        let known = all.iter().find(|known| known.url == issuer)?;
        let now = Timestamp::now().as_second();
        Some(known.user(&token, now).await.map_err(|why| format!("oidc: {why}")))
    }

    /// Keeps keys and configuration up to date until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let fetching = async {
            loop {
                self.fetch_due().await;
                sleep(INTERVAL).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = fetching => {}
            () = self.follow_file() => {}
        }
    }

    /// Takes the file in whenever it has changed and can be used; otherwise what was there stays.
    async fn follow_file(&self) {
        let Some(file) = &self.file else { return std::future::pending().await };
        loop {
            let result = match file.changed().await {
                Ok(text) => file.noted(&text, self.reload(&text).await),
                Err(why) => Err(why),
            };
            if let Err(why) = result {
                tracing::error!(why, "failed to update authentication config");
            }
        }
    }

    /// Fetches the keys that are missing or old.
    async fn fetch_due(&self) {
        let all = self.current.read().clone();
        fetch_due(&all).await;
    }

    /// Takes the text of a file in if it is valid, and all its issuers have keys.
    async fn reload(&self, text: &str) -> Result<(), Rejected> {
        let checked = AuthenticationFile::parse(text).and_then(|file| {
            match file.anonymous == self.config.file.anonymous {
                true => build(&file, &self.disallowed, &self.config.algorithms),
                false => {
                    Err("anonymous: Forbidden: changed from initial configuration file".into())
                }
            }
        });
        let all = checked.map_err(Rejected::Invalid)?;
        fetch_due(&all).await;
        if let Some(without) = all.iter().find(|one| one.provider.keys().is_none()) {
            return Err(Rejected::NotYet(format!("issuer {} has no keys yet", without.url)));
        }
        *self.current.write() = Arc::new(all);
        tracing::info!("reloaded authentication config");
        Ok(())
    }
}

fn build(
    file: &AuthenticationFile,
    disallowed: &[String],
    algorithms: &[String],
) -> Result<Vec<Authenticator>, String> {
    let checked = file.check(disallowed)?;
    checked.into_iter().map(|one| Authenticator::new(one, algorithms)).collect()
}

/// Fetches the keys that are missing or old.
async fn fetch_due(all: &[Authenticator]) {
    let due = all.iter().filter(|one| one.provider.is_due());
    join_all(due.map(async |one| {
        if let Err(why) = one.provider.fetch().await {
            tracing::error!(issuer = one.url, %why, "oidc authenticator: initializing plugin");
        }
    }))
    .await;
    let distributed = all.iter().filter_map(|one| one.distributed.as_ref());
    let due: Vec<_> = distributed.flat_map(DistributedClaim::due).collect();
    join_all(due.iter().map(async |provider| {
        if let Err(why) = provider.fetch().await {
            tracing::warn!(%why, "oidc authenticator: keys of a distributed claim");
        }
    }))
    .await;
}
