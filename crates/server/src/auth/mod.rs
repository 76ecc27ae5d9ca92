//! Who asks (client certificate, bearer token, anonymous) and whether they may (`nodes/…` in the
//! API's own authorization).

mod cache;
mod certified;
mod metrics;

use std::collections::BTreeMap;
use std::net::SocketAddr;
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
use longshore_base::connections::Connection;
use longshore_config::Config;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, watch};
use tracing::warn;

use self::cache::Cache;
pub(super) use self::certified::Certified;
pub(super) use self::metrics::Reviews;
use super::audit::{Asked, Audit};
use super::listen::Pace;
use super::{Refusal, limits};

/// Answers remembered of each kind; few in tests, which fill it up.
const REMEMBERED: usize = if cfg!(test) { 32 } else { 4096 };
/// Questions to the apiserver at one time, of each of the two kinds.
const QUESTIONS: usize = 8;
/// Requests that wait for an answer about a token; few in tests. Each of them holds its headers.
const WAITING: u64 = if cfg!(test) { 64 } else { 256 };

/// Somebody who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with a proof, which makes them a member of one more group.
    pub(super) fn authenticated(name: String, mut groups: Vec<String>) -> Self {
        let all = "system:authenticated".to_owned();
        if !groups.contains(&all) {
            groups.push(all);
        }
        Self { name, groups, ..Self::default() }
    }

    /// The user as a holder of connections. The apiserver comes as one user for all of its callers.
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

/// The other end of a connection.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) address: Option<SocketAddr>,
    /// By its certificate; `None` where nobody shows one.
    pub(super) certified: Option<Certified>,
    /// The connection as the port's limiter knows it.
    pub(super) connection: Option<Arc<Connection>>,
    /// What it does.
    pub(super) pace: watch::Sender<Pace>,
}

impl Peer {
    /// A request of this user is authorized, and so is the connection; `false`: there are too many.
    fn authorize(&self, user: &User) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.authorize(&user.holder()))
    }
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Why nobody is known to send a request.
enum Refused {
    /// What it shows proves nothing; with the reason, for the log.
    Unauthorized(String),
    /// Too many requests from there wait for the apiserver's word on their tokens.
    Busy,
}

/// Decides on every request.
pub(super) struct Auth {
    node: String,
    anonymous: bool,
    /// Whether to run something in a pod takes leave to create, also when it is begun by a GET.
    strict_streams: bool,
    /// Asks the apiserver about tokens.
    tokens: Option<Client>,
    /// Asks the apiserver for leave; `None`: everybody may.
    reviews: Option<Client>,
    /// By a digest: tokens are secrets, and as long as whoever sends them likes.
    token_cache: Cache<Digest, User>,
    /// Tokens that are no good. On their own: whoever makes up tokens has none of the others
    /// forgotten.
    refused_tokens: Cache<Digest, ()>,
    token_life: Duration,
    authorization_cache: Cache<(User, &'static str, &'static str), bool>,
    leave_lives: (Duration, Duration),
    /// Turns for questions about tokens, which a stranger can cause as many of as they like.
    token_questions: Semaphore,
    /// Who waits for such a turn, by address.
    waiting: Arc<Budget>,
    leave_questions: Semaphore,
    audit: Arc<Audit>,
    told: Reviews,
}

/// SHA-256 of a token.
type Digest = [u8; 32];

