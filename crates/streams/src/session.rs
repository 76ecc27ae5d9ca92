//! The SPDY side of a command's session: its streams to a backend, for clients of any kind.

use std::future::Future;
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::activity::Activity;
use crate::spdy::{self, Data, Frame, Opener, PIECE, Reader};
use crate::status::Status;
use crate::{CREATION_TIMEOUT, Error, STREAM_TYPE, channel};

/// Limit of a command's status.
const MAX_STATUS: usize = 64 << 10;
/// Replies to pings that wait to be sent; further ones are dropped.
pub(crate) const PINGS: usize = 8;

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

/// Where a command's output goes.
pub(crate) trait Output: Sync {
    /// Errors are ignored: a client that is gone is noticed by who reads from it.
    fn send(&self, channel: u8, bytes: &[u8]) -> impl Future<Output = ()> + Send;
}

/// The ids of the open streams.
#[derive(Clone, Copy, Default)]
pub(crate) struct Open {
    error: u32,
    pub(crate) stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    pub(crate) resize: Option<u32>,
}

/// A SPDY connection whose streams are accepted.
pub(crate) struct Session {
    pub(crate) open: Open,
    pub(crate) reader: Reader<ReadHalf<TokioIo<Upgraded>>>,
    pub(crate) writer: WriteHalf<TokioIo<Upgraded>>,
}

impl Session {
    pub(crate) async fn open(backend: Upgraded, streams: Streams) -> Result<Self, Error> {
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

/// Forwards one message of the client: a channel and its data.
pub(crate) async fn forward(
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
pub(crate) struct Down<'a, O> {
    pub(crate) open: Open,
    pub(crate) reader: Reader<ReadHalf<TokioIo<Upgraded>>>,
    pub(crate) output: &'a O,
    pub(crate) pings: mpsc::Sender<u32>,
    pub(crate) activity: &'a Activity,
}

impl<O: Output> Down<'_, O> {
    /// Runs until all output was received, and returns the command's status.
    pub(crate) async fn run(&mut self) -> Result<Bytes, Error> {
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

    async fn send(&mut self, channel: u8, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.output.send(channel, bytes).await;
            self.activity.note();
        }
    }
}
