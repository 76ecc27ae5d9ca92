//! Connections of probes and hooks, and how their failures are told.
//!
//! No connection lingers: waiting for its end would hold up a thread of the daemon, and does not
//! shorten what Linux remembers of it. Each is closed after one use.

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

/// Why there is no connection, in the words that users know from Go.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The name is not known.
    #[error("dial tcp: lookup {host}: {reason}")]
    Lookup { host: String, reason: String },
    /// Nobody answers, or refuses.
    #[error("dial tcp {address}: connect: {}", system_text(.source))]
    Connect { address: SocketAddr, source: io::Error },
}

/// Connect to the first address of the host that answers.
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

/// `host:port`, an IPv6 address in brackets.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The system's words for an error, in lower case as Go has them.
pub(super) fn system_text(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    let text = Errno::from_raw(code).desc();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.to_string(),
    }
}

/// The system's error at the bottom of another one.
pub(super) fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(found) => Some(found),
        None => io_cause(error.source()?),
    }
}

/// A connection that remembers how its peer began to speak.
pub(super) struct Heard {
    stream: TcpStream,
    greeting: Greeting,
}

/// The first letters that a peer said, once it has.
pub(super) type Greeting = Arc<OnceLock<Vec<u8>>>;

/// The letters of a greeting that are kept.
const KEPT: usize = 5;

impl Heard {
    pub(super) fn new(stream: TcpStream) -> (Self, Greeting) {
        let greeting = Greeting::default();
        (Self { stream, greeting: greeting.clone() }, greeting)
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let heard = &buffer.filled()[before..];
        if !heard.is_empty() && self.greeting.get().is_none() {
            let _ = self.greeting.set(heard[..heard.len().min(KEPT)].to_vec());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Heard {
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

/// Runs what keeps a connection going, which ends with its use, and at that moment at the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until(pub(super) Option<Instant>);

impl<F> Executor<F> for Until
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
