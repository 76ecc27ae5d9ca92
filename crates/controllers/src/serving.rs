//! The HTTPS port of the programs: health to everyone, metrics and configuration to those whom the
//! apiserver knows and allows to read them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use kube::Client;
use longshore_base::connections::{Unadmitted, listen};
use longshore_base::panics;
use longshore_client::reviews::{
    AccessReviews, Attributes, AuthenticationError, DecisionTtls, ReviewLimits, ReviewMetrics,
    TokenReviews, User, bearer,
};
use longshore_metrics::{ClientCertificates, Healthchecks, Registry};
use longshore_serving::tls::{
    ClientCaFile, ServingCertificate, SniCertificate, Tls, TlsError, TlsSettings, provider,
    versions,
};
use longshore_serving::{Guarded, Handler, Options, PROFILES, Peer, Profiles, serve};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::delegated::{DelegatedAuthentication, DelegatedOptions};

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// Listening failed.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// A file or setting of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No certificate could be made.
    #[error("cannot make a serving certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The certificate that was made cannot be used.
    #[error("cannot use a serving certificate of its own: {0}")]
    OwnCertificate(#[from] rustls::Error),
    /// The CAs of clients are required to be known, and cannot be read.
    #[error("unable to load configmap based request-header-client-ca-file: {0}")]
    Lookup(String),
}

/// The flags of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortOptions {
    pub(crate) address: SocketAddr,
    /// Certificate and key; `None`: a self-signed certificate, made at each start.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Where the CAs of client certificates and of front proxies come from.
    pub(crate) delegated: DelegatedOptions,
    pub(crate) tls_min_version: String,
    pub(crate) cipher_suites: Vec<String>,
    /// Key exchanges by number; empty: all.
    pub(crate) curves: Vec<i32>,
    /// Certificates for clients that ask for certain names.
    pub(crate) sni: Vec<SniCertificate>,
    /// Whether HTTP/1.1 alone is served.
    pub(crate) http1_alone: bool,
    /// Whether `/debug/pprof/` is served.
    pub(crate) profiling: bool,
    /// Paths that need no credentials; those that end with `*` are prefixes.
    pub(crate) always_allow_paths: Vec<String>,
    /// How long the user of a token is cached.
    pub(crate) token_ttl: Duration,
    pub(crate) decision_ttls: DecisionTtls,
}

/// What is served.
pub(crate) struct Endpoints {
    /// Who reviews tokens and access.
    pub(crate) reviewers: Reviewers,
    /// The page `/metrics`.
    pub(crate) registry: Registry,
    /// More pages of metrics, by their paths.
    pub(crate) more: Vec<(&'static str, Registry)>,
    /// The page `/configz`, as JSON.
    pub(crate) configz: String,
    /// Whether the program works as it should.
    pub(crate) health: Health,
}

/// Clients of the apiserver that authenticates and authorizes.
pub(crate) struct Reviewers {
    /// Reviews tokens, and reads the ConfigMap with the CAs of clients.
    pub(crate) authentication: Client,
    /// Reviews access.
    pub(crate) authorization: Client,
}

/// The health of the program, as its parts report it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Health {
    lost_lease: Arc<AtomicBool>,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for Health {
    fn default() -> Self {
        Self::with_readiness(|| true)
    }
}

impl Health {
    /// Healthy, and ready when `ready` says so.
    pub(crate) fn with_readiness(ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { lost_lease: Arc::default(), ready: Arc::new(ready) }
    }

    /// The lease is lost: the program ends.
    pub(crate) fn set_unhealthy(&self) {
        self.lost_lease.store(true, Ordering::Relaxed);
    }

    /// The checks behind a page, and whether they pass.
    fn checks(&self, page: &str) -> Vec<(&'static str, bool)> {
        let mut checks = vec![("leaderElection", !self.lost_lease.load(Ordering::Relaxed))];
        if page == "readyz" {
            checks.push(("informer-sync", (self.ready)()));
        }
        checks
    }

    /// What is wrong, of `/healthz`, `/livez` or `/readyz`.
    fn fault(&self, page: &str) -> Option<&'static str> {
        if self.lost_lease.load(Ordering::Relaxed) {
            Some("leader election lost\n")
        } else if page == "readyz" && !(self.ready)() {
            Some("not ready\n")
        } else {
            None
        }
    }
}

