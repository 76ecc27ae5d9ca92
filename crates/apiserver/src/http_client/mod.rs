//! What all calls of other servers have in common: how a connection is made and kept for the next call, how
//! an answer is read, and how failures are worded. Used by `webhook_client` and `remote`; `tls` also by
//! `aggregator`.

pub(crate) mod proxy;
pub(crate) mod tls;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use longshore_telemetry::Span;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use self::proxy::{Proxy, Stream};

/// An answer above this size takes a slot of its own (bytes).
const LARGE_ANSWER: usize = 128 << 10;
/// How much of an answer that is an error is quoted (bytes).
const MAX_QUOTED: usize = 1024;

/// A connection that takes requests.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// How certificates are verified, and what is shown.
pub(crate) type Tls = Arc<rustls::ClientConfig>;

/// Connects to a port: in plain text, or with TLS to the server of that name.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    tls: Option<(&Tls, &str)>,
) -> Result<Sender, String> {
    connect_through(None, host, port, tls).await
}

/// The same through a proxy, if there is one. What is sent to a plain server is sent to the proxy, if that
/// [takes it](Proxy::takes_requests).
pub(crate) async fn connect_through(
    proxy: Option<&Proxy>,
    host: &str,
    port: u16,
    tls: Option<(&Tls, &str)>,
) -> Result<Sender, String> {
    let stream: Box<dyn Stream> = match proxy {
        None => Box::new(dial(host, port).await?),
        Some(proxy) if tls.is_none() && proxy.takes_requests() => proxy.connect().await?,
        Some(proxy) => proxy.tunnel(host, port).await?,
    };
    let Some((tls, name)) = tls else { return speak(stream).await };
    let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    speak(stream.map_err(|error| format!("tls: failed to verify certificate: {error}"))?).await
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("dial tcp {host}:{port}: {}", go_words(&error));
    let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, String> {
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // ends when the sender is dropped, or the server closes it
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// The context of a span, as the header that hands it on.
pub(crate) fn trace_header(span: &Span) -> Option<HeaderValue> {
    HeaderValue::try_from(span.context()?.traceparent()).ok()
}

/// Idle connections to one server.
pub(crate) struct Pool {
    idle: Mutex<Vec<Sender>>,
    max: usize,
}

impl Pool {
    /// One that keeps so many connections.
    pub(crate) fn new(max: usize) -> Pool {
        Pool { idle: Mutex::default(), max }
    }

    /// Sends a request on an idle connection, or on what `connect` makes. `request` makes it anew for each
    /// connection. The connection is handed back beside the answer, see [`Pool::keep`]. To connect is on the
    /// heap: its large future would be part of that of each request to this server.
    pub(crate) async fn exchange<'c>(
        &self,
        request: impl Fn() -> Result<Request<Full<Bytes>>, String>,
        connect: impl FnOnce() -> BoxFuture<'c, Result<Sender, String>>,
    ) -> Result<(Response<Incoming>, Sender), String> {
        while let Some(mut sender) = self.idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request()?).await {
                Ok(response) => return Ok((response, sender)),
                // it was closed before anything of the request was sent
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(error.error().to_string()),
            }
        }
        let mut sender = connect().await?;
        let response = sender.send_request(request()?).await.map_err(|error| error.to_string())?;
        Ok((response, sender))
    }

    fn idle(&self) -> Option<Sender> {
        self.idle.lock().pop()
    }

    /// Keeps a connection whose answer has been read.
    pub(crate) fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() < self.max && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

/// The whole body of an answer, of at most `max` bytes. A large one takes a slot of `large` while it is read.
pub(crate) async fn read(
    response: Response<Incoming>,
    max: usize,
    large: Option<&Semaphore>,
) -> Result<Bytes, String> {
    let too_large = || format!("the answer exceeds the limit of {max} bytes");
    let mut body = response.into_body();
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let mut text = BytesMut::new();
    let mut slot = None;
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|error| error.to_string())?.into_data().unwrap_or_default();
        let length = text.len().saturating_add(data.len());
        if length > max {
            return Err(too_large());
        }
        if let (Some(large), None, true) = (large, &slot, length > LARGE_ANSWER) {
            // none of these semaphores is closed
            slot = large.acquire().await.ok();
        }
        text.extend_from_slice(&data);
    }
    Ok(text.freeze())
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
    fn http_client_words_refusals_like_upstream() {
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
