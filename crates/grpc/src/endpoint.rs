//! Endpoints of peers, and lazy HTTP/2 connections to them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::transport::Endpoint as Http;

/// The limit of `sun_path` without its terminating NUL.
const MAX_PATH: usize = 107;

/// A Unix socket, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Arc<Path>);

/// An invalid endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint:?}: {reason}")]
pub struct InvalidEndpoint {
    /// As configured.
    pub endpoint: String,
    /// The reason.
    pub reason: &'static str,
}

impl Endpoint {
    /// Parses `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock`.
    ///
    /// # Errors
    /// For any other text.
    pub fn parse(endpoint: &str) -> Result<Self, InvalidEndpoint> {
        let invalid = |reason| Err(InvalidEndpoint { endpoint: endpoint.to_owned(), reason });
        let path = match endpoint.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => {
                return invalid("only unix:// sockets are supported");
            }
            _ => endpoint,
        };
        if path.is_empty() {
            return invalid("no path");
        }
        if !path.starts_with('/') {
            return invalid("the path is not absolute");
        }
        if path.contains('\0') {
            return invalid("a NUL byte in the path");
        }
        if path.len() > MAX_PATH {
            return invalid("the path is longer than 107 bytes");
        }
        Ok(Self(PathBuf::from(path).into()))
    }

    /// Connects to the socket.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let connected = UnixStream::connect(&self.0).await;
        connected.map_err(|error| io::Error::new(error.kind(), format!("connect: {error}")))
    }

    /// A channel that connects with the first call, and reconnects with the next call after the
    /// connection was lost. Must be created inside a tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        let endpoint = self.clone();
        let connect = move |_| {
            let endpoint = endpoint.clone();
            async move { endpoint.connect().await.map(TokioIo::new) }
        };
        // servers written in Go reject a socket path as authority
        Http::from_static("http://localhost")
            .connect_with_connector_lazy(tower::service_fn(connect))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}