/// An open port.
pub(crate) struct Serving {
    listener: TcpListener,
    tls: Arc<Tls>,
    handler: Arc<Port>,
}

impl Serving {
    /// Opens the port.
    ///
    /// # Errors
    /// The port cannot be opened, or the certificate or the CA cannot be used.
    pub(crate) fn open(options: PortOptions, endpoints: Endpoints) -> Result<Self, ServingError> {
        let provider = Arc::new(provider(&options.cipher_suites, &options.curves)?);
        let certificate = match options.certificate {
            Some(pair) => {
                ServingCertificate::Files { pairs: vec![pair], awaits_signing: false, reload: true }
            }
            None => ServingCertificate::Fixed(self_signed(&provider)?),
        };
        let tls = Arc::new(Tls::new(TlsSettings {
            certificate,
            client_ca: options
                .delegated
                .client_ca
                .clone()
                .map(|path| ClientCaFile { path, reload: true }),
            provider: provider.clone(),
            versions: versions(&options.tls_min_version),
            sni: options.sni,
            http1_alone: options.http1_alone,
        })?);
        let certificates = DelegatedAuthentication::new(options.delegated, tls.clone(), provider)?;
        let listener = listen(options.address)
            .map_err(|error| ServingError::Listen(options.address, error))?;
        let metrics = ReviewMetrics::new(&endpoints.registry);
        let limits = ReviewLimits::DEFAULT;
        let slis = Registry::default();
        let checks = Healthchecks::new(&slis);
        let Reviewers { authentication, authorization } = &endpoints.reviewers;
        let (ttl, ttls) = (options.token_ttl, options.decision_ttls);
        let handler = Port {
            certificates,
            tokens: TokenReviews::new(authentication.clone(), ttl, limits, metrics.clone()),
            client_certificates: metrics.certificates.clone(),
            access: AccessReviews::new(authorization.clone(), ttls, limits, metrics),
            always_allow_paths: options.always_allow_paths,
            checks,
            slis,
            endpoints,
            profiles: options.profiling.then(Profiles::default),
        };
        Ok(Self { listener, tls, handler: Arc::new(handler) })
    }

    /// Reads the CAs of clients from the apiserver, where the flags require that this succeeds before
    /// anything is served.
    ///
    /// # Errors
    /// They are required, and cannot be read.
    pub(crate) async fn look_up(&self) -> Result<(), ServingError> {
        let client = self.handler.endpoints.reviewers.authentication.clone();
        self.handler.certificates.look_up(client).await.map_err(ServingError::Lookup)
    }

    /// The address that it listens on.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Serves for ever.
    pub(crate) async fn run(self) {
        let never = CancellationToken::new();
        let handler = self.handler.clone();
        let client = handler.endpoints.reviewers.authentication.clone();
        tokio::join!(
            serve(self.listener, Some(self.tls), self.handler, Options::DEFAULT, never),
            handler.certificates.run(client),
        );
    }
}

fn self_signed(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, ServingError> {
    let key = rcgen::KeyPair::generate()?;
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)?.self_signed(&key)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|reason| rustls::Error::General(reason.to_owned()))?;
    Ok(Arc::new(CertifiedKey::from_der(vec![certificate.der().clone()], key, provider)?))
}

type Answer = Response<Full<Bytes>>;

/// Answers requests.
struct Port {
    client_certificates: ClientCertificates,
    endpoints: Endpoints,
    certificates: DelegatedAuthentication,
    tokens: TokenReviews,
    access: AccessReviews,
    always_allow_paths: Vec<String>,
    checks: Healthchecks,
    /// The page `/metrics/slis`.
    slis: Registry,
    /// `None`: they are not served.
    profiles: Option<Profiles>,
}

impl Handler for Port {
    type Body = Guarded<Full<Bytes>, Option<Unadmitted>>;

