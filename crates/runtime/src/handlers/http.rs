//! HTTP requests of probes and hooks: one connection each, redirects within the host, and error
//! messages in Go's words.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, REFERER, TRAILER, TRANSFER_ENCODING, USER_AGENT,
};
use hyper::http::uri::PathAndQuery;
use hyper::rt::Executor;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::dial::{ConnectionExecutor, DialError, dial, io_cause, recorded, system_text};
use super::url::Url;

/// Limit of a response body that is read.
const MAX_BODY: usize = 10 * 1024;
/// Limits of the number and bytes of request headers. Upstream has none: those of servers are far
/// lower, and a header map panics beyond 24,576 names.
const MAX_HEADERS: usize = 4096;
const MAX_HEADER_BYTES: usize = 1 << 20;
/// The number of requests at which redirects are given up.
const MAX_REQUESTS: usize = 10;

/// A GET request.
#[derive(Clone, Debug)]
pub(super) struct Get {
    pub(super) url: Url,
    /// The `Host` header, if it is not that of the URL.
    host: Option<HeaderValue>,
    headers: HeaderMap,
}

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The body, truncated to [`MAX_BODY`].
    pub(super) body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum GetError {
    /// No response headers were received.
    #[error("Get \"{url}\": {cause}")]
    Head { url: String, cause: Cause },
    /// The body is incomplete.
    #[error("{0}")]
    Body(String),
}

impl GetError {
    /// Whether the server speaks plain HTTP instead of TLS.
    pub(super) fn is_plain_http(&self) -> bool {
        matches!(self, Self::Head { cause: Cause::PlainHttp, .. })
    }
}

/// The cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    #[error("{0}")]
    Other(String),
}

impl Get {
    /// The request of a handler, with that user agent.
    pub(super) fn new(url: Url, action: &HTTPGetAction, agent: &str) -> Result<Self, GetError> {
        let failed = |cause| GetError::Head { url: url.to_string(), cause: Cause::Other(cause) };
        let refuse = |what: &str, text: &str| {
            failed(format!("net/http: invalid header field {what} {text:?}"))
        };
        let own_headers = action.http_headers.as_deref().unwrap_or_default();
        let bytes: usize =
            own_headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        if own_headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
            return Err(failed(format!(
                "too many headers: {} of {bytes} bytes, and at most {MAX_HEADERS} of \
                 {MAX_HEADER_BYTES} bytes can be sent",
                own_headers.len()
            )));
        }
        let mut headers = HeaderMap::new();
        for header in own_headers {
            let name = HeaderName::from_bytes(header.name.as_bytes())
                .map_err(|_| refuse("name", &header.name))?;
            let value = HeaderValue::from_bytes(header.value.trim().as_bytes())
                .map_err(|_| refuse("value for", &header.name))?;
            headers.try_append(name, value).map_err(|error| failed(error.to_string()))?;
        }
        let host = headers.remove(HOST).filter(|host| !host.is_empty());
        // Message framing is not up to the author of the pod.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER] {
            headers.remove(name);
        }
        let agent = HeaderValue::from_str(agent).map_err(|_| refuse("value for", "User-Agent"))?;
        for (name, default) in [(USER_AGENT, agent), (ACCEPT, HeaderValue::from_static("*/*"))] {
            match headers.get(&name) {
                None => drop(headers.insert(name, default)),
                // An empty value means that the header is not sent.
                Some(value) if value.is_empty() => drop(headers.remove(name)),
                Some(_) => {}
            }
        }
        Ok(Self { url, host, headers })
    }

    /// The same over plain HTTP, without credentials for a TLS server.
    pub(super) fn without_tls(mut self) -> Self {
        "http".clone_into(&mut self.url.scheme);
        self.headers.remove(AUTHORIZATION);
        self
    }
}

