//! Authentication (client certificate, bearer token, anonymous) and authorization (`nodes/…`
//! subresources, by SubjectAccessReview).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use kube::{Client, Error as KubeError};
pub(super) use longshore_client::reviews::ReviewMetrics;
use longshore_client::reviews::{
    AccessReviews, Attributes, AuthenticationError, DecisionTtls, ReviewLimits, TokenReviews, User,
    bearer,
};
use longshore_config::Config;
use longshore_metrics::ClientCertificates;
use longshore_serving::Peer;
use tracing::warn;

use super::audit::{Audit, RequestInfo};
use super::{Refusal, limits};

/// Small in tests.
const LIMITS: ReviewLimits =
    if cfg!(test) { ReviewLimits { cached: 32, waiting: 64 } } else { ReviewLimits::DEFAULT };

/// Authenticates and authorizes requests.
pub(super) struct Auth {
    node: Arc<str>,
    anonymous: bool,
    /// Whether streams into pods need the verb `create`, also for GET requests.
    strict_streams: bool,
    /// `None`: bearer tokens are not used.
    tokens: Option<TokenReviews>,
    /// `None`: always allow.
    reviews: Option<AccessReviews>,
    audit: Arc<Audit>,
    certificates: ClientCertificates,
}

/// Webhook authentication or authorization is configured without an apiserver.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} needs a kubeconfig")]
pub struct NoApiserver(&'static str);

impl Auth {
    pub(super) fn new(
        config: &Config,
        client: Option<&Client>,
        audit: Arc<Audit>,
        metrics: ReviewMetrics,
    ) -> Result<Self, NoApiserver> {
        let (authentication, authorization) =
            (&config.kubelet.authentication, &config.kubelet.authorization);
        let needed = |wanted: bool, field| match (wanted, client) {
            (true, None) => Err(NoApiserver(field)),
            (true, Some(client)) => Ok(Some(client.clone())),
            (false, _) => Ok(None),
        };
        let tokens = needed(authentication.webhook.enabled, "authentication.webhook.enabled")?.map(
            |client| {
                let ttl = authentication.webhook.cache_ttl.get();
                TokenReviews::new(client, ttl, LIMITS, metrics.clone())
            },
        );
        let reviews = needed(authorization.mode == "Webhook", "authorization.mode Webhook")?;
        let ttls = DecisionTtls {
            allowed: authorization.webhook.cache_authorized_ttl.get(),
            denied: authorization.webhook.cache_unauthorized_ttl.get(),
        };
        let certificates = metrics.certificates.clone();
        Ok(Self {
            certificates,
            node: config.node_name.as_str().into(),
            anonymous: authentication.anonymous.enabled,
            strict_streams: config.strict_streams,
            tokens,
            reviews: reviews.map(|client| AccessReviews::new(client, ttls, LIMITS, metrics)),
            audit,
        })
    }

    /// The user of a request. Invalid certificates are not treated as anonymous.
    async fn user(&self, headers: &HeaderMap, peer: &Peer) -> Result<User, AuthenticationError> {
        let certified = peer.user();
        if let Ok(Some(user)) = &certified {
            self.certificates.used(peer.certificate_remaining());
            return Ok(User::from(user));
        }
        if let (Some(token), Some(tokens)) = (bearer(headers), &self.tokens) {
            return tokens.user(token, peer.address_holder()).await;
        }
        match certified {
            Err(why) => Err(AuthenticationError::Unauthorized(why)),
            Ok(_) if self.anonymous => Ok(User::anonymous()),
            Ok(_) => Err(AuthenticationError::Unauthorized("no credentials".to_owned())),
        }
    }

    /// Whether the user is allowed that verb on any of the node's subresources.
    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<bool, KubeError> {
        let Some(reviews) = &self.reviews else { return Ok(true) };
        for &subresource in subresources {
            let attributes = Attributes::Node { verb, subresource, name: Arc::clone(&self.node) };
            if reviews.is_allowed(user, attributes).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
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
        let refusal = match &refused {
            AuthenticationError::Unauthorized(_) => {
                Refusal(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned())
            }
            AuthenticationError::Busy => limits::too_many(),
        };
        auth.audit.refused(&request_info(""), refusal.0, &refused.to_string());
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
