//! Exec and attach for clients of `v5.channel.k8s.io`: WebSocket channels to the client, SPDY
//! streams to the backend.

use std::future::Future;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use longshore_base::panics;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;

use crate::activity::Activity;
use crate::pass::{LINGER, end_session};
use crate::session::{Down, Open, Output, PINGS, Session, Streams, forward};
use crate::spdy;
use crate::status::Status;
use crate::websocket::{self, accept, is_websocket, protocols};
use crate::{Answer, Error, KEEP_ALIVE, channel};

const PROTOCOL: &str = "v5.channel.k8s.io";
type Client = WebSocketStream<TokioIo<Upgraded>>;
type Sink = SplitSink<Client, Message>;

impl Output for Mutex<Sink> {
    async fn send(&self, channel: u8, bytes: &[u8]) {
        let mut message = BytesMut::with_capacity(bytes.len().saturating_add(1));
        message.put_u8(channel);
        message.put_slice(bytes);
        let _ = self.lock().await.send(Message::Binary(message.freeze())).await;
    }
}

/// Whether the client's request is for [`remote_command`].
pub fn is_remote_command(headers: &HeaderMap) -> bool {
    is_websocket(headers) && protocols(headers).any(|protocol| protocol == PROTOCOL)
}

/// Responds to the client, and joins it to the SPDY connection from `backend`. Errors of that
/// connection are reported to the client as the command's status.
///
/// # Errors
/// When the client's handshake is invalid.
pub fn remote_command<B>(
    client: &mut Request<B>,
    streams: Streams,
    backend: impl Future<Output = Result<Upgraded, Error>> + Send + 'static,
    idle: Duration,
) -> Result<Answer, Error> {
    let response = accept(client, Some(PROTOCOL))?;
    let upgrade = hyper::upgrade::on(client);
    tokio::spawn(panics::contain(async move {
        match upgrade.await {
            Ok(client) => {
                // Not of the connection: both sides send pings as long as it is open.
                let activity = Activity::default();
                tokio::select! {
                    () = serve(client, streams, backend, &activity) => {}
                    () = activity.idle_for(idle) => debug!("session was idle for {idle:?}"),
                }
            }
            Err(error) => debug!("upgrade failed: {error}"),
        }
    }));
    Ok(response)
}

async fn serve(
    client: Upgraded,
    streams: Streams,
    backend: impl Future<Output = Result<Upgraded, Error>> + Send,
    activity: &Activity,
) {
    let (mut sink, mut source) = websocket::open(TokioIo::new(client)).await.split();
    // shows the client that it is connected
    let first = if streams.stdout {
        channel::STDOUT
    } else if streams.stderr {
        channel::STDERR
    } else {
        channel::ERROR
    };
    if sink.send(Message::binary(Bytes::from(vec![first]))).await.is_err() {
        return;
    }
    let sink = Mutex::new(sink);
    let session = async { Session::open(backend.await?, streams).await };
    let status = match session.await {
        Ok(Session { mut open, reader, mut writer }) => {
            let (pings, to_send) = mpsc::channel(PINGS);
            let mut down = Down { open, reader, output: &sink, pings, activity };
            // when the client is gone, dropping the connection ends the command
            let status = tokio::select! {
                status = down.run() => Some(status),
                () = up(&mut source, &mut writer, &mut open, to_send, activity) => None,
                () = keep_alive(&sink) => return,
            };
            let Some(status) = status else {
                // but it may end by itself before, when its input has ended
                let Some(stdin) = open.stdin.filter(|_| !streams.tty) else { return };
                let end = async {
                    writer.write_all(&spdy::data(stdin, 0, true)).await?;
                    writer.flush().await
                };
                return end_session(end, down.reader.into_inner()).await;
            };
            status
        }
        Err(error) => Err(error),
    };
    let mut sink = sink.into_inner();
    let mut message = BytesMut::from(&[channel::ERROR][..]);
    match status {
        Ok(status) => message.extend_from_slice(&status),
        Err(error) => {
            message.extend_from_slice(Status::Internal(error.to_string()).json().as_bytes());
        }
    }
    // closing a connection with unread data may discard data that was sent
    let drain = async {
        sink.send(Message::Binary(message.freeze())).await?;
        sink.send(websocket::close_message()).await?;
        while let Some(Ok(_)) = source.next().await {}
        Ok::<_, tokio_tungstenite::tungstenite::Error>(())
    };
    let _ = timeout(LINGER, drain).await;
}

/// Sends pings to the client until it is gone: while a command does not read its input, the
/// client's connection is not read either.
async fn keep_alive(sink: &Mutex<Sink>) {
    loop {
        sleep(KEEP_ALIVE).await;
        if sink.lock().await.send(Message::Ping(Bytes::new())).await.is_err() {
            return;
        }
    }
}

/// From the client to the command, until the client is gone.
async fn up(
    source: &mut SplitStream<Client>,
    writer: &mut WriteHalf<TokioIo<Upgraded>>,
    open: &mut Open,
    mut pings: mpsc::Receiver<u32>,
    activity: &Activity,
) {
    loop {
        let written = tokio::select! {
            Some(id) = pings.recv() => writer.write_all(&spdy::ping(id)).await,
            message = source.next() => {
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Text(text))) => text.into(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                };
                activity.note();
                forward(writer, open, bytes).await
            }
        };
        if written.is_err() || writer.flush().await.is_err() {
            // the command has ended; its output is still to be read
            (open.stdin, open.resize) = (None, None);
        }
    }
}
