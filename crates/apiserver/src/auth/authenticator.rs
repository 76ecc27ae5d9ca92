//! Authentication by a client certificate or a bearer token, or as anonymous. Invalid credentials are
//! rejected, never treated as anonymous.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use jiff::Timestamp;
use longshore_metrics::{ClientCertificates, Counter, Family, Registry};
use longshore_tls::{ClientCa, Verdict};
use tokio_util::sync::CancellationToken;

use super::bootstrap::{self, BootstrapToken};
use super::front_proxy::{FrontProxies, FrontProxyConfig};
use super::jwt::config::Anonymous;
use super::jwt::{JwtAuthenticators, JwtConfig};
use super::token_file::TokenFile;
use super::webhook::{TokenWebhook, TokenWebhookConfig};
use crate::kinds::core;
use crate::operations::Api;
use crate::pki;
use crate::status::StatusError;
use crate::tokens::{self, TokenConfig};
use crate::user::User;

/// A browser cannot set headers; it sends its token as a protocol of a WebSocket.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The authentication methods besides certificates.
#[derive(Clone, Debug)]
pub struct AuthenticationConfig {
    /// Whether, and where, requests without credentials are served as `system:anonymous`.
    pub anonymous: Anonymous,
    /// Whether bootstrap tokens are accepted.
    pub bootstrap_tokens: bool,
    /// Tokens of a file, with lines of `token,user,uid,"group,group"`.
    pub token_file: Option<PathBuf>,
    /// The front proxies whose headers name users.
    pub front_proxy: Option<FrontProxyConfig>,
    /// Tokens of service accounts.
    pub tokens: TokenConfig,
    /// Tokens of other issuers.
    pub jwt: JwtConfig,
    /// A webhook that knows the users of tokens.
    pub webhook: Option<TokenWebhookConfig>,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        AuthenticationConfig {
            anonymous: Anonymous { enabled: true, conditions: Vec::new() },
            bootstrap_tokens: true,
            token_file: None,
            front_proxy: None,
            tokens: TokenConfig::default(),
            jwt: JwtConfig::default(),
            webhook: None,
        }
    }
}

/// Why a bearer token is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("invalid bearer token")]
    Unknown,
    #[error(transparent)]
    Token(#[from] tokens::Error),
    /// An object that the token names is gone.
    #[error("{0}")]
    Invalidated(String),
    #[error("bootstrap token: {0}")]
    Bootstrap(&'static str),
    /// An issuer's token, or a webhook.
    #[error("{0}")]
    Elsewhere(String),
    #[error("token audiences {has:?} is invalid for the target audiences {wanted:?}")]
    Audience { has: Vec<String>, wanted: Vec<String> },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StatusError),
}

/// The user of a valid token.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedToken {
    /// The user.
    pub(crate) user: User,
    /// Which of the requested audiences it is valid for.
    pub(crate) audiences: Vec<String>,
}

/// Authenticates requests.
pub(crate) struct Authenticator {
    api: Arc<Api>,
    anonymous: Anonymous,
    bootstrap_tokens: bool,
    file: TokenFile,
    jwt: JwtAuthenticators,
    webhook: Option<TokenWebhook>,
    metrics: Registry,
    attempts: Family<Counter, 1>,
    certificates: ClientCertificates,
    front_proxy: Option<FrontProxies>,
}

impl Authenticator {
    pub(crate) fn new(config: &AuthenticationConfig, api: Arc<Api>) -> pki::Result<Authenticator> {
        let issuers = api.tokens.issuers().to_vec();
        let metrics = Registry::default();
        let invalid = |reason| {
            let path = config.jwt.path.as_ref().map(|(path, _)| path.clone());
            pki::Error::Invalid { path: path.unwrap_or_default(), reason }
        };
        Ok(Authenticator {
            jwt: JwtAuthenticators::new(config.jwt.clone(), issuers).map_err(invalid)?,
            webhook: config.webhook.as_ref().map(TokenWebhook::load).transpose()?,
            attempts: metrics.counters(
                "authentication_attempts",
                "[ALPHA] Counter of authenticated attempts.",
                ["result"],
            ),
            certificates: ClientCertificates::new(&metrics),
            metrics,
            api,
            anonymous: config.anonymous.clone(),
            bootstrap_tokens: config.bootstrap_tokens,
            file: config
                .token_file
                .as_deref()
                .map(TokenFile::load)
                .transpose()?
                .unwrap_or_default(),
            front_proxy: config.front_proxy.clone().map(FrontProxies::load).transpose()?,
        })
    }

