//! Calls of webhooks: a POST of JSON to a URL or a service, over TLS, answered by JSON. Used by admission
//! and for the conversion of custom resources, each with a client of its own.
//!
//! What a webhook does is bounded: the time until its answer is read, the size of the answer, and how
//! many calls and large answers there are at once. Redirects are not followed. Connections are kept for
//! the next call with the same configuration.

mod config;
pub(crate) mod tls;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub(crate) use self::config::ClientConfig;
use self::config::Target;
use crate::registry::Registry;
use crate::service_resolver::ServiceResolver;

/// The most calls at once.
const MAX_CALLS: usize = 512;
/// The largest answer: a patch of the largest object in base64, and as much again.
const MAX_ANSWER: usize = 8 << 20;
/// An answer above this size takes a slot of its own.
const LARGE_ANSWER: usize = 128 << 10;
/// The most large answers at once.
const MAX_LARGE: usize = 4;
/// Configurations whose connections are kept.
const MAX_KEPT: usize = 64;
/// Idle connections that are kept of one configuration.
const MAX_IDLE: usize = 8;
/// How much of an answer that is an error is quoted (bytes).
const MAX_QUOTED: usize = 1024;

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

/// What is kept for calls with one configuration.
struct Kept {
    tls: Arc<rustls::ClientConfig>,
    idle: Mutex<Vec<Sender>>,
}

type Sender = SendRequest<Full<Bytes>>;

/// Calls webhooks.
pub(crate) struct WebhookClient {
    resolver: ServiceResolver,
    calls: Semaphore,
    large: Semaphore,
    kept: Mutex<HashMap<ClientConfig, Arc<Kept>>>,
}

impl WebhookClient {
    pub(crate) fn new(resolver: ServiceResolver) -> WebhookClient {
        WebhookClient {
            resolver,
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
            let _slot = slot(&self.calls).await;
            let kept = self.kept(config).map_err(Error::Config)?;
            let response = self.exchange(registry, config, &kept, body, limit).await;
            let (response, sender) = response.map_err(failed)?;
            let code = response.status();
            let body = self.read(response).await.map_err(failed)?;
            kept.keep(sender);
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

    fn kept(&self, config: &ClientConfig) -> Result<Arc<Kept>, String> {
        if let Some(kept) = self.kept.lock().get(config) {
            return Ok(kept.clone());
        }
        let tls = Arc::new(tls::client(config.ca_bundle.as_deref(), false, None)?);
        let fresh = Arc::new(Kept { tls, idle: Mutex::default() });
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        Ok(kept.entry(config.clone()).or_insert(fresh).clone())
    }

    async fn exchange(
        &self,
        registry: &Registry,
        config: &ClientConfig,
        kept: &Kept,
        body: Bytes,
        limit: Duration,
    ) -> Result<(Response<Incoming>, Sender), String> {
        while let Some(mut sender) = kept.idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request(config, body.clone(), limit)?).await {
                Ok(response) => return Ok((response, sender)),
                // It was closed before anything of the request was sent.
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(error.error().to_string()),
            }
        }
        let mut sender = self.connect(registry, config, kept).await?;
        let request = request(config, body, limit)?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Ok((response, sender))
    }

    async fn connect(
        &self,
        registry: &Registry,
        config: &ClientConfig,
        kept: &Kept,
    ) -> Result<Sender, String> {
        let (host, port) = match &config.target {
            Target::Url { host, port, .. } => (host.clone(), *port),
            Target::Service { namespace, name, port, .. } => self
                .resolver
                .resolve(registry, (namespace, name), *port)
                .await
                .map_err(|error| error.to_string())?,
        };
        let failed =
            |error: std::io::Error| format!("dial tcp {host}:{port}: {}", go_words(&error));
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let name = ServerName::try_from(config.server_name()).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(kept.tls.clone());
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| format!("tls: failed to verify certificate: {error}"))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends when the sender is dropped, or the webhook closes it.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// The whole body of an answer.
    async fn read(&self, response: Response<Incoming>) -> Result<Bytes, String> {
        let too_large = || format!("the answer exceeds the limit of {MAX_ANSWER} bytes");
        let mut body = response.into_body();
        if body.size_hint().lower() > MAX_ANSWER as u64 {
            return Err(too_large());
        }
        let mut text = BytesMut::new();
        let mut slot_of_large = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let data = frame.into_data().unwrap_or_default();
            if text.len() + data.len() > MAX_ANSWER {
                return Err(too_large());
            }
            if slot_of_large.is_none() && text.len() + data.len() > LARGE_ANSWER {
                slot_of_large = slot(&self.large).await;
            }
            text.extend_from_slice(&data);
        }
        Ok(text.freeze())
    }
}

impl Kept {
    fn idle(&self) -> Option<Sender> {
        self.idle.lock().pop()
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

/// `None` only for a semaphore that is closed, which none is.
async fn slot(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}

fn request(
    config: &ClientConfig,
    body: Bytes,
    limit: Duration,
) -> Result<Request<Full<Bytes>>, String> {
    let host = HeaderValue::from_str(&config.authority()).map_err(|error| error.to_string())?;
    Request::post(config.path_and_query(limit))
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission")
        .body(Full::new(body))
        .map_err(|error| error.to_string())
}

/// What upstream's client says of an answer with such a status.
pub(crate) fn refusal(code: u16, body: &[u8]) -> String {
    let quoted = body.get(..MAX_QUOTED).unwrap_or(body);
    let quoted = String::from_utf8_lossy(quoted);
    let quoted = match quoted.trim() {
        "" => "unknown",
        text => text,
    };
    match code {
        300..=399 => {
            let code = hyper::StatusCode::from_u16(code).unwrap_or_default();
            format!("the webhook redirects ({code}), which is not followed")
        }
        401 => "the server has asked for the client to provide credentials".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later"
            .to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be \
                processing the request"
            .to_owned(),
        500.. => {
            format!("an error on the server ({quoted:?}) has prevented the request from succeeding")
        }
        _ => "the server rejected our request for an unknown reason".to_owned(),
    }
}

/// An error of a connection as Go words it, which is what people search for.
pub(crate) fn go_words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn webhook_client_words_refusals_like_upstream() {
        for (code, expected) in [
            (302, "the webhook redirects (302 Found), which is not followed"),
            (404, "the server could not find the requested resource"),
            (418, "the server rejected our request for an unknown reason"),
            (
                500,
                "an error on the server (\"no \\\"way\\\"\") has prevented the request from succeeding",
            ),
            (503, "the server is currently unable to handle the request"),
        ] {
            assert_eq!(refusal(code, b" no \"way\"\n"), expected);
        }
        let long = vec![b'a'; 1 << 20];
        assert!(refusal(502, &long).len() < 2 * MAX_QUOTED);
        assert!(refusal(502, b"").contains("(\"unknown\")"));
    }
}
