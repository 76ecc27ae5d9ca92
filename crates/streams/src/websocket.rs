//! The server side of a WebSocket.

use http_body_util::{Either, Empty};
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use crate::pass::has_connection_upgrade;
use crate::{Answer, Error};

/// Limit of a client's message, as upstream's.
const MAX_MESSAGE: usize = 32 << 20;
const READ_BUFFER: usize = 16 << 10;

/// Whether the request is a WebSocket handshake.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|to| to.trim().eq_ignore_ascii_case("websocket"))
        && has_connection_upgrade(headers)
}

/// The subprotocols that the client offers, in order of preference.
pub fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// The response that accepts a WebSocket with that subprotocol.
///
/// # Errors
/// When the client's handshake is invalid.
pub fn accept<B>(client: &Request<B>, protocol: Option<&str>) -> Result<Answer, Error> {
    let headers = client.headers();
    if client.method() != Method::GET {
        return Err(Error::Handshake("the method is not GET"));
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Error::Handshake("the version is not 13"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(Error::Handshake("no key"))?;
    let proof = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|_| Error::Handshake("invalid key"))?;
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, proof);
    if let Some(protocol) = protocol {
        let protocol =
            HeaderValue::from_str(protocol).map_err(|_| Error::Handshake("invalid subprotocol"))?;
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

/// The WebSocket on a connection after the handshake.
pub async fn open<S: AsyncRead + AsyncWrite + Unpin>(io: S) -> WebSocketStream<S> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// The message that closes a WebSocket normally; clients report one without a code as an error.
#[must_use]
pub fn close_message() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}
