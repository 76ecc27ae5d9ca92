//! Connections of probes and hooks, and the texts of their errors.
//!
//! No connection has SO_LINGER: it would block a thread of the daemon, and does not shorten the
//! TIME_WAIT of Linux. Each is closed after one use.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use hyper::rt::Executor;
use nix::errno::Errno;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::io::InspectReader;

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

/// The first bytes that a peer sent, once it has.
pub(super) type FirstBytes = Arc<OnceLock<Vec<u8>>>;

/// The number of bytes that are kept.
const FIRST_BYTES: usize = 5;

/// A connection that keeps the first bytes that its peer sends.
pub(super) fn recorded(
    stream: TcpStream,
) -> (InspectReader<TcpStream, impl FnMut(&[u8]) + Send + 'static>, FirstBytes) {
    let first_bytes = FirstBytes::default();
    let kept = Arc::clone(&first_bytes);
    let keep = move |received: &[u8]| {
        if !received.is_empty() && kept.get().is_none() {
            let _ = kept.set(received[..received.len().min(FIRST_BYTES)].to_vec());
        }
    };
    (InspectReader::new(stream, keep), first_bytes)
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
