//! The ends of streams that a runtime is given.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use longshore_streams::spdy::PIECE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, PollSender};

use crate::connection::{Outgoing, Queue};

/// Pieces of an input that wait to be read.
const PIECES: usize = 2;

/// What a client sends on one stream. It ends when the client has closed the stream.
#[derive(Debug)]
pub struct Input {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

/// An input, and what feeds it.
pub(crate) fn input() -> (mpsc::Sender<Bytes>, Input) {
    let (feed, pieces) = mpsc::channel(PIECES);
    (feed, Input { pieces, piece: Bytes::new() })
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(self.pieces.poll_recv(context)) {
                Some(piece) => self.piece = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece.split_to(length));
        Poll::Ready(Ok(()))
    }
}

/// What a client receives on one stream. Writes fail once the client has reset it.
#[derive(Debug)]
pub struct Output {
    stream: u32,
    queue: PollSender<Outgoing>,
    closed: CancellationToken,
}

impl Output {
    /// Of that stream; nothing can be written once it is `closed`.
    pub(crate) fn new(stream: u32, queue: &Queue, closed: CancellationToken) -> Self {
        Self { stream, queue: PollSender::new(queue.sender()), closed }
    }

    /// Completes when a frame can be sent.
    fn poll_reserve(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed.is_cancelled() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.queue.poll_reserve(context).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn send(&mut self, bytes: Bytes, last: bool) -> io::Result<()> {
        let data = Outgoing::Data { stream: self.stream, bytes, last };
        self.queue.send_item(data).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncWrite for Output {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_reserve(context))?;
        let piece = Bytes::copy_from_slice(bytes.get(..PIECE).unwrap_or(bytes));
        let length = piece.len();
        self.send(piece, false)?;
        Poll::Ready(Ok(length))
    }

    /// What was written is sent without it.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_reserve(context))?;
        self.send(Bytes::new(), true)?;
        self.closed.cancel();
        Poll::Ready(Ok(()))
    }
}
