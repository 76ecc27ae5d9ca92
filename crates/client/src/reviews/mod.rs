//! Authentication and authorization that a port delegates to the apiserver: TokenReviews and
//! SubjectAccessReviews, cached, and limited in number.

mod metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use longshore_base::budget::{Budget, Holder, Priority};
use longshore_base::ttl_cache::TtlCache;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tracing::warn;

pub use self::metrics::ReviewMetrics;

/// Maximum number of concurrent reviews of each kind.
const MAX_REVIEWS: usize = 8;

/// Limits of the memory that callers can take.
#[derive(Clone, Copy, Debug)]
pub struct ReviewLimits {
    /// Cached results of each kind.
    pub cached: usize,
    /// Requests that wait for a TokenReview, each with its headers.
    pub waiting: u64,
}

impl ReviewLimits {
    /// Those of the kubelet's port.
    pub const DEFAULT: Self = Self { cached: 4096, waiting: 256 };
}

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID; usually empty.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// More of what is known of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An authenticated user, in the group `system:authenticated`.
    #[must_use]
    pub fn authenticated(name: String, mut groups: Vec<String>) -> Self {
        let all = "system:authenticated".to_owned();
        if !groups.contains(&all) {
            groups.push(all);
        }
        Self { name, groups, ..Self::default() }
    }

    /// A user without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }

    /// The user, for limits. The apiserver is one user for all of its clients.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let is_system = self.name == "kube-apiserver-kubelet-client"
            || self
                .groups
                .iter()
                .any(|group| matches!(group.as_str(), "system:masters" | "system:nodes"));
        Holder::new(&self.name, if is_system { Priority::System } else { Priority::Ordinary })
    }
}

impl From<&longshore_tls::User> for User {
    fn from(user: &longshore_tls::User) -> Self {
        let longshore_tls::User { name, uid, groups, extra } = user.clone();
        Self { uid, extra, ..Self::authenticated(name, groups) }
    }
}

/// The bearer token of a request.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Why authentication failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// Invalid or missing credentials; with the reason, for the log.
    #[error("{0}")]
    Unauthorized(String),
    /// Too many requests from that address wait for a TokenReview.
    #[error("too many pending token reviews")]
    Busy,
}

/// SHA-256 of a token.
type Digest = [u8; 32];

/// Authenticates bearer tokens.
pub struct TokenReviews {
    client: Client,
    /// By digest, as tokens are secret and may be long.
    valid: TtlCache<Digest, User>,
    /// Invalid tokens, in a separate cache, so that forged tokens cannot evict valid ones.
    invalid: TtlCache<Digest, ()>,
    ttl: Duration,
    /// Limits concurrent reviews, which unauthenticated clients can cause.
    permits: Semaphore,
    /// Requests that wait for a review, by address.
    waiting: Arc<Budget>,
    metrics: ReviewMetrics,
}

impl TokenReviews {
    /// Results are cached for `ttl`.
    #[must_use]
    pub fn new(
        client: Client,
        ttl: Duration,
        limits: ReviewLimits,
        metrics: ReviewMetrics,
    ) -> Self {
        Self {
            client,
            valid: TtlCache::new(limits.cached),
            invalid: TtlCache::new(limits.cached),
            ttl,
            permits: Semaphore::new(MAX_REVIEWS),
            waiting: Budget::new(limits.waiting, 0),
            metrics,
        }
    }

    /// The user of a token that came from this address.
    ///
    /// # Errors
    /// The token is not valid, or cannot be reviewed.
    pub async fn user(&self, token: &str, address: &Holder) -> Result<User, AuthenticationError> {
        let invalid = || AuthenticationError::Unauthorized("invalid bearer token".to_owned());
        let digest = Digest::from(Sha256::digest(token));
        let known = || match self.valid.get(&digest) {
            Some(user) => Some(Some(user)),
            None => self.invalid.get(&digest).map(|()| None),
        };
        if let Some(known) = known() {
            return known.ok_or_else(invalid);
        }
        let _slot = self.waiting.take(address, 1).ok_or(AuthenticationError::Busy)?;
        let _permit = self.permits.acquire().await;
        // a request before this one may have had the same token
        if let Some(known) = known() {
            return known.ok_or_else(invalid);
        }
        let began = Instant::now();
        let answer = review_token(&self.client, token).await;
        self.metrics.observe_token_review(began, &answer);
        match answer {
            Ok(Some(user)) => {
                self.valid.insert(digest, user.clone(), self.ttl);
                Ok(user)
            }
            Ok(None) => {
                self.invalid.insert(digest, (), self.ttl);
                Err(invalid())
            }
            Err(error) => {
                warn!("TokenReview failed: {error}");
                Err(invalid())
            }
        }
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

/// What a user wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A verb on a subresource of a node.
    Node {
        /// The verb.
        verb: &'static str,
        /// The subresource.
        subresource: &'static str,
        /// The name of the node.
        name: Arc<str>,
    },
    /// A verb on a path.
    Path {
        /// The verb.
        verb: &'static str,
        /// The path.
        path: String,
    },
}

impl Attributes {
    fn spec(&self) -> SubjectAccessReviewSpec {
        match self {
            Self::Node { verb, subresource, name } => SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some((*verb).to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some((*subresource).to_owned()),
                    name: Some(name.to_string()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            Self::Path { verb, path } => SubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    verb: Some((*verb).to_owned()),
                    path: Some(path.clone()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
        }
    }
}

/// How long decisions are cached.
#[derive(Clone, Copy, Debug)]
pub struct DecisionTtls {
    /// Those that allow.
    pub allowed: Duration,
    /// Those that deny.
    pub denied: Duration,
}

/// Authorizes users.
pub struct AccessReviews {
    client: Client,
    cache: TtlCache<(User, Attributes), bool>,
    ttls: DecisionTtls,
    permits: Semaphore,
    metrics: ReviewMetrics,
}

impl AccessReviews {
    /// Decisions are cached for these times.
    #[must_use]
    pub fn new(
        client: Client,
        ttls: DecisionTtls,
        limits: ReviewLimits,
        metrics: ReviewMetrics,
    ) -> Self {
        let cache = TtlCache::new(limits.cached);
        Self { client, cache, ttls, permits: Semaphore::new(MAX_REVIEWS), metrics }
    }

    /// Whether the user is allowed to do that.
    ///
    /// # Errors
    /// The apiserver does not decide.
    pub async fn is_allowed(&self, user: &User, attributes: Attributes) -> Result<bool, KubeError> {
        let key = (user.clone(), attributes);
        if let Some(known) = self.cache.get(&key) {
            return Ok(known);
        }
        let _permit = self.permits.acquire().await;
        if let Some(known) = self.cache.get(&key) {
            return Ok(known);
        }
        let allowed = self.review(user, &key.1).await?;
        let ttl = if allowed { self.ttls.allowed } else { self.ttls.denied };
        self.cache.insert(key, allowed, ttl);
        Ok(allowed)
    }

    async fn review(&self, user: &User, attributes: &Attributes) -> Result<bool, KubeError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                ..attributes.spec()
            },
            ..SubjectAccessReview::default()
        };
        let began = Instant::now();
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await;
        self.metrics.observe_access_review(began, &answer);
        Ok(answer?.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}
