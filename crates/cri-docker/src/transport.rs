//! How requests reach the engine: over connections to its Unix socket, which need not exist before them, and which
//! serve one request after the other. Bollard's own way there refuses a socket that does not exist when the client is
//! made, and makes a connection for each request.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::errors::Error;
use futures::future::BoxFuture;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tower::Service;

/// The oldest API that is spoken, 1.40, is Docker 19.03's.
pub(crate) const OLDEST: u32 = 40;
/// What stands for the version before the engine has told it.
pub(crate) const UNKNOWN: u32 = 0;
/// How long a connection is kept that no request uses: longer than it is between two checks of the engine's health.
const IDLE: Duration = Duration::from_secs(30);
/// How many of them.
const MAX_IDLE: usize = 16;

/// The way to one engine. `B` is what requests have for a body.
#[derive(Debug)]
pub(crate) struct Transport<B> {
    client: Client<Connector, B>,
    /// The minor version of the API that calls have, or [`UNKNOWN`].
    api: Arc<AtomicU32>,
}

/// Connects to a Unix socket, whatever host is asked for.
#[derive(Debug, Clone)]
struct Connector(Arc<Path>);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = Arc::clone(&self.0);
        Box::pin(async move { UnixStream::connect(&socket).await.map(TokioIo::new) })
    }
}

impl<B> Transport<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    B: Send + Unpin + 'static,
{
    pub(crate) fn new(socket: PathBuf, api: Arc<AtomicU32>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(Connector(socket.into()));
        Self { client, api }
    }

    /// Sends a request, and returns the beginning of its answer. Who no longer waits for it, or for its end, ends its
    /// connection.
    pub(crate) fn send(
        &self,
        mut request: Request<B>,
    ) -> impl Future<Output = Result<Response<Incoming>, Error>> + Send + use<B> {
        if let Some(target) = target(request.uri(), self.api.load(Ordering::Relaxed)) {
            *request.uri_mut() = target;
        }
        let answer = self.client.request(request);
        async move { Ok(answer.await.map_err(unreached)?) }
    }
}

/// Why an engine was not reached, or did not answer.
fn unreached(error: legacy::Error) -> io::Error {
    let Some(source) = error.source() else { return io::Error::other(error) };
    match source.downcast_ref::<io::Error>() {
        Some(source) => io::Error::new(source.kind(), source.to_string()),
        None => io::Error::other(source.to_string()),
    }
}

/// PURE: what is asked for, in a version of the API. Bollard has that in the URI, if at all, in the one that it was
/// made with. Without a version the engine takes its own newest.
fn target(uri: &Uri, api: u32) -> Option<Uri> {
    let path = uri.path_and_query()?.as_str();
    let plain = path.strip_prefix(&format!("/v1.{OLDEST}")).filter(|rest| rest.starts_with('/'));
    let plain = plain.unwrap_or(path);
    match api {
        UNKNOWN => format!("http://docker{plain}").parse().ok(),
        api => format!("http://docker/v1.{api}{plain}").parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_version_that_was_negotiated() {
        for (uri, api, expected) in [
            (
                "http://docker/containers/json?all=true",
                44,
                "http://docker/v1.44/containers/json?all=true",
            ),
            ("http://docker/v1.40/containers/json", 44, "http://docker/v1.44/containers/json"),
            ("http://docker/v1.400/x", 44, "http://docker/v1.44/v1.400/x"),
            ("http://docker/version", UNKNOWN, "http://docker/version"),
            ("http://docker/v1.40/version", UNKNOWN, "http://docker/version"),
        ] {
            let found = target(&uri.parse().unwrap(), api).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), Some(expected));
        }
    }
}
