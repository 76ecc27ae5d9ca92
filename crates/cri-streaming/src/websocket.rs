//! The server's side of channels in a WebSocket: each message is the number of a channel and data.

use std::collections::BTreeMap;
use std::pin::pin;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{Sink, SinkExt, Stream, StreamExt};
use longshore_base::time;
use longshore_streams::spdy::PIECE;
use longshore_streams::websocket::{close_message, open};
use longshore_streams::{Activity, KEEP_ALIVE, LINGER, channel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{interval_at, timeout};
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::debug;

use crate::Input;
use crate::connection::{Conditions, Outgoing, Queue};
use crate::pipes::input;

/// The most channels: their numbers are digits and letters in base64 messages.
pub(crate) const MAX_CHANNELS: u8 = 0x7f - ZERO;
/// Channel 0 in base64 messages.
const ZERO: u8 = b'0';

/// How messages are written, which the subprotocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Whether data is base64, rather than binary.
    pub(crate) is_base64: bool,
    /// Whether the client can close a channel.
    pub(crate) has_close: bool,
}

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
enum Received {
    Data(u8, Bytes),
    Close(u8),
    Nothing,
}

impl Format {
    fn decode(self, mut message: Bytes) -> Result<Received, &'static str> {
        let Ok(first) = message.try_get_u8() else { return Ok(Received::Nothing) };
        if self.has_close && first == channel::CLOSE {
            return match message[..] {
                [channel] => Ok(Received::Close(channel)),
                _ => Err("a message closes no channel"),
            };
        }
        if !self.is_base64 {
            return Ok(Received::Data(first, message));
        }
        let data = STANDARD.decode(&message).map_err(|_| "a message is not base64")?;
        Ok(first.checked_sub(ZERO).map_or(Received::Nothing, |to| Received::Data(to, data.into())))
    }

    fn encode(self, channel: u8, data: &[u8]) -> Message {
        if self.is_base64 {
            let mut text = String::from(char::from(ZERO.saturating_add(channel)));
            STANDARD.encode_string(data, &mut text);
            return Message::text(text);
        }
        let mut message = BytesMut::with_capacity(data.len() + 1);
        message.put_u8(channel);
        message.put_slice(data);
        Message::Binary(message.freeze())
    }
}

/// Serves one connection, on which the client may send on these channels.
pub(crate) async fn serve<S, T>(
    io: S,
    conditions: &Conditions,
    format: Format,
    readable: impl IntoIterator<Item = u8>,
    session: impl FnOnce(BTreeMap<u8, Input>, Queue) -> T,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: Future<Output = ()>,
{
    let (sink, mut source) = open(io).await.split();
    let activity = Activity::default();
    let (queue, frames) = Queue::new();
    let mut feeds = BTreeMap::new();
    let mut inputs = BTreeMap::new();
    for channel in readable {
        let (feed, input) = input();
        feeds.insert(channel, feed);
        inputs.insert(channel, input);
    }
    let reader = async {
        if let Err(reason) = receive(&mut source, format, feeds, &activity).await {
            debug!("the session is closed: {reason}");
        }
    };
    let mut writer = pin!(send(sink, format, frames, &activity));
    let session = async {
        session(inputs, queue.clone()).await;
        queue.send(Outgoing::End).await;
    };
    if conditions.hold(&activity, reader, writer.as_mut(), session).await {
        // closing a connection with unread data may discard data that was sent
        let drain = async {
            writer.await;
            while let Some(Ok(_)) = source.next().await {}
        };
        let _ = timeout(LINGER, drain).await;
    }
}

/// Reads until the client closes.
async fn receive(
    source: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    format: Format,
    mut feeds: BTreeMap<u8, mpsc::Sender<Bytes>>,
    activity: &Activity,
) -> Result<(), &'static str> {
    while let Some(Ok(message)) = source.next().await {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => break,
            // the answer to the pings of this side
            Message::Pong(_) => continue,
            _ => Bytes::new(),
        };
        activity.note();
        match format.decode(bytes)? {
            Received::Data(channel, mut data) => {
                let Some(feed) = feeds.get(&channel) else { continue };
                while !data.is_empty() {
                    // nobody may want it any more
                    let _ = feed.send(data.split_to(data.len().min(PIECE))).await;
                }
            }
            Received::Close(channel) => _ = feeds.remove(&channel),
            Received::Nothing => {}
        }
    }
    Ok(())
}

/// Sends messages until there are no more, or the client has gone.
async fn send(
    mut sink: impl Sink<Message, Error = Error> + Unpin,
    format: Format,
    mut frames: mpsc::Receiver<Outgoing>,
    activity: &Activity,
) {
    // a client whose input nobody takes is not read from: without these, nobody would see it go
    let mut keep_alive = interval_at(time::after(KEEP_ALIVE), KEEP_ALIVE);
    loop {
        let sent = tokio::select! {
            frame = frames.recv() => match frame {
                // a channel has no end
                Some(Outgoing::Data { bytes, last: true, .. }) if bytes.is_empty() => Ok(()),
                Some(Outgoing::Data { stream, bytes, .. }) => {
                    activity.note();
                    let channel = u8::try_from(stream).unwrap_or(u8::MAX);
                    sink.send(format.encode(channel, &bytes)).await
                }
                Some(Outgoing::Frame(_)) => Ok(()),
                Some(Outgoing::End) | None => break,
            },
            _ = keep_alive.tick() => sink.send(Message::Ping(Bytes::new())).await,
        };
        if sent.is_err() {
            return;
        }
    }
    let _ = sink.send(close_message()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_written() {
        let format = |is_base64, has_close| Format { is_base64, has_close };
        let data = |channel, bytes: &'static [u8]| Ok(Received::Data(channel, bytes.into()));
        let (binary, base64, closing) =
            (format(false, false), format(true, false), format(false, true));
        for (format, message, expected) in [
            (binary, &b""[..], Ok(Received::Nothing)),
            (binary, b"\0", data(0, b"")),
            (binary, b"\x04{}", data(4, b"{}")),
            (binary, b"\xff\0", data(255, b"\0")),
            (closing, b"\xff\0", Ok(Received::Close(0))),
            (closing, b"\xff\xff", Ok(Received::Close(255))),
            (closing, b"\xff", Err("a message closes no channel")),
            (closing, b"\xff\0\0", Err("a message closes no channel")),
            (base64, b"", Ok(Received::Nothing)),
            (base64, b"0", data(0, b"")),
            (base64, b"4e30=", data(4, b"{}")),
            (base64, b"0e3", Err("a message is not base64")),
            (base64, b"/e30=", Ok(Received::Nothing)),
        ] {
            assert_eq!(format.decode(Bytes::from_static(message)), expected, "{message:?}");
        }
        assert_eq!(binary.encode(3, b"ab"), Message::binary(&b"\x03ab"[..]));
        assert_eq!(base64.encode(1, b"{}"), Message::text("1e30="));
        assert_eq!(base64.encode(MAX_CHANNELS - 1, b""), Message::text("~"));
    }
}
