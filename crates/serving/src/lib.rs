//! The ports of all programs: connections are accepted, limited in number, put through TLS, served
//! with HTTP/1.1 or HTTP/2, closed when they are idle, and drained at the end. What a request means
//! is for a [`Handler`] to say.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::panic))]

mod body;
mod connection;
mod front_proxy;
mod peer;
mod profiling;
mod routes;
pub mod tls;
mod zpages;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use longshore_base::connections::{self, Limits, Unadmitted};
pub use longshore_base::panics::BoxError;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use self::body::Guarded;
pub use self::front_proxy::FrontProxyHeaders;
pub use self::peer::{Monitored, Peer};
pub use self::profiling::{PROFILES, ProfilePage, Profiles};
pub use self::routes::Routes;
use self::tls::Tls;
pub use self::zpages::{NotAcceptable, Page, Zpages};

/// Answers the requests of a port. It contains the panics of its requests: one that is not contained
/// ends the connection.
pub trait Handler: Send + Sync + 'static {
    /// The body of its responses.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static;

    /// Answers a request. `unadmitted` counts it among those that are not authorized yet: it is
    /// dropped when the request is admitted, or when the refusal is sent.
    fn handle(
        self: Arc<Self>,
        peer: Arc<Peer>,
        request: Request<Incoming>,
        unadmitted: Unadmitted,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// The response to a request of a peer with too many of them, whose connection is being closed.
    fn too_many(&self) -> Response<Self::Body>;

    /// A connection ended otherwise than by its client's or this server's orderly close.
    fn connection_failed(&self, address: SocketAddr, reason: &str) {
        debug!(%address, reason, "connection ended");
    }
}

/// How connections are kept and closed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many connections may be open.
    pub limits: Limits,
    /// How long a connection may be without a request, after its first one.
    pub idle_timeout: Duration,
    /// The same for a connection without an authorized request.
    pub unauthorized_idle_timeout: Duration,
    /// How long a connection stays that is to be closed. What is left then is an incomplete request,
    /// or a response that is not read.
    pub close_timeout: Duration,
    /// Whether `close_timeout` begins after the active requests, rather than at once.
    pub completes_requests: bool,
}

impl Options {
    /// Those of a port whose responses are short, or streams that can be cut.
    pub const DEFAULT: Self = Self {
        limits: Limits::DEFAULT,
        idle_timeout: Duration::from_secs(90),
        unauthorized_idle_timeout: Duration::from_secs(90),
        close_timeout: Duration::from_secs(2),
        completes_requests: false,
    };
}

/// Serves a port, with TLS if there are settings of it, until `stop`; and then until what is under way
/// has ended, for at most ten seconds.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    handler: Arc<H>,
    options: Options,
    stop: CancellationToken,
) {
    let reporter = Arc::clone(&handler);
    let (limits, closing) = (options.limits, stop.clone());
    let work = move |stream, address, counted| {
        let peer = Peer::new(address, counted, closing.child_token());
        connection::serve(stream, peer, tls.clone(), Arc::clone(&handler), options)
    };
    let failed = move |address, reason: &str| reporter.connection_failed(address, reason);
    connections::serve(listener, limits, stop, work, failed).await;
}

#[cfg(test)]
mod tests;
