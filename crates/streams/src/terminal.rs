//! A command with a terminal for a person at this process, as `kubectl exec -it` has one for its own.

use bytes::{BufMut, Bytes, BytesMut};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::sync::{Mutex, mpsc};

use crate::activity::Activity;
use crate::session::{Down, Open, Output, PINGS, Session, Streams, forward};
use crate::{Error, Status, channel, spdy};

/// What comes from the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalInput {
    /// Keys, as bytes.
    Keys(Bytes),
    /// A new size.
    Size {
        /// The width.
        columns: u16,
        /// The height.
        rows: u16,
    },
}

impl TerminalInput {
    /// As a message of the channels of a remote command.
    fn message(&self) -> Bytes {
        let mut message = BytesMut::new();
        match self {
            Self::Keys(keys) => {
                message.put_u8(channel::STDIN);
                message.put_slice(keys);
            }
            Self::Size { columns, rows } => {
                message.put_u8(channel::RESIZE);
                message.put_slice(json!({"Width": columns, "Height": rows}).to_string().as_bytes());
            }
        }
        message.freeze()
    }
}

/// Where the person looks.
struct Screen<W>(Mutex<W>);

impl<W: AsyncWrite + Unpin + Send> Output for Screen<W> {
    async fn send(&self, _: u8, bytes: &[u8]) {
        let mut terminal = self.0.lock().await;
        if terminal.write_all(bytes).await.is_ok() {
            let _ = terminal.flush().await;
        }
    }
}

/// Joins a terminal to the command whose session `backend` is, until the command has ended or `input` has.
///
/// # Errors
/// The session breaks, or `input` has ended.
pub async fn terminal(
    backend: Upgraded,
    input: &mut mpsc::Receiver<TerminalInput>,
    output: impl AsyncWrite + Unpin + Send,
) -> Result<Status, Error> {
    let streams = Streams { stdin: true, stdout: true, stderr: false, tty: true };
    let Session { mut open, reader, mut writer } = Session::open(backend, streams).await?;
    let (pings, to_send) = mpsc::channel(PINGS);
    let output = Screen(Mutex::new(output));
    let mut down = Down { open, reader, output: &output, pings, activity: &Activity::default() };
    tokio::select! {
        status = down.run() => Ok(Status::parse(&status?)),
        () = up(input, &mut writer, &mut open, to_send) => {
            Err(std::io::Error::other("the terminal is gone").into())
        }
    }
}

/// From the terminal to the command, until the terminal is gone.
async fn up(
    input: &mut mpsc::Receiver<TerminalInput>,
    writer: &mut WriteHalf<TokioIo<Upgraded>>,
    open: &mut Open,
    mut pings: mpsc::Receiver<u32>,
) {
    loop {
        let written = tokio::select! {
            Some(id) = pings.recv() => writer.write_all(&spdy::ping(id)).await,
            input = input.recv() => match input {
                Some(input) => forward(writer, open, input.message()).await,
                None => return,
            },
        };
        if written.is_err() || writer.flush().await.is_err() {
            // The command has ended; its output is still to be read.
            (open.stdin, open.resize) = (None, None);
        }
    }
}