    async fn handle(
        self: Arc<Self>,
        peer: Arc<Peer>,
        request: Request<Incoming>,
        unadmitted: Unadmitted,
    ) -> Response<Self::Body> {
        let (mut head, _) = request.into_parts();
        let answer = async { self.answer(&peer, &head.method, &head.uri, &mut head.headers).await };
        let answer = panics::contained(answer, || {
            text(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
        })
        .await;
        let is_refused = !answer.status().is_success();
        answer.map(|body| Guarded::new(body, Some(unadmitted).filter(|_| is_refused)))
    }

    fn too_many(&self) -> Response<Self::Body> {
        too_many().map(|body| Guarded::new(body, None))
    }
}

impl Port {
    async fn answer(
        &self,
        peer: &Peer,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
    ) -> Answer {
        let path = uri.path();
        let verb = match *method {
            Method::GET => "get",
            Method::HEAD => "head",
            _ => return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n"),
        };
        if !self.always_allows(path)
            && let Err(refusal) = self.authorize(peer, verb, path, headers).await
        {
            return *refusal;
        }
        if let (Some(profiles), Some(name)) = (&self.profiles, path.strip_prefix(PROFILES)) {
            return profiles.page(name, uri.query().unwrap_or_default()).await.into_response();
        }
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        match (path, first) {
            (_, "healthz" | "livez" | "readyz") => {
                let health = &self.endpoints.health;
                for (name, passed) in health.checks(first) {
                    self.checks.checked(name, first, passed);
                }
                match health.fault(first) {
                    None => text(StatusCode::OK, "ok"),
                    Some(fault) => text(StatusCode::INTERNAL_SERVER_ERROR, fault),
                }
            }
            ("/metrics/slis", _) => {
                page(StatusCode::OK, longshore_metrics::CONTENT_TYPE, self.slis.text())
            }
            ("/metrics", _) => page(
                StatusCode::OK,
                longshore_metrics::CONTENT_TYPE,
                self.endpoints.registry.text(),
            ),
            ("/configz", _) => {
                page(StatusCode::OK, "application/json", self.endpoints.configz.clone())
            }
            _ => match self.endpoints.more.iter().find(|(known, _)| *known == path) {
                Some((_, registry)) => {
                    page(StatusCode::OK, longshore_metrics::CONTENT_TYPE, registry.text())
                }
                None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            },
        }
    }

    fn always_allows(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.always_allow_paths.iter().any(|allowed| {
            let allowed = allowed.trim_start_matches('/');
            match allowed.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => path == allowed,
            }
        })
    }

    /// Authenticates and authorizes a request; the error is the response.
    async fn authorize(
        &self,
        peer: &Peer,
        verb: &'static str,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<Answer>> {
        let user = self.user(peer, headers).await.map_err(|refused| {
            debug!(%refused, "request refused");
            // unauthenticated connections are closed
            peer.close();
            Box::new(match refused {
                AuthenticationError::Unauthorized(_) => {
                    status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
                }
                AuthenticationError::Busy => too_many(),
            })
        })?;
        let attributes = Attributes::Path { verb, path: path.to_owned() };
        let allowed = match user.groups.iter().any(|group| group == "system:masters") {
            true => Ok(true),
            false => self.access.is_allowed(&user, attributes).await,
        };
        match allowed {
            Ok(true) if peer.authorize(&user.holder()) => Ok(()),
            Ok(true) => Err(Box::new(too_many())),
            Ok(false) => {
                info!(user = user.name, verb, path, "request forbidden");
                let why = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
                Err(Box::new(status(StatusCode::FORBIDDEN, "Forbidden", &why)))
            }
            Err(error) => {
                warn!("SubjectAccessReview failed: {error}");
                let why = format!("Internal Server Error: {path:?}: {error}\n");
                Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, &why)))
            }
        }
    }

    /// The user that a front proxy names, or of a client certificate, or of a token. Invalid credentials
    /// are not treated as anonymous.
    async fn user(
        &self,
        peer: &Peer,
        headers: &mut HeaderMap,
    ) -> Result<User, AuthenticationError> {
        if let Some(user) = self.certificates.vouched_for(peer, headers) {
            return Ok(user);
        }
        let certified = peer.user();
        if let Ok(Some(user)) = &certified {
            self.client_certificates.used(peer.certificate_remaining());
            return Ok(User::from(user));
        }
        match (bearer(headers), certified) {
            (Some(token), _) => self.tokens.user(token, peer.address_holder()).await,
            (None, Err(why)) => Err(AuthenticationError::Unauthorized(why)),
            (None, Ok(_)) => Ok(User::anonymous()),
        }
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn text(status: StatusCode, text: &str) -> Answer {
    page(status, "text/plain; charset=utf-8", text.to_owned())
}

fn too_many() -> Answer {
    text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n")
}

/// An error as a `Status` object.
fn status(code: StatusCode, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": {},
        "code": code.as_u16(),
    });
    page(code, "application/json", status.to_string())
}

#[cfg(test)]
mod tests;
