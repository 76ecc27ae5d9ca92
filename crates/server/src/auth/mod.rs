//! Authentication (client certificate, bearer token, anonymous) and authorization (`nodes/…`
//! subresources, by SubjectAccessReview).

mod cache;
mod metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use longshore_base::budget::{Budget, Holder, Priority};
use longshore_config::Config;
use longshore_serving::Peer;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tracing::warn;

use self::cache::Cache;
pub(super) use self::metrics::Reviews;
use super::audit::{Audit, RequestInfo};
use super::{Refusal, limits};

/// Cache size of each kind of review; small in tests.
const CACHE_SIZE: usize = if cfg!(test) { 32 } else { 4096 };
/// Maximum number of concurrent reviews of each kind.
const MAX_REVIEWS: usize = 8;
/// Maximum number of requests that wait for a TokenReview, each with its headers; small in tests.
const MAX_WAITING: u64 = if cfg!(test) { 64 } else { 256 };

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An authenticated user, in the group `system:authenticated`.
    pub(super) fn authenticated(name: String, mut groups: Vec<String>) -> Self {
        let all = "system:authenticated".to_owned();
        if !groups.contains(&all) {
            groups.push(all);
        }
        Self { name, groups, ..Self::default() }
    }

    /// The user, for limits. The apiserver is one user for all of its clients.
    fn holder(&self) -> Holder {
        let is_system = self.name == "kube-apiserver-kubelet-client"
            || self
                .groups
                .iter()
                .any(|group| matches!(group.as_str(), "system:masters" | "system:nodes"));
        Holder::new(&self.name, if is_system { Priority::System } else { Priority::Ordinary })
    }

    fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }
}