/// The settings ask for an apiserver's word where there is no apiserver.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} needs a kubeconfig")]
pub struct NoApiserver(&'static str);

impl Auth {
    pub(super) fn new(
        config: &Config,
        client: Option<&Client>,
        audit: Arc<Audit>,
        told: Reviews,
    ) -> Result<Self, NoApiserver> {
        let (authentication, authorization) =
            (&config.kubelet.authentication, &config.kubelet.authorization);
        let needed = |wanted: bool, field| match (wanted, client) {
            (true, None) => Err(NoApiserver(field)),
            (true, Some(client)) => Ok(Some(client.clone())),
            (false, _) => Ok(None),
        };
        let lives = &authorization.webhook;
        Ok(Self {
            node: config.node_name.clone(),
            anonymous: authentication.anonymous.enabled,
            strict_streams: config.strict_streams,
            tokens: needed(authentication.webhook.enabled, "authentication.webhook.enabled")?,
            reviews: needed(authorization.mode == "Webhook", "authorization.mode Webhook")?,
            token_cache: Cache::new(REMEMBERED),
            refused_tokens: Cache::new(REMEMBERED),
            token_life: authentication.webhook.cache_ttl.get(),
            authorization_cache: Cache::new(REMEMBERED),
            leave_lives: (lives.cache_authorized_ttl.get(), lives.cache_unauthorized_ttl.get()),
            token_questions: Semaphore::new(QUESTIONS),
            waiting: Budget::new(WAITING, 0),
            leave_questions: Semaphore::new(QUESTIONS),
            audit,
            told,
        })
    }

    /// Who sends the request; the error says why that is nobody who may come in. Who shows something
    /// that is no good does not fall back to being nobody in particular.
    async fn user(&self, headers: &HeaderMap, peer: &Peer) -> Result<User, Refused> {
        let certified = peer.certified.as_ref().map_or(Ok(None), Certified::user);
        if let Ok(Some(user)) = certified {
            return Ok(user);
        }
        if let (Some(token), Some(client)) = (bearer(headers), &self.tokens) {
            return self.bearer(client, token, peer).await;
        }
        match certified {
            Err(why) => Err(Refused::Unauthorized(why)),
            Ok(_) if self.anonymous => Ok(User::anonymous()),
            Ok(_) => Err(Refused::Unauthorized("it shows nothing".to_owned())),
        }
    }

    /// Who holds that token.
    async fn bearer(&self, client: &Client, token: &str, peer: &Peer) -> Result<User, Refused> {
        let no_good = || Refused::Unauthorized("its bearer token is no good".to_owned());
        let digest = Digest::from(Sha256::digest(token));
        let known = || match self.token_cache.get(&digest) {
            Some(user) => Some(Some(user)),
            None => self.refused_tokens.get(&digest).map(|()| None),
        };
        if let Some(known) = known() {
            return known.ok_or_else(no_good);
        }
        let waits = self.waiting.take(&limits::address(Some(peer)), 1);
        let _waits = waits.ok_or(Refused::Busy)?;
        let _turn = self.token_questions.acquire().await;
        // who asked before may have had the same question
        if let Some(known) = known() {
            return known.ok_or_else(no_good);
        }
        let began = Instant::now();
        let answer = review_token(client, token).await;
        self.told.token(began, &answer);
        match answer {
            Ok(Some(user)) => {
                self.token_cache.insert(digest, user.clone(), self.token_life);
                Ok(user)
            }
            Ok(None) => {
                self.refused_tokens.insert(digest, (), self.token_life);
                Err(no_good())
            }
            Err(error) => {
                warn!("cannot ask the apiserver about a token: {error}");
                Err(no_good())
            }
        }
    }

    /// Whether the user may do that with any of the node's subresources.
    async fn may(
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
                    let _turn = self.leave_questions.acquire().await;
                    match self.authorization_cache.get(&key) {
                        Some(known) => known,
                        None => {
                            let answer = self.review_access(client, user, verb, subresource);
                            let allowed = answer.await?;
                            let (yes, no) = self.leave_lives;
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
        self.told.leave(began, &answer);
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

/// The gate before every route.
pub(super) async fn gate(
    State(auth): State<Arc<Auth>>,
    mut request: Request<Body>,
    next: Next,
) -> Result<Response, Refusal> {
    let peer = request.extensions().get::<Arc<Peer>>().cloned().unwrap_or_default();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let asked = |user| Asked { address: peer.address, user, method: &method, path: &path };
    let user = auth.user(request.headers(), &peer).await.map_err(|refused| {
        // who has nothing to show may not hold the line either
        Pace::turn_away(&peer.pace);
        let (refusal, why) = match refused {
            Refused::Unauthorized(why) => {
                (Refusal(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()), why)
            }
            Refused::Busy => (limits::too_many(), "too many tokens to ask about".to_owned()),
        };
        auth.audit.refused(&asked(""), refusal.0, &why);
        refusal
    })?;
    match auth.admit(&user, &method, &path).await {
        Ok(()) if peer.authorize(&user) => {
            request.extensions_mut().insert(user.holder());
            if is_stream(&path) || !matches!(method, Method::GET | Method::HEAD) {
                auth.audit.admitted(&asked(&user.name));
            }
            Ok(next.run(request).await)
        }
        Ok(()) => Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many connections".to_owned())),
        Err(refusal) => {
            auth.audit.refused(&asked(&user.name), refusal.0, refusal.1.trim_end());
            Err(refusal)
        }
    }
}

impl Auth {
    /// Whether the user may do that to the path.
    async fn admit(&self, user: &User, method: &Method, path: &str) -> Result<(), Refusal> {
        let verb = match self.strict_streams && is_stream(path) {
            true => "create",
            false => verb(method),
        };
        let subresources = subresources(path);
        let attributes = |subresources: &str| {
            format!("(user={}, verb={verb}, resource=nodes, {subresources})", user.name)
        };
        match self.may(user, verb, subresources).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let asked = attributes(&format!("subresource(s)=[{}]", subresources.join(" ")));
                Err(Refusal(StatusCode::FORBIDDEN, format!("Forbidden {asked}\n")))
            }
            Err(error) => {
                warn!("cannot ask the apiserver for leave: {error}");
                let asked =
                    attributes(&format!("subresource={}", subresources.first().unwrap_or(&"")));
                let text = format!("Authorization error {asked}");
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

/// Whether the path leads into a pod. A WebSocket begins with a GET, so that who may merely read the
/// node's `proxy` runs commands, upstream too, unless `--authorization-strict-streams` is set.
fn is_stream(path: &str) -> bool {
    matches!(path.split('/').nth(1).unwrap_or_default(), "exec" | "attach" | "portForward" | "run")
}

/// What leave a path takes: the fine-grained one, then the one for everything.
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
    fn each_path_has_its_leave() {
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
