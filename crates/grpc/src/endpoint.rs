//! Where a peer listens, and the lazy HTTP/2 connection to it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::transport::Endpoint as Http;

/// `sun_path` without its closing NUL; a longer path cannot be connected to.
const LONGEST_PATH: usize = 107;

/// A Unix socket, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Arc<Path>);

/// What cannot be the address of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint:?}: {reason}")]
pub struct InvalidEndpoint {
    /// As configured.
    pub endpoint: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Endpoint {
    /// Takes `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock`.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(endpoint: &str) -> Result<Self, InvalidEndpoint> {
        let refuse = |reason| Err(InvalidEndpoint { endpoint: endpoint.to_owned(), reason });
        let path = match endpoint.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => {
                return refuse("only unix:// sockets are supported");
            }
            _ => endpoint,
        };
        if path.is_empty() {
            return refuse("no path of a socket");
        }
        if !path.starts_with('/') {
            return refuse("the path of the socket is not absolute");
        }
        if path.contains('\0') {
            return refuse("a NUL byte in the path of the socket");
        }
        if path.len() > LONGEST_PATH {
            return refuse("the path of the socket is longer than 107 bytes");
        }
        Ok(Self(PathBuf::from(path).into()))
    }

    /// A channel that connects with the first call, and anew with the next call after a connection
    /// broke. Must be made inside a tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        let endpoint = self.clone();
        let connect = move |_| {
            let endpoint = endpoint.clone();
            async move {
                match UnixStream::connect(&endpoint.0).await {
                    Ok(stream) => Ok(TokioIo::new(stream)),
                    Err(e) => Err(io::Error::new(e.kind(), format!("connect: {e}"))),
                }
            }
        };
        // servers written in Go refuse a socket path for an authority
        Http::from_static("http://localhost")
            .connect_with_connector_lazy(tower::service_fn(connect))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}