impl From<&longshore_tls::User> for User {
    fn from(user: &longshore_tls::User) -> Self {
        let longshore_tls::User { name, uid, groups, extra } = user.clone();
        Self { uid, extra, ..Self::authenticated(name, groups) }
    }
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Why authentication failed.
enum AuthenticationError {
    /// Invalid or missing credentials; with the reason, for the log.
    Unauthorized(String),
    /// Too many requests from that address wait for a TokenReview.
    Busy,
}

/// Authenticates and authorizes requests.
pub(super) struct Auth {
    node: String,
    anonymous: bool,
    /// Whether streams into pods need the verb `create`, also for GET requests.
    strict_streams: bool,
    /// Client for TokenReviews.
    tokens: Option<Client>,
    /// Client for SubjectAccessReviews; `None`: always allow.
    reviews: Option<Client>,
    /// By digest, as tokens are secret and may be long.
    token_cache: Cache<Digest, User>,
    /// Invalid tokens, in a separate cache, so that forged tokens cannot evict valid ones.
    invalid_tokens: Cache<Digest, ()>,
    token_ttl: Duration,
    authorization_cache: Cache<(User, &'static str, &'static str), bool>,
    authorization_ttls: (Duration, Duration),
    /// Limits concurrent TokenReviews, which unauthenticated clients can cause.
    token_review_permits: Semaphore,
    /// Requests that wait for a TokenReview, by address.
    waiting: Arc<Budget>,
    access_review_permits: Semaphore,
    audit: Arc<Audit>,
    metrics: Reviews,
}

/// SHA-256 of a token.
type Digest = [u8; 32];

/// Webhook authentication or authorization is configured without an apiserver.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} needs a kubeconfig")]
pub struct NoApiserver(&'static str);

impl Auth {
    pub(super) fn new(
        config: &Config,
        client: Option<&Client>,
        audit: Arc<Audit>,
        metrics: Reviews,
    ) -> Result<Self, NoApiserver> {
        let (authentication, authorization) =
            (&config.kubelet.authentication, &config.kubelet.authorization);
        let needed = |wanted: bool, field| match (wanted, client) {
            (true, None) => Err(NoApiserver(field)),
            (true, Some(client)) => Ok(Some(client.clone())),
            (false, _) => Ok(None),
        };
        let webhook = &authorization.webhook;
        Ok(Self {
            node: config.node_name.clone(),
            anonymous: authentication.anonymous.enabled,
            strict_streams: config.strict_streams,
            tokens: needed(authentication.webhook.enabled, "authentication.webhook.enabled")?,
            reviews: needed(authorization.mode == "Webhook", "authorization.mode Webhook")?,
            token_cache: Cache::new(CACHE_SIZE),
            invalid_tokens: Cache::new(CACHE_SIZE),
            token_ttl: authentication.webhook.cache_ttl.get(),
            authorization_cache: Cache::new(CACHE_SIZE),
            authorization_ttls: (
                webhook.cache_authorized_ttl.get(),
                webhook.cache_unauthorized_ttl.get(),
            ),
            token_review_permits: Semaphore::new(MAX_REVIEWS),
            waiting: Budget::new(MAX_WAITING, 0),
            access_review_permits: Semaphore::new(MAX_REVIEWS),
            audit,
            metrics,
        })
    }

    /// The user of a request. Invalid certificates are not treated as anonymous.
    async fn user(&self, headers: &HeaderMap, peer: &Peer) -> Result<User, AuthenticationError> {
        let certified = peer.user();
        if let Ok(Some(user)) = &certified {
            return Ok(User::from(user));
        }
        if let (Some(token), Some(client)) = (bearer(headers), &self.tokens) {
            return self.bearer(client, token, peer).await;
        }
        match certified {
            Err(why) => Err(AuthenticationError::Unauthorized(why)),
            Ok(_) if self.anonymous => Ok(User::anonymous()),
            Ok(_) => Err(AuthenticationError::Unauthorized("no credentials".to_owned())),
        }
    }

    /// The user of a token.
    async fn bearer(
        &self,
        client: &Client,
        token: &str,
        peer: &Peer,
    ) -> Result<User, AuthenticationError> {
        let invalid = || AuthenticationError::Unauthorized("invalid bearer token".to_owned());
        let digest = Digest::from(Sha256::digest(token));
        let known = || match self.token_cache.get(&digest) {
            Some(user) => Some(Some(user)),
            None => self.invalid_tokens.get(&digest).map(|()| None),
        };
        if let Some(known) = known() {
            return known.ok_or_else(invalid);
        }
        let slot = self.waiting.take(&limits::holder_of_address(Some(peer)), 1);
        let _slot = slot.ok_or(AuthenticationError::Busy)?;
        let _permit = self.token_review_permits.acquire().await;
        // a request before this one may have had the same token
        if let Some(known) = known() {
            return known.ok_or_else(invalid);
        }
        let began = Instant::now();
        let answer = review_token(client, token).await;
        self.metrics.observe_token_review(began, &answer);
        match answer {
            Ok(Some(user)) => {
                self.token_cache.insert(digest, user.clone(), self.token_ttl);
                Ok(user)
            }
            Ok(None) => {
                self.invalid_tokens.insert(digest, (), self.token_ttl);
                Err(invalid())
            }
            Err(error) => {
                warn!("TokenReview failed: {error}");
                Err(invalid())
            }
        }
    }

    /// Whether the user is allowed that verb on any of the node's subresources.
    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<bool, KubeError> {
        let Some(client) = &self.reviews else { return Ok(true) };
        for subresource in subresources {
            let key = (user.clone(), verb, *subresource);
            let allowed = match self.authorization_cache.get(&key) {
                Some(known) => known,
                None => {
                    let _permit = self.access_review_permits.acquire().await;
                    match self.authorization_cache.get(&key) {
                        Some(known) => known,
                        None => {
                            let answer = self.review_access(client, user, verb, subresource);
                            let allowed = answer.await?;
                            let (yes, no) = self.authorization_ttls;
                            self.authorization_cache.insert(
                                key,
                                allowed,
                                if allowed { yes } else { no },
                            );
                            allowed
                        }
                    }
                }
            };
            if allowed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn review_access(
        &self,
        client: &Client,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, KubeError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let began = Instant::now();
        let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await;
        self.metrics.observe_access_review(began, &answer);
        Ok(answer?.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

async fn review_token(client: &Client, token: &str) -> Result<Option<User>, KubeError> {
    let review = TokenReview {
        spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
        ..TokenReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    let status = answer.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        return Ok(None);
    }
    let user = status.user.unwrap_or_default();
    Ok(Some(User {
        uid: user.uid.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
        ..User::authenticated(user.username.unwrap_or_default(), user.groups.unwrap_or_default())
    }))
}

/// The middleware of all routes.
pub(super) async fn authenticate_and_authorize(
    State(auth): State<Arc<Auth>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Refusal> {
    let peer = request.extensions().get::<Arc<Peer>>().cloned().unwrap_or_default();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let request_info =
        |user| RequestInfo { address: peer.address, user, method: &method, path: &path };
    let user = auth.user(request.headers(), &peer).await.map_err(|refused| {
        // unauthenticated connections are closed
        peer.close();
        let (refusal, why) = match refused {
            AuthenticationError::Unauthorized(why) => {
                (Refusal(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()), why)
            }
            AuthenticationError::Busy => {
                (limits::too_many(), "too many pending token reviews".to_owned())
            }
        };
        auth.audit.refused(&request_info(""), refusal.0, &why);
        refusal
    })?;
    match auth.check_access(&user, &method, &path).await {
        Ok(()) if peer.authorize(&user.holder()) => {
            request.extensions_mut().insert(user.holder());
            if is_stream(&path) || !matches!(method, Method::GET | Method::HEAD) {
                auth.audit.admitted(&request_info(&user.name));
            }
            Ok(next.run(request).await)
        }
        Ok(()) => Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many connections".to_owned())),
        Err(refusal) => {
            auth.audit.refused(&request_info(&user.name), refusal.0, refusal.1.trim_end());
            Err(refusal)
        }
    }
}

impl Auth {
    /// Authorizes a request.
    async fn check_access(&self, user: &User, method: &Method, path: &str) -> Result<(), Refusal> {
        let verb = match self.strict_streams && is_stream(path) {
            true => "create",
            false => verb(method),
        };
        let subresources = subresources(path);
        let attributes = |subresources: &str| {
            format!("(user={}, verb={verb}, resource=nodes, {subresources})", user.name)
        };
        match self.is_allowed(user, verb, subresources).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let attributes =
                    attributes(&format!("subresource(s)=[{}]", subresources.join(" ")));
                Err(Refusal(StatusCode::FORBIDDEN, format!("Forbidden {attributes}\n")))
            }
            Err(error) => {
                warn!("SubjectAccessReview failed: {error}");
                let attributes =
                    attributes(&format!("subresource={}", subresources.first().unwrap_or(&"")));
                let text = format!("Authorization error {attributes}");
                Err(Refusal(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// Whether the path is a stream into a pod. WebSockets start with a GET, so that `get nodes/proxy`
/// allows running commands, upstream too, unless `--authorization-strict-streams` is set.
fn is_stream(path: &str) -> bool {
    matches!(path.split('/').nth(1).unwrap_or_default(), "exec" | "attach" | "portForward" | "run")
}

/// The subresources that authorize a path: the fine-grained one, then `proxy`.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.split('/').nth(1).unwrap_or_default() {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        "statusz" => &["statusz"],
        "flagz" => &["configz"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_attributes_by_path() {
        for (path, expected) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/stats/summary", &["stats"]),
            ("/logs/", &["log"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/flagz", &["configz"]),
            ("/statusz", &["statusz"]),
            ("/checkpoint/a/b/c", &["checkpoint"]),
            ("/debug/flags/v", &["proxy"]),
            ("//metrics", &["proxy"]),
            ("/%6detrics", &["proxy"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }
}
