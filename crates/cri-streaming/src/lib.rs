//! The streaming server of a container runtime, as `k8s.io/kubelet/pkg/cri/streaming` is for runtimes in
//! Go: it answers the CRI calls Exec, Attach and PortForward with URLs that can be used once, and serves
//! these over SPDY and WebSocket. What a session does is for a [`Runtime`] to say.
//!
//! One connection is read by one reader, as SPDY has no flow control here: a stream whose data nobody
//! takes keeps the connection's other streams waiting.
//!
//! Current limitations: no TLS: the server is for the local host.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod connection;
mod pipes;
mod port_forward;
mod remote_command;
mod server;
mod sizes;
mod spdy;
#[cfg(test)]
mod tests;
mod tokens;
mod websocket;

use async_trait::async_trait;
use tokio::io::Join;

pub use pipes::{Input, Output};
pub use server::{Options, Server};
pub use sizes::{Sizes, TerminalSize};

/// Any error of a runtime. Its text is what the client sees.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Both directions of a forwarded connection: what the client sends is read, and what is written goes to
/// the client.
pub type PortStream = Join<Input, Output>;

/// The streams of a command. The server ends those to the client when the session has ended.
#[derive(Debug)]
pub struct Io {
    /// The input, if the client sends one. It ends when the client has closed it.
    pub stdin: Option<Input>,
    /// Where output goes, if the client takes it.
    pub stdout: Option<Output>,
    /// Where error output goes, if the client takes it. Absent with a terminal.
    pub stderr: Option<Output>,
    /// Whether there is a terminal.
    pub tty: bool,
    /// The sizes of the client's terminal.
    pub sizes: Sizes,
}

/// A runtime that has containers and sandboxes.
///
/// Each method is one session. Its future is dropped when the client has gone, when the session has been
/// idle for too long, and when the server stops: what the session holds must then end by being dropped.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Runs a command in a container and returns its exit code, once all of its output is written.
    async fn exec(
        &self,
        container_id: String,
        command: Vec<String>,
        io: Io,
    ) -> Result<i32, BoxError>;

    /// Joins the streams to those of a container's process, until that ends or the streams do.
    async fn attach(&self, container_id: String, io: Io) -> Result<(), BoxError>;

    /// Joins the stream to a connection to that port on the sandbox's loopback address.
    async fn port_forward(
        &self,
        sandbox_id: String,
        port: u16,
        stream: PortStream,
    ) -> Result<(), BoxError>;
}

/// Why there is no URL for a session.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request lacks a field.
    #[error("missing required {0}")]
    Missing(&'static str),
    /// Streams that do not go together.
    #[error("tty and stderr cannot both be true")]
    TtyWithStderr,
    /// No stream.
    #[error("one of stdin, stdout, or stderr must be set")]
    NoStream,
    /// A port out of range.
    #[error("invalid port {0}: must be between 1 and 65535")]
    Port(i32),
    /// Too many sessions that were requested and have not begun.
    #[error("maximum number of in-flight requests exceeded")]
    TooMany,
    /// There is no randomness for a token.
    #[error("no random token: {0}")]
    Random(String),
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::TooMany => Self::resource_exhausted(text),
            Error::Random(_) => Self::internal(text),
            _ => Self::invalid_argument(text),
        }
    }
}
