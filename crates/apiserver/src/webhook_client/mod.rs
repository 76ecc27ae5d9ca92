//! Calls of webhooks: a POST of JSON to a URL or a service, over TLS, answered by JSON. Used by admission
//! and for the conversion of custom resources, each with a client of its own.
//!
//! What a webhook does is bounded: the time until its answer is read, the size of the answer, and how
//! many calls and large answers there are at once. Redirects are not followed. Connections are kept for
//! the next call with the same configuration.

mod config;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use longshore_telemetry::{Kind, TRACEPARENT, child};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use self::config::ClientConfig;
use self::config::Target;
use crate::http_client::{
    Sender, Tls, connect, connect_through, proxy, read, refusal, trace_header,
};
use crate::registry::Registry;
use crate::remote::{Access, Connections, HostCredentials};
use crate::service_resolver::ServiceResolver;

/// The most calls at once.
const MAX_CALLS: usize = 512;
/// The largest answer: a patch of the largest object in base64, and as much again.
const MAX_ANSWER: usize = 8 << 20;
/// The most large answers at once.
const MAX_LARGE: usize = 4;
/// Configurations whose connections are kept.
const MAX_KEPT: usize = 64;

/// Why a call failed, in the words of upstream's client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// The configuration cannot be used.
    #[error("could not get REST client: {0}")]
    Config(String),
    /// There was no whole answer.
    #[error("failed to call webhook: {}", self.reason())]
    Call { url: String, reason: String },
    /// The answer was an error.
    #[error("failed to call webhook: {}", self.reason())]
    Status { code: u16, reason: String },
}

impl Error {
    /// The same without the framing of admission.
    pub(crate) fn reason(&self) -> String {
        match self {
            Error::Config(reason) | Error::Status { reason, .. } => reason.clone(),
            Error::Call { url, reason } => format!("Post {url:?}: {reason}"),
        }
    }

    /// The HTTP status that counts for it.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Error::Config(_) => 500,
            Error::Call { .. } => 503,
            Error::Status { code, .. } => *code,
        }
    }
}

/// Calls webhooks.
pub(crate) struct WebhookClient {
    resolver: ServiceResolver,
    /// What webhooks are shown.
    credentials: HostCredentials,
    calls: Semaphore,
    large: Semaphore,
    /// What is kept for calls with one configuration.
    kept: Mutex<HashMap<ClientConfig, Arc<Access>>>,
}

impl WebhookClient {
    pub(crate) fn new(resolver: ServiceResolver, credentials: HostCredentials) -> WebhookClient {
        WebhookClient {
            resolver,
            credentials,
            calls: Semaphore::new(MAX_CALLS),
            large: Semaphore::new(MAX_LARGE),
            kept: Mutex::default(),
        }
    }

    /// POSTs a JSON document, and returns the body of an answer with a status of success. `limit` is for
    /// all of it, from the wait for a slot to the last byte.
    pub(crate) async fn call(
        &self,
        registry: &Registry,
        config: &ClientConfig,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, Error> {
        let failed = |reason: String| Error::Call { url: config.url(limit), reason };
        timeout(limit, async {
            let _slot = self.calls.acquire().await;
            let mut span = child("HTTP POST", Kind::Client);
            span.text("http.request.method", "POST");
            span.text("url.full", config.url(limit));
            let context = trace_header(&span);
            let kept = self.kept(config).map_err(Error::Config)?;
            let prepared = kept.prepare().await.map_err(failed)?;
            let Connections { tls, pool } = &*prepared.connections;
            let exchange = pool.exchange(
                || request(config, body.clone(), prepared.header.as_ref(), context.as_ref(), limit),
                || self.connect(registry, config, tls).boxed(),
            );
            let (response, sender) = exchange.await.map_err(failed)?;
            let code = response.status();
            span.number("http.response.status_code", code.as_u16().into());
            if code.is_server_error() {
                span.fail("");
            }
            let body = read(response, MAX_ANSWER, Some(&self.large)).await.map_err(failed)?;
            pool.keep(sender);
            kept.answered(&prepared, code.as_u16()).await;
            match code.is_success() {
                true => Ok(body),
                false => Err(Error::Status {
                    code: code.as_u16(),
                    reason: refusal(code.as_u16(), &body),
                }),
            }
        })
        .await
        .unwrap_or_else(|_| Err(failed("context deadline exceeded".to_owned())))
    }

    fn kept(&self, config: &ClientConfig) -> Result<Arc<Access>, String> {
        if let Some(kept) = self.kept.lock().get(config) {
            return Ok(kept.clone());
        }
        let shown = self.credentials.of(&config.server_name(), config.port());
        let fresh = Arc::new(Access::verified_by(config.ca_bundle.as_deref(), shown)?);
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        Ok(kept.entry(config.clone()).or_insert(fresh).clone())
    }

    async fn connect(
        &self,
        registry: &Registry,
        config: &ClientConfig,
        tls: &Tls,
    ) -> Result<Sender, String> {
        // as upstream, a proxy is given the name of a service, whatever is dialled without one
        let name = config.server_name();
        if let Some(proxy) = proxy::of_environment(true, &name, config.port()) {
            let tls = Some((tls, name.as_str()));
            return connect_through(Some(&*proxy), &name, config.port(), tls).await;
        }
        let (host, port) = match &config.target {
            Target::Url { host, port, .. } => (host.clone(), *port),
            Target::Service { namespace, name, port, .. } => self
                .resolver
                .resolve(registry, (namespace, name), *port)
                .await
                .map_err(|error| error.to_string())?,
        };
        connect(&host, port, Some((tls, &name))).await
    }
}

fn request(
    config: &ClientConfig,
    body: Bytes,
    authorization: Option<&HeaderValue>,
    context: Option<&HeaderValue>,
    limit: Duration,
) -> Result<Request<Full<Bytes>>, String> {
    let host = HeaderValue::from_str(&config.authority()).map_err(|error| error.to_string())?;
    let mut request = Request::post(config.path_and_query(limit))
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission");
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    if let Some(value) = context {
        request = request.header(TRACEPARENT, value);
    }
    request.body(Full::new(body)).map_err(|error| error.to_string())
}
