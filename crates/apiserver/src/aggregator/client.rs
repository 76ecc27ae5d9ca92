//! Connections to aggregated servers, and the headers by which they know who asks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use longshore_telemetry::{Kind, TRACEPARENT, child};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::service::Backend;
use crate::http_client::proxy::{self, Proxy, Stream};
use crate::http_client::{tls, trace_header};
use crate::pki::Identity;
use crate::registry::Registry;
use crate::service_resolver::ServiceResolver;
use crate::user::User;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest document that is read of an aggregated server.
const MAX_DOCUMENT: usize = 4 << 20;
/// What stays as it is in the name of a header.
const HEADER_NAME: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why a server could not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Resolve(#[from] crate::service_resolver::Error),
    #[error("{0}")]
    Tls(String),
    #[error("dial tcp {address}: {reason}")]
    Connect { address: String, reason: String },
    #[error("request to {address}: {reason}")]
    Http { address: String, reason: String },
    #[error("bad status from {url}: {code}")]
    Status { url: String, code: u16 },
    #[error("timed out waiting for {0}")]
    Timeout(String),
    /// A server must not take a request without its user for one of this server.
    #[error("the user cannot be named in headers: {0}")]
    User(String),
}

/// Calls aggregated servers, known to them by its certificate.
pub(crate) struct BackendClient {
    resolver: ServiceResolver,
    identity: Option<Identity>,
}

impl BackendClient {
    pub(super) fn new(resolver: ServiceResolver, identity: Option<Identity>) -> BackendClient {
        BackendClient { resolver, identity }
    }

    /// A connection to one of its endpoints, which is not through a proxy, as upstream.
    pub(crate) async fn connect(
        &self,
        registry: &Registry,
        backend: &Backend,
    ) -> Result<TlsStream<Box<dyn Stream>>, Error> {
        self.open(registry, backend, |_, _| None).await
    }

    /// A connection through the proxy that is chosen for its address.
    async fn open(
        &self,
        registry: &Registry,
        backend: &Backend,
        proxy: impl Fn(&str, u16) -> Option<Arc<Proxy>>,
    ) -> Result<TlsStream<Box<dyn Stream>>, Error> {
        let service = (backend.namespace.as_str(), backend.service.as_str());
        let (host, port) = self.resolver.resolve(registry, service, backend.port).await?;
        let address = format!("{host}:{port}");
        let failed = |reason: String| Error::Connect { address: address.clone(), reason };
        let config =
            tls::client(backend.ca_bundle.as_deref(), backend.insecure, self.identity.as_ref())
                .map_err(Error::Tls)?;
        let name = ServerName::try_from(backend.server_name())
            .map_err(|error| Error::Tls(error.to_string()))?;
        let connecting = async {
            let stream: Box<dyn Stream> = match proxy(&host, port) {
                Some(proxy) => proxy.tunnel(&host, port).await?,
                None => Box::new(direct(&host, port).await.map_err(|error| error.to_string())?),
            };
            let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
            stream.map_err(|error| error.to_string())
        };
        let late = |_| Error::Timeout(address.clone());
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?.map_err(failed)
    }

    /// Sends a request on a connection of its own. Its time is for the caller to limit.
    pub(crate) async fn send<B>(
        &self,
        registry: &Registry,
        backend: &Backend,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let address = backend.server_name();
        let proxy = |host: &str, port| proxy::of_environment(true, host, port);
        let stream = self.open(registry, backend, proxy).await?;
        let failed = |error: hyper::Error| Error::Http {
            address: address.clone(),
            reason: error.to_string(),
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // Ends when the body of the answer has been read or dropped.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        if let Ok(host) = HeaderValue::from_str(&address) {
            request.headers_mut().insert(HOST, host);
        }
        let mut span = child(&format!("HTTP {}", request.method()), Kind::Client);
        span.text("http.request.method", request.method().as_str());
        span.text("server.address", &address);
        if let Some(context) = trace_header(&span) {
            request.headers_mut().insert(TRACEPARENT, context);
        }
        let response = sender.send_request(request).await.map_err(failed)?;
        span.number("http.response.status_code", response.status().as_u16().into());
        Ok(response)
    }

    /// `GET` a JSON document as this server itself.
    pub(crate) async fn get(
        &self,
        registry: &Registry,
        backend: &Backend,
        path: &str,
        limit: Duration,
    ) -> Result<Bytes, Error> {
        let url = format!("https://{}:{}{path}", backend.server_name(), backend.port);
        let failed = |reason: String| Error::Http { address: url.clone(), reason };
        let getting = async {
            let mut request = Request::get(path)
                .header(ACCEPT, "application/json")
                .body(Empty::<Bytes>::new())
                .map_err(|error| failed(error.to_string()))?;
            name_user(request.headers_mut(), &User::aggregator())?;
            let response = self.send(registry, backend, request).await?;
            let code = response.status();
            if !code.is_success() {
                return Err(Error::Status { url: url.clone(), code: code.as_u16() });
            }
            let body = http_body_util::Limited::new(response.into_body(), MAX_DOCUMENT);
            let body = body.collect().await.map_err(|error| failed(error.to_string()))?;
            Ok(body.to_bytes())
        };
        timeout(limit, getting).await.map_err(|_| Error::Timeout(url.clone()))?
    }
}

async fn direct(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether an answer leads elsewhere, which is not followed or handed on.
pub(crate) fn is_redirect(code: StatusCode) -> bool {
    code.is_redirection() && code != StatusCode::NOT_MODIFIED
}

/// Adds the headers that name a user; others of these names must be gone. A user who cannot be named
/// whole is an error: without its user, a request would be taken for one of this server itself.
pub(crate) fn name_user(headers: &mut HeaderMap, user: &User) -> Result<(), Error> {
    let mut add = |name: &str, value: &str| -> Result<(), Error> {
        let unfit = || Error::User(format!("{name:?}: {value:?}"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit())?;
        headers.append(header, value);
        Ok(())
    };
    add("x-remote-user", &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid)?;
    }
    for group in &user.groups {
        add("x-remote-group", group)?;
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", utf8_percent_encode(key, HEADER_NAME));
        for value in values {
            add(&name.to_lowercase(), value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn aggregator_names_users_in_headers() {
        let mut user = User::authenticated("ann".into(), vec!["dev".into()]);
        user.uid = "7".into();
        user.extra.insert("example.com/key".into(), vec!["a".into(), "b".into()]);
        let mut headers = HeaderMap::new();
        name_user(&mut headers, &user).unwrap();
        let all = |name: &str| {
            headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all("x-remote-user"), ["ann"]);
        assert_eq!(all("x-remote-uid"), ["7"]);
        assert_eq!(all("x-remote-group"), ["dev", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-example.com%2fkey"), ["a", "b"]);
        user.groups.push("line\nbreak".into());
        let error = name_user(&mut HeaderMap::new(), &user).unwrap_err();
        assert!(error.to_string().contains("x-remote-group"), "{error}");
    }
}
