//! Port-forward for WebSocket clients: a SPDY connection inside of binary messages.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use futures::{SinkExt, StreamExt};
use http_body_util::Either;
use hyper::header::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, split};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::io::StreamReader;
use tracing::debug;

use crate::activity::Active;
use crate::backend::{STREAM_PROTOCOL, send, spdy_request};
use crate::pass::{LINGER, log_invalid, spawn_join};
use crate::relay::{OpenStreams, relay};
use crate::websocket::{self, accept, is_websocket, protocols};
use crate::{Answer, Error};

const PREFIX: &str = "SPDY/3.1+";
const SUFFIX: &str = ".k8s.io";
const PIECE: usize = 16 << 10;

/// Whether the client's request is for [`tunnel`].
pub fn is_tunnel(headers: &HeaderMap) -> bool {
    is_websocket(headers) && tunnel_uses(headers).next().is_some()
}

/// The uses of the tunneled connection that the client requests.
pub fn tunnel_uses(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    protocols(headers)
        .filter(|name| name.ends_with(SUFFIX))
        .filter_map(|name| name.strip_prefix(PREFIX))
}

/// Opens a SPDY connection to `target` through `io` and joins the client's tunnel to it. A response
/// without upgrade is passed to the client.
///
/// # Errors
/// When the client's handshake is invalid, and when the backend does not respond or redirects.
pub async fn tunnel<B, S>(
    client: &mut Request<B>,
    target: &Uri,
    io: S,
    idle: Duration,
) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let uses: Vec<&str> = tunnel_uses(client.headers()).collect();
    let mut response = send(io, spdy_request(target, &uses)).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(Either::Left));
    }
    let chosen = response.headers().get(STREAM_PROTOCOL).and_then(|value| value.to_str().ok());
    let handshake = accept_tunnel(client, chosen.map(str::trim))?;
    spawn_join(client, &mut response, move |client, backend| {
        join_tunnel(client, TokioIo::new(backend), idle)
    });
    Ok(handshake)
}

/// The response that accepts a tunnel for this use of a SPDY connection.
///
/// # Errors
/// When the client's handshake is invalid.
pub fn accept_tunnel<B>(client: &Request<B>, used: Option<&str>) -> Result<Answer, Error> {
    accept(client, used.map(|used| format!("{PREFIX}{used}")).as_deref())
}

/// Copies between a client's tunnel and the SPDY connection that it contains, until either closes, or
/// for as long as it is not idle.
pub async fn join_tunnel<S>(client: Upgraded, backend: S, idle: Duration)
where
    S: AsyncRead + AsyncWrite,
{
    let (client, expired) = Active::new(client, idle);
    let (mut sink, mut source) = websocket::open(client).await.split();
    let (mut from_backend, mut to_backend) = split(backend);
    let mut open = OpenStreams::default();
    let up = async {
        let bytes = (&mut source).filter_map(async |message| match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        });
        log_invalid(relay(StreamReader::new(pin!(bytes)), &mut to_backend, &mut open).await);
    };
    let down = async {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE);
            match from_backend.read_buf(&mut piece).await {
                Ok(1..) if sink.send(Message::Binary(piece.freeze())).await.is_ok() => {}
                _ => return,
            }
        }
    };
    tokio::select! {
        () = up => return,
        () = down => {}
        () = expired => debug!("session was idle for {idle:?}"),
    }
    let drain = async {
        let _ = sink.send(websocket::close_message()).await;
        while let Some(Ok(_)) = source.next().await {}
    };
    let _ = timeout(LINGER, drain).await;
}
