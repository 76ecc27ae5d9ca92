//! What a call is sent to.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::TryFutureExt;
use hyper::{Request, Response};
use longshore_base::panics::BoxError;
use longshore_grpc::{Endpoint, InvalidEndpoint};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::Channel;

use crate::InProcess;
use crate::server::Handler;

/// A service of a runtime: its endpoint, for messages, and the way to it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) name: Arc<str>,
    pub(crate) transport: Transport,
}

/// How calls get to a runtime.
#[derive(Clone)]
pub(crate) enum Transport {
    /// By HTTP/2 over a socket.
    Socket(Channel),
    /// By a function of this process.
    InProcess(Handler),
}

impl Peer {
    /// What an endpoint means: a runtime in this process, or a socket. Must be called inside a tokio runtime.
    pub(crate) fn new(endpoint: &str, in_process: &[InProcess]) -> Result<Self, InvalidEndpoint> {
        if let Some(found) = in_process.iter().find(|known| known.endpoint == endpoint) {
            let transport = Transport::InProcess(Arc::clone(&found.handler));
            return Ok(Self { name: endpoint.into(), transport });
        }
        let socket = Endpoint::parse(endpoint)?;
        let transport = Transport::Socket(socket.channel());
        Ok(Self { name: socket.to_string().into(), transport })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<Response<Body>, BoxError>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Socket(channel) => channel.poll_ready(context).map_err(Into::into),
            Self::InProcess(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self {
            Self::Socket(channel) => Box::pin(channel.call(request).err_into()),
            Self::InProcess(handler) => handler(request),
        }
    }
}
