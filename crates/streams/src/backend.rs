//! Requests to a backend, each on its own connection.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Error, spdy};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_ERROR_BODY: usize = 64 << 10;

/// Protocols of remote commands, newest first.
pub const REMOTE_COMMANDS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// Names the use of a SPDY connection.
pub const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// A connection to the runtime's streaming server.
///
/// # Errors
/// The URL is not one of `http`, or nothing answers there.
pub async fn dial(url: &str) -> Result<(Uri, TcpStream), Error> {
    let failed = |source| Error::Connect { address: url.to_owned(), source };
    let target: Uri = url.parse().map_err(|error| failed(io::Error::other(error)))?;
    let (Some("http"), Some(address)) = (target.scheme_str(), target.authority()) else {
        return Err(failed(io::Error::other("not an http URL")));
    };
    let port = address.port_u16().unwrap_or(80);
    let host = address.host().trim_start_matches('[').trim_end_matches(']');
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
    let stream = connecting.await.map_err(|late| failed(late.into()))?.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok((target, stream))
}

/// An upgrade request to SPDY for one of these uses.
pub fn spdy_request(target: &Uri, uses: &[&str]) -> Request<Empty<Bytes>> {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(spdy::PROTOCOL));
    for value in uses.iter().filter_map(|text| HeaderValue::from_str(text).ok()) {
        headers.append(STREAM_PROTOCOL, value);
    }
    request(Method::POST, target, headers)
}

/// A request with these headers to that target, without a body.
pub(crate) fn request(
    method: Method,
    target: &Uri,
    mut headers: HeaderMap,
) -> Request<Empty<Bytes>> {
    drop_credentials(&mut headers);
    // there is no body, whatever the headers of the client say
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER, EXPECT] {
        headers.remove(name);
    }
    if let Some(host) = target.authority().and_then(|host| host.as_str().parse().ok()) {
        headers.insert(HOST, host);
    }
    let path = target.path_and_query().cloned();
    let mut request = Request::new(Empty::new());
    *request.method_mut() = method;
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    *request.headers_mut() = headers;
    request
}

/// Removes the credentials of a client, which was authenticated already and which the backend must
/// not see.
pub fn drop_credentials(headers: &mut HeaderMap) {
    let is_proof = |name: &&HeaderName| {
        **name == AUTHORIZATION
            || ["impersonate-", "x-remote-"].iter().any(|start| name.as_str().starts_with(start))
    };
    let proofs: Vec<_> = headers.keys().filter(is_proof).cloned().collect();
    for name in proofs {
        headers.remove(name);
    }
}

/// Removes hop-by-hop headers.
pub fn drop_hop_headers(headers: &mut HeaderMap) {
    let values = headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> = values
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let usual = [
        CONNECTION,
        UPGRADE,
        TRANSFER_ENCODING,
        TRAILER,
        TE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ];
    let others = ["keep-alive", "proxy-connection"].map(HeaderName::from_static);
    for name in named.into_iter().chain(usual).chain(others) {
        headers.remove(name);
    }
}

/// Sends the only request on the connection. Redirects are errors.
pub(crate) async fn send<S>(
    io: S,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    // ends with the response body, or passes the connection on when it is upgraded
    tokio::spawn(connection.with_upgrades());
    let response = timeout(RESPONSE_TIMEOUT, sender.send_request(request));
    let response = response.await.map_err(|_| Error::Timeout)??;
    match response.status().is_redirection() {
        true => Err(Error::Redirect),
        false => Ok(response),
    }
}

/// Sends an upgrade request.
///
/// # Errors
/// Also when the backend responds without an upgrade.
pub async fn upgrade<S>(io: S, request: Request<Empty<Bytes>>) -> Result<Upgraded, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = send(io, request).await?;
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(hyper::upgrade::on(response).await?);
    }
    let text = match Limited::new(response.into_body(), MAX_ERROR_BODY).collect().await {
        Ok(text) => String::from_utf8_lossy(&text.to_bytes()).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::Refused { status, text })
}