/// HTTP client. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// `None` if TLS is not available.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Client {
    /// Make a request, and follow redirects on the same host. With a deadline, all of it is over by
    /// then.
    pub(super) async fn get(
        &self,
        request: Get,
        deadline: Option<Instant>,
    ) -> Result<Answer, GetError> {
        let first_host = request.url.host.clone();
        let mut next = request;
        let mut made = 1;
        let response = loop {
            let failed = |cause| GetError::Head { url: next.url.to_string(), cause };
            let sent = within(deadline, self.send(&next, deadline)).await;
            let response = sent.ok_or(Cause::Timeout).flatten().map_err(failed)?;
            let Some(location) = redirect(&response) else { break response };
            let url = next.url.join(&location).ok_or_else(|| {
                failed(Cause::Other(format!("failed to parse Location header {location:?}")))
            })?;
            if url.host != first_host {
                break response;
            }
            if made >= MAX_REQUESTS {
                let cause = Cause::Other(format!("stopped after {MAX_REQUESTS} redirects"));
                return Err(GetError::Head { url: location, cause });
            }
            made += 1;
            next = follow(next, url, &location);
        };
        let status = response.status();
        match within(deadline, read(response.into_body())).await {
            Some(body) => Ok(Answer { status, body: body.map_err(GetError::Body)? }),
            None => Err(GetError::Body(
                "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
                    .to_owned(),
            )),
        }
    }

    async fn send(
        &self,
        get: &Get,
        deadline: Option<Instant>,
    ) -> Result<Response<Incoming>, Cause> {
        let target = get.url.target().parse();
        let target: Uri = target.map_err(|error| Cause::Other(format!("invalid URL: {error}")))?;
        let stream = dial(&get.url.host, get.url.port()).await?;
        let ends = match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) => format!("{local}->{peer}"),
            _ => String::new(),
        };
        let (stream, first_bytes) = recorded(stream);
        let (answer, first_bytes) = match (get.url.scheme.as_str(), &self.tls) {
            ("http", _) => (exchange(get, target, stream, false, deadline).await, first_bytes),
            ("https", Some(config)) => {
                let name = ServerName::try_from(get.url.host.clone())
                    .map_err(|error| Cause::Other(format!("tls: {error}")))?;
                let connected = TlsConnector::from(config.clone()).connect(name, stream).await;
                let stream = connected.map_err(|error| match first_bytes.get() {
                    Some(said) if said.starts_with(b"HTTP/") => Cause::PlainHttp,
                    _ if error.kind() == ErrorKind::UnexpectedEof => eof(),
                    _ if error.raw_os_error().is_some() => read_failed(&ends, &error),
                    _ => Cause::Other(format!("tls: {error}")),
                })?;
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                (exchange(get, target, stream, http2, deadline).await, first_bytes)
            }
            (scheme, _) => {
                return Err(Cause::Other(format!("unsupported protocol scheme {scheme:?}")));
            }
        };
        answer.map_err(|error| {
            if let Some(system) = io_cause(&error).filter(|error| error.raw_os_error().is_some()) {
                return read_failed(&ends, system);
            }
            match first_bytes.get() {
                _ if error.is_incomplete_message() => eof(),
                Some(said) if error.is_parse() => Cause::Other(format!(
                    "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"{}\"",
                    said.escape_ascii()
                )),
                _ => Cause::Other(error.to_string()),
            }
        })
    }
}

fn eof() -> Cause {
    Cause::Other("EOF".to_owned())
}

fn read_failed(ends: &str, error: &io::Error) -> Cause {
    Cause::Other(format!("read tcp {ends}: read: {}", system_text(error)))
}

/// Send the request over a new connection, which is closed afterwards.
async fn exchange<S>(
    get: &Get,
    target: Uri,
    stream: S,
    http2: bool,
    deadline: Option<Instant>,
) -> hyper::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let host = get.host.clone().or_else(|| HeaderValue::try_from(get.url.authority()).ok());
    let host = host.unwrap_or(HeaderValue::from_static(""));
    let mut request = Request::new(Empty::<Bytes>::new());
    request.headers_mut().clone_from(&get.headers);
    if http2 {
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(CONNECTION);
        let authority = host.to_str().unwrap_or_default();
        let url = Uri::builder().scheme("https").authority(authority);
        let path = target.path_and_query().map_or("/", PathAndQuery::as_str);
        *request.uri_mut() = url.path_and_query(path).build().unwrap_or(target);
        let (mut sender, connection) =
            http2::Builder::new(ConnectionExecutor(deadline)).handshake(io).await?;
        ConnectionExecutor(deadline).execute(connection);
        return sender.send_request(request).await;
    }
    *request.uri_mut() = target;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
    let (mut sender, connection) =
        http1::Builder::new().title_case_headers(true).handshake(io).await?;
    ConnectionExecutor(deadline).execute(connection);
    sender.send_request(request).await
}

/// The target of a redirect, if the response is one.
fn redirect(response: &Response<Incoming>) -> Option<String> {
    let follows = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|location| !location.is_empty())?;
    follows.then(|| String::from_utf8_lossy(location.as_bytes()).into_owned())
}

/// The request after a redirect to `url`.
fn follow(mut get: Get, url: Url, location: &str) -> Get {
    // The `Host` header stays for redirects to a mere path, and is dropped for those to another
    // authority.
    if location.contains("//") {
        get.host = None;
    }
    let is_exposed = get.url.scheme == "https" && url.scheme != "https";
    if let Ok(referer) = HeaderValue::try_from(get.url.to_string())
        && !is_exposed
    {
        get.headers.insert(REFERER, referer);
    }
    Get { url, ..get }
}

/// The beginning of a body.
async fn read(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match io_cause(&error) {
            Some(error) if error.kind() == ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
            Some(error) => system_text(error),
            None => error.to_string(),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        read.extend_from_slice(&data[..data.len().min(MAX_BODY - read.len())]);
        if read.len() == MAX_BODY {
            break;
        }
    }
    Ok(read)
}

async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}