    /// Keeps what is known of issuers up to date until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        self.jwt.run(stop).await;
    }

    /// Removes the headers in which front proxies name users, whoever has sent them.
    pub(crate) fn drop_proxy_headers(&self, headers: &mut HeaderMap) {
        if let Some(front_proxy) = &self.front_proxy {
            front_proxy.clear(headers);
        }
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Authenticates a request of that path; `certified` is the user of its client's certificate, which
    /// is valid for `remaining`. Removes
    /// bearer tokens from the headers, so that they are not passed on.
    pub(crate) async fn caller(
        &self,
        certified: Result<Option<longshore_tls::User>, String>,
        remaining: Option<Duration>,
        verify: impl FnOnce(&ClientCa) -> Verdict + Send,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<User, StatusError> {
        let caller = self.authenticate(certified, remaining, verify, path, headers).await;
        // What proxies say of users is for this server, and for nobody that a request is handed on to.
        self.drop_proxy_headers(headers);
        let result = if caller.is_ok() { "success" } else { "error" };
        self.attempts.with([result]).inc();
        caller
    }

    async fn authenticate(
        &self,
        certified: Result<Option<longshore_tls::User>, String>,
        remaining: Option<Duration>,
        verify: impl FnOnce(&ClientCa) -> Verdict + Send,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<User, StatusError> {
        let certified = certified.map(|user| user.as_ref().map(User::from));
        let token = take_bearer(headers);
        let vouched = self.front_proxy.as_ref().and_then(|known| known.user(verify, headers));
        if let Some(user) = vouched {
            return Ok(user);
        }
        if let Ok(Some(user)) = certified {
            self.certificates.used(remaining);
            return Ok(user);
        }
        let refused = |why: &dyn std::fmt::Display| {
            tracing::info!(%why, "authentication failed");
            StatusError::unauthorized()
        };
        if let Some(token) = token.map_err(|why| refused(&why))? {
            return match self.authenticate_token(&token, self.api.tokens.audiences()).await {
                Ok(token) => Ok(token.user),
                Err(Error::Store(error)) => Err(error),
                Err(error) => Err(refused(&error)),
            };
        }
        match certified {
            Ok(_) if self.anonymous.allows(path) => Ok(User::anonymous()),
            Ok(_) => Err(StatusError::unauthorized()),
            Err(why) => Err(refused(&why)),
        }
    }

    /// Authenticates a token for one of the requested audiences.
    pub(crate) async fn authenticate_token(
        &self,
        token: &str,
        wanted: &[String],
    ) -> Result<AuthenticatedToken, Error> {
        let now = Timestamp::now();
        if let Some(user) = self.file.find(token) {
            return self.for_all(user.clone(), wanted);
        }
        // those of this cluster first, as others have to be asked for theirs
        let own = match BootstrapToken::parse(token).filter(|_| self.bootstrap_tokens) {
            Some(token) => self.bootstrapper(&token, wanted, now).await,
            None => self.service_account(token, wanted, now.as_second()).await,
        };
        let unknown = match own {
            Err(Error::Store(error)) => return Err(Error::Store(error)),
            Err(error) => error,
            known => return known,
        };
        let elsewhere = match self.jwt.user(token).await {
            Some(Ok(user)) => return self.for_all(user, wanted),
            Some(Err(why)) => Some(Error::Elsewhere(why)),
            None => None,
        };
        let answer = match &self.webhook {
            Some(webhook) => webhook.user(token, wanted, self.api.tokens.audiences()).await,
            None => Ok(None),
        };
        match answer {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(elsewhere.unwrap_or(unknown)),
            Err(why) => Err(Error::Elsewhere(why)),
        }
    }

    /// The user of a bootstrap token.
    async fn bootstrapper(
        &self,
        token: &BootstrapToken<'_>,
        wanted: &[String],
        now: Timestamp,
    ) -> Result<AuthenticatedToken, Error> {
        let (namespace, name) = (bootstrap::NAMESPACE, token.secret_name());
        let secret = self.api.registry.find(core("secrets")?, namespace, &name).await?;
        let user = token.validate(&secret.ok_or(Error::Unknown)?, now);
        self.for_all(user.map_err(Error::Bootstrap)?, wanted)
    }

    /// The user of a token of a service account.
    async fn service_account(
        &self,
        token: &str,
        wanted: &[String],
        now: i64,
    ) -> Result<AuthenticatedToken, Error> {
        let (claims, audiences) = match self.api.tokens.verify(token, wanted, now) {
            Err(tokens::Error::NotAToken) => return Err(Error::Unknown),
            verified => verified?,
        };
        let user = self.api.validate(&claims, now).await?.map_err(Error::Invalidated)?;
        Ok(AuthenticatedToken { user, audiences })
    }

    /// Tokens that name no audience are for this server.
    fn for_all(&self, user: User, wanted: &[String]) -> Result<AuthenticatedToken, Error> {
        let has = self.api.tokens.audiences();
        let audiences: Vec<String> =
            wanted.iter().filter(|audience| has.contains(audience)).cloned().collect();
        match audiences.is_empty() {
            true => Err(Error::Audience { has: has.to_vec(), wanted: wanted.to_vec() }),
            false => Ok(AuthenticatedToken { user, audiences }),
        }
    }
}

/// The bearer token of a request, which is removed from its headers.
fn take_bearer(headers: &mut HeaderMap) -> Result<Option<String>, &'static str> {
    let from_protocols = take_protocol(headers)?;
    let Some(value) = headers.remove(AUTHORIZATION) else {
        return Ok(from_protocols);
    };
    let value = value.to_str().map_err(|_| "its authorization is not readable text")?;
    let mut words = value.trim().split(' ');
    match (words.next(), words.next()) {
        (Some(scheme), Some(token)) if scheme.eq_ignore_ascii_case("bearer") => {
            // More than one blank before it, which no client of Kubernetes sends.
            Ok(Some(token.to_owned()).filter(|token| !token.is_empty()).or(from_protocols))
        }
        _ => Ok(from_protocols),
    }
}

/// The token among the protocols of a WebSocket; the others stay.
fn take_protocol(headers: &mut HeaderMap) -> Result<Option<String>, &'static str> {
    const NAME: HeaderName = SEC_WEBSOCKET_PROTOCOL;
    let values = headers.get_all(NAME).iter().filter_map(|value| value.to_str().ok());
    let protocols = values.flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        protocols.partition(|protocol| protocol.starts_with(BEARER_PROTOCOL));
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [token] => token.strip_prefix(BEARER_PROTOCOL).unwrap_or_default(),
        _ => return Err("it shows several tokens as protocols of a WebSocket"),
    };
    if others.is_empty() {
        return Err("it names no protocol of a WebSocket but its token");
    }
    let unreadable = "its token among the protocols of a WebSocket is not readable";
    let token = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| unreadable)?;
    let token = String::from_utf8(token).map_err(|_| unreadable)?;
    let others = HeaderValue::from_str(&others.join(", ")).map_err(|_| unreadable)?;
    headers.insert(NAME, others);
    Ok(Some(token).filter(|token| !token.is_empty()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn headers(lines: &[(HeaderName, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn authentication_bearer_token_header() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            let mut headers = headers(&[(AUTHORIZATION, value.as_bytes())]);
            assert_eq!(take_bearer(&mut headers).unwrap().as_deref(), expected, "{value:?}");
            assert!(headers.is_empty());
        }
        assert_eq!(take_bearer(&mut HeaderMap::new()), Ok(None));
        assert!(take_bearer(&mut headers(&[(AUTHORIZATION, b"Bearer \xff\xfe")])).is_err());
    }

    #[test]
    fn authentication_token_in_websocket_protocol_is_removed() {
        const NAME: HeaderName = SEC_WEBSOCKET_PROTOCOL;
        let token = format!("{BEARER_PROTOCOL}{}", URL_SAFE_NO_PAD.encode("abc"));
        let both = format!("v5.channel.k8s.io, {token},v4.channel.k8s.io");
        let mut good = headers(&[(NAME, both.as_bytes())]);
        assert_eq!(take_bearer(&mut good).unwrap().as_deref(), Some("abc"));
        assert_eq!(good[NAME], "v5.channel.k8s.io, v4.channel.k8s.io");
        let twice = format!("a,{token},{token}");
        for bad in [token.as_str(), &twice, "a,base64url.bearer.authorization.k8s.io.%%%"] {
            assert!(take_bearer(&mut headers(&[(NAME, bad.as_bytes())])).is_err(), "{bad}");
        }
        let none = &mut headers(&[(NAME, b"v5.channel.k8s.io")]);
        assert_eq!(take_bearer(none), Ok(None));
    }
}
