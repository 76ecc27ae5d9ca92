//! The HTTPS port of the program: health to everyone, metrics to those whom the apiserver knows and
//! allows to read them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use longshore_base::connections;
use longshore_metrics::Registry;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// The most connections at once: one more closes the oldest of the address that has the most.
const MAX_CONNECTIONS: usize = 100;
/// The most bytes of the head of a request.
const MAX_HEAD: usize = 64 << 10;
/// The longest token and path about which a decision is kept, in bytes.
const MAX_KEY: usize = 8 << 10;
/// The longest handshake, and the longest time for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a decision about a token is kept.
const DECISION_LIFE: Duration = Duration::from_secs(10);
/// The most decisions that are kept.
const MAX_DECISIONS: usize = 1000;

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// Listening failed.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// A certificate or key cannot be read.
    #[error(transparent)]
    Certificate(#[from] longshore_tls::Error),
    /// No certificate could be made.
    #[error("cannot make a serving certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The certificate and key cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// What is served.
pub(crate) struct Endpoints {
    /// Asks the apiserver about tokens.
    pub(crate) client: Client,
    /// The page `/metrics`.
    pub(crate) registry: Registry,
    /// The page `/configz`, as JSON.
    pub(crate) configz: String,
    /// Whether the program works as it should.
    pub(crate) health: Health,
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
    acceptor: TlsAcceptor,
}

impl Serving {
    /// Opens the port, with the certificate of these files or else a new one of its own.
    ///
    /// # Errors
    /// The port cannot be opened, or the certificate cannot be used.
    pub(crate) async fn open(
        address: SocketAddr,
        files: Option<(&Path, &Path)>,
    ) -> Result<Self, ServingError> {
        let (chain, key) = match files {
            Some((certificate, key)) => {
                (longshore_tls::certificates(certificate)?, longshore_tls::private_key(key)?)
            }
            None => self_signed()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| ServingError::Listen(address, error))?;
        Ok(Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Serves for ever.
    pub(crate) async fn run(self, endpoints: Endpoints) {
        let handler = Arc::new(Handler { endpoints, decisions: Mutex::default() });
        let acceptor = self.acceptor;
        let serve = |stream, _| serve(stream, acceptor.clone(), handler.clone());
        connections::serve(self.listener, MAX_CONNECTIONS, serve).await;
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, handler: Arc<Handler>) {
    let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await else { return };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(handler.answer(&request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PATIENCE)
        .max_concurrent_streams(10)
        .max_pending_accept_reset_streams(connections::MAX_RESET_STREAMS)
        .max_local_error_reset_streams(connections::MAX_ERROR_STREAMS);
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        debug!("a connection failed: {error}");
    }
}

fn self_signed() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ServingError> {
    let key = rcgen::KeyPair::generate()?;
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)?.self_signed(&key)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|reason| rustls::Error::General(reason.to_owned()))?;
    Ok((vec![certificate.der().clone()], key))
}

struct Handler {
    endpoints: Endpoints,
    /// Whether the user of a token may read a path, and since when that is known.
    decisions: Mutex<HashMap<(String, String), (StatusCode, Instant)>>,
}

impl Handler {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        }
        let path = request.uri().path();
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        if matches!(first, "healthz" | "livez" | "readyz") {
            return match self.endpoints.health.fault(first) {
                None => text(StatusCode::OK, "ok"),
                Some(fault) => text(StatusCode::INTERNAL_SERVER_ERROR, fault),
            };
        }
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        match self.decide(token, path).await {
            StatusCode::OK => {}
            refused => return text(refused, refused.canonical_reason().unwrap_or_default()),
        }
        match path {
            "/metrics" => {
                let mut page = text(StatusCode::OK, &self.endpoints.registry.text());
                let kind = HeaderValue::from_static(longshore_metrics::CONTENT_TYPE);
                page.headers_mut().insert(CONTENT_TYPE, kind);
                page
            }
            "/configz" => {
                let mut page = text(StatusCode::OK, &self.endpoints.configz);
                let kind = HeaderValue::from_static("application/json");
                page.headers_mut().insert(CONTENT_TYPE, kind);
                page
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    /// Whether the user of the token may read the path.
    async fn decide(&self, token: Option<&str>, path: &str) -> StatusCode {
        let Some(token) = token else { return StatusCode::UNAUTHORIZED };
        let key = (token.to_owned(), path.to_owned());
        let known = self.decisions().get(&key).copied();
        if let Some((status, _)) = known.filter(|(_, since)| since.elapsed() < DECISION_LIFE) {
            return status;
        }
        let status = match self.review(token, path).await {
            Ok(status) => status,
            Err(error) => {
                warn!("cannot authorize a request: {error}");
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
        };
        let mut decisions = self.decisions();
        decisions.retain(|_, (_, since)| since.elapsed() < DECISION_LIFE);
        if decisions.len() < MAX_DECISIONS && key.0.len().saturating_add(key.1.len()) <= MAX_KEY {
            decisions.insert(key, (status, Instant::now()));
        }
        status
    }

    async fn review(&self, token: &str, path: &str) -> kube::Result<StatusCode> {
        let tokens: Api<TokenReview> = Api::all(self.endpoints.client.clone());
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = tokens.create(&PostParams::default(), &review).await?.status;
        let status = status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let UserInfo { username, groups, uid, extra } = user;
        let reviews: Api<SubjectAccessReview> = Api::all(self.endpoints.client.clone());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: username,
                groups,
                uid,
                extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let status = reviews.create(&PostParams::default(), &review).await?.status;
        let allowed = status.is_some_and(|status| status.allowed);
        Ok(if allowed { StatusCode::OK } else { StatusCode::FORBIDDEN })
    }

    fn decisions(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<(String, String), (StatusCode, Instant)>> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The first byte of a TLS alert.
    const ALERT: u8 = 21;

    // Finding 8: the health of the program is behind this port
    #[tokio::test]
    async fn serving_port_is_not_locked_by_idle_connections() {
        let serving = Serving::open("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
        let address = serving.listener.local_addr().unwrap();
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let endpoints = Endpoints {
            client: Client::try_from(nowhere).unwrap(),
            registry: Registry::default(),
            configz: String::new(),
            health: Health::default(),
        };
        let server = tokio::spawn(serving.run(endpoints));
        let mut idle = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"no handshake").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), ALERT);
        server.abort();
    }
}
