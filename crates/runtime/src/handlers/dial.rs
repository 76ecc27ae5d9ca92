//! Connections of probes and hooks, and the texts of their errors.
//!
//! No connection has SO_LINGER: it would block a thread of the daemon, and does not shorten the
//! TIME_WAIT of Linux. Each is closed after one use.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use hyper::rt::Executor;
use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Why a connection failed, with the messages of Go.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The host name cannot be resolved.
    #[error("dial tcp: lookup {host}: {reason}")]
    Lookup { host: String, reason: String },
    /// The connection failed or was refused.
    #[error("dial tcp {address}: connect: {}", system_text(.source))]
    Connect { address: SocketAddr, source: io::Error },
}

/// Connect to the first address of the host that accepts.
pub(super) async fn dial(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let unknown = |reason: String| DialError::Lookup { host: host.to_owned(), reason };
    let found = tokio::net::lookup_host((host, port)).await;
    let mut first = None;
    for address in found.map_err(|_| unknown("no such host".to_owned()))? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(source) => first = first.or(Some(DialError::Connect { address, source })),
        }
    }
    Err(first.unwrap_or_else(|| unknown("no addresses".to_owned())))
}

/// `host:port`, with an IPv6 address in brackets.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The system's text for an error, in lower case as in Go.
pub(super) fn system_text(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    let text = Errno::from_raw(code).desc();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.to_string(),
    }
}

/// The I/O error at the root of another error.
pub(super) fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(found) => Some(found),
        None => io_cause(error.source()?),
    }
}

/// A connection that keeps the first bytes that its peer sent.
pub(super) struct RecordingStream {
    stream: TcpStream,
    first_bytes: FirstBytes,
}

/// The first bytes that a peer sent, once it has.
pub(super) type FirstBytes = Arc<OnceLock<Vec<u8>>>;

/// The number of bytes that are kept.
const FIRST_BYTES: usize = 5;

impl RecordingStream {
    pub(super) fn new(stream: TcpStream) -> (Self, FirstBytes) {
        let first_bytes = FirstBytes::default();
        (Self { stream, first_bytes: first_bytes.clone() }, first_bytes)
    }
}

impl AsyncRead for RecordingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = &buffer.filled()[before..];
        if !received.is_empty() && self.first_bytes.get().is_none() {
            let _ = self.first_bytes.set(received[..received.len().min(FIRST_BYTES)].to_vec());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RecordingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Runs the task of a connection, until the given time at the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionExecutor(pub(super) Option<Instant>);

impl<F> Executor<F> for ConnectionExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, connection: F) {
        let end = self.0;
        tokio::spawn(async move {
            match end {
                Some(end) => drop(timeout_at(end, connection).await),
                None => drop(connection.await),
            }
        });
    }
}
