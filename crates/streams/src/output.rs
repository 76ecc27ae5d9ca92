//! Output in one direction to a WebSocket, as that of logs: upstream's protocols without a name,
//! `binary.k8s.io` and `base64.binary.k8s.io`.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use hyper::Request;
use hyper::header::HeaderMap;
use longshore_base::panics;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;

use crate::activity::Active;
use crate::pass::LINGER;
use crate::websocket::{self, accept, is_websocket, protocols};
use crate::{Answer, Error, NO_IDLE_TIMEOUT};

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";

/// How output travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Binary,
    Base64,
}

impl Encoding {
    fn message(self, output: &Bytes) -> Message {
        match self {
            Encoding::Binary => Message::Binary(output.clone()),
            Encoding::Base64 => Message::text(STANDARD.encode(output)),
        }
    }
}

/// The first protocol that the client offers and this server has; `None` where it offers others only.
fn chosen(headers: &HeaderMap) -> Option<(Option<&str>, Encoding)> {
    let mut offered = protocols(headers).filter(|protocol| !protocol.is_empty()).peekable();
    if offered.peek().is_none() {
        return Some((None, Encoding::Binary));
    }
    offered.find_map(|protocol| match protocol {
        BINARY => Some((Some(protocol), Encoding::Binary)),
        BASE64 => Some((Some(protocol), Encoding::Base64)),
        _ => None,
    })
}

/// Whether the client's request is for [`websocket_output`].
pub fn is_websocket_output(headers: &HeaderMap) -> bool {
    is_websocket(headers)
}

/// Responds to the client, and sends it the output until that ends or the client goes. The first
/// message is empty: it shows that the connection works.
///
/// # Errors
/// When the client's handshake is invalid.
pub fn websocket_output<B, E: Display + Send + 'static>(
    client: &mut Request<B>,
    output: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Result<Answer, Error> {
    let (protocol, encoding) = chosen(client.headers())
        .ok_or(Error::Handshake("none of the client's subprotocols is supported"))?;
    let response = accept(client, protocol)?;
    let upgrade = hyper::upgrade::on(client);
    tokio::spawn(panics::contain(async move {
        match upgrade.await {
            Ok(client) => {
                let (client, _expired) = Active::new(client, NO_IDLE_TIMEOUT);
                send(client, encoding, output).await;
            }
            Err(error) => debug!("upgrade failed: {error}"),
        }
    }));
    Ok(response)
}

async fn send<E: Display + Send>(
    client: Active,
    encoding: Encoding,
    output: impl Stream<Item = Result<Bytes, E>> + Send,
) {
    let (mut sink, mut source) = websocket::open(client).await.split();
    let copy = async {
        let mut output = std::pin::pin!(output);
        sink.send(encoding.message(&Bytes::new())).await?;
        while let Some(piece) = output.next().await {
            match piece {
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => sink.send(encoding.message(&piece)).await?,
                Err(error) => {
                    debug!("the output ended: {error}");
                    break;
                }
            }
        }
        sink.send(websocket::close_message()).await
    };
    let gone = async { while let Some(Ok(_)) = source.next().await {} };
    tokio::select! {
        // what the client has not read yet is not lost with the connection
        _ = copy => {}
        () = gone => return,
    }
    let _ = timeout(LINGER, async { while let Some(Ok(_)) = source.next().await {} }).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};

    use super::*;

    #[test]
    fn websocket_output_protocols() {
        for (offered, expected) in [
            ("", Some((None, Encoding::Binary))),
            ("binary.k8s.io", Some((Some("binary.k8s.io"), Encoding::Binary))),
            ("other, base64.binary.k8s.io", Some((Some(BASE64), Encoding::Base64))),
            ("other", None),
        ] {
            let mut headers = HeaderMap::new();
            if !offered.is_empty() {
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered));
            }
            assert_eq!(chosen(&headers), expected, "{offered:?}");
        }
    }
}
