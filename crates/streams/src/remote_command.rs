//! Exec and attach for clients of `v5.channel.k8s.io`: WebSocket channels to the client, SPDY
//! streams to the backend.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use longshore_base::panics;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;

use crate::activity::Activity;
use crate::pass::{LINGER, end_session};
use crate::spdy::{self, Data, Frame, Opener, PIECE, Reader};
use crate::status::Status;
use crate::websocket::{self, accept, is_websocket, protocols};
use crate::{Answer, CREATION_TIMEOUT, Error, KEEP_ALIVE, STREAM_TYPE, channel};

const PROTOCOL: &str = "v5.channel.k8s.io";
/// Limit of a command's status.
const MAX_STATUS: usize = 64 << 10;
/// Replies to pings that wait to be sent; further ones are dropped.
const PINGS: usize = 8;

/// The streams of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Error output; not used with a terminal.
    pub stderr: bool,
    /// Whether it runs in a terminal.
    pub tty: bool,
}

type Client = WebSocketStream<TokioIo<Upgraded>>;
type Sink = SplitSink<Client, Message>;

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
            let mut down = Down { open, reader, sink: &sink, pings, activity };
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

/// The ids of the open streams.
#[derive(Clone, Copy, Default)]
struct Open {
    error: u32,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

/// A SPDY connection whose streams are accepted.
struct Session {
    open: Open,
    reader: Reader<ReadHalf<TokioIo<Upgraded>>>,
    writer: WriteHalf<TokioIo<Upgraded>>,
}

impl Session {
    async fn open(backend: Upgraded, streams: Streams) -> Result<Self, Error> {
        let (read, mut writer) = split(TokioIo::new(backend));
        let mut opener = Opener::default();
        let mut frames = BytesMut::new();
        let mut count = 0_u64;
        let mut stream = |kind| {
            let (id, frame) = opener.open(&[(STREAM_TYPE, kind)]);
            frames.extend_from_slice(&frame);
            count = count.saturating_add(1);
            id
        };
        let open = Open {
            error: stream("error"),
            stdin: streams.stdin.then(|| stream("stdin")),
            stdout: streams.stdout.then(|| stream("stdout")),
            stderr: (streams.stderr && !streams.tty).then(|| stream("stderr")),
            resize: streams.tty.then(|| stream("resize")),
        };
        writer.write_all(&frames).await?;
        writer.flush().await?;
        let mut reader = Reader::new(read);
        // data for a stream that is not accepted yet would be discarded
        let accepted = async {
            while count > 0 {
                match reader.next().await? {
                    Some(Frame::Reply { .. }) => count = count.saturating_sub(1),
                    Some(Frame::Ping { .. }) => {}
                    Some(_) => return Err(Error::Spdy("a stream was not accepted")),
                    None => return Err(Error::Spdy("closed before all streams were accepted")),
                }
            }
            Ok(())
        };
        timeout(CREATION_TIMEOUT, accepted).await.map_err(|_| Error::Timeout)??;
        Ok(Self { open, reader, writer })
    }
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

/// Forwards one message of the client: a channel and its data.
async fn forward(
    writer: &mut WriteHalf<TokioIo<Upgraded>>,
    open: &mut Open,
    mut bytes: Bytes,
) -> io::Result<()> {
    let Ok(number) = bytes.try_get_u8() else { return Ok(()) };
    match (number, bytes.first()) {
        (channel::STDIN, _) => send(writer, open.stdin, bytes).await,
        (channel::RESIZE, _) => send(writer, open.resize, bytes).await,
        (channel::CLOSE, Some(&channel::STDIN)) => match open.stdin.take() {
            Some(stdin) => writer.write_all(&spdy::data(stdin, 0, true)).await,
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

async fn send(
    writer: &mut WriteHalf<TokioIo<Upgraded>>,
    stream: Option<u32>,
    mut bytes: Bytes,
) -> io::Result<()> {
    let Some(stream) = stream else { return Ok(()) };
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(PIECE));
        let head = spdy::data(stream, piece.len(), false);
        writer.write_all_buf(&mut head.chain(piece)).await?;
    }
    Ok(())
}

/// From the command to the client.
struct Down<'a> {
    open: Open,
    reader: Reader<ReadHalf<TokioIo<Upgraded>>>,
    sink: &'a Mutex<Sink>,
    pings: mpsc::Sender<u32>,
    activity: &'a Activity,
}

impl Down<'_> {
    /// Runs until all output was received, and returns the command's status.
    async fn run(&mut self) -> Result<Bytes, Error> {
        let (mut stdout, mut stderr) = (self.open.stdout, self.open.stderr);
        let mut error = Some(self.open.error);
        let mut status = BytesMut::new();
        while stdout.or(stderr).or(error).is_some() {
            let (stream, bytes, last) = match self.reader.next().await? {
                Some(Frame::Data(Data { stream, bytes, last })) => (stream, bytes, last),
                Some(Frame::Reset { stream }) => (stream, Bytes::new(), true),
                Some(Frame::Ping { id }) => {
                    let _ = self.pings.try_send(id);
                    continue;
                }
                Some(Frame::Reply { .. }) => continue,
                None => return Err(Error::Spdy("closed before the command's status was received")),
            };
            let known = if Some(stream) == stdout {
                self.send(channel::STDOUT, &bytes).await;
                &mut stdout
            } else if Some(stream) == stderr {
                self.send(channel::STDERR, &bytes).await;
                &mut stderr
            } else if Some(stream) == error {
                let space = MAX_STATUS - status.len();
                status.extend_from_slice(&bytes[..bytes.len().min(space)]);
                &mut error
            } else {
                continue;
            };
            if last {
                *known = None;
            }
        }
        // the first versions of the protocol send nothing on success
        Ok(match status.is_empty() {
            true => Bytes::from(Status::Success.json()),
            false => status.freeze(),
        })
    }

    /// Errors are ignored: a client that is gone is noticed by the reader.
    async fn send(&mut self, channel: u8, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut message = BytesMut::with_capacity(bytes.len() + 1);
        message.put_u8(channel);
        message.put_slice(bytes);
        let _ = self.sink.lock().await.send(Message::Binary(message.freeze())).await;
        self.activity.note();
    }
}
