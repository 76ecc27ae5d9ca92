//! Serves CRI on a Unix socket, and to a client in the same process.

use std::convert::Infallible;
use std::sync::Arc;

use futures::TryFutureExt;
use hyper::service::service_fn;
use hyper::{Request, Response};
use longshore_base::panics::BoxError;
use longshore_grpc::{Server, contained, service_of};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service as _, StdError};

use crate::MAX_MESSAGE;
use crate::v1::image_service_server::{self, ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// Both services: the path of a request says which of them it is for.
fn services<B>(
    runtime: impl RuntimeService,
    images: impl ImageService,
) -> impl Fn(Request<B>) -> BoxFuture<Response<Body>, Infallible> + Clone + Send + Sync + 'static
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let runtime = RuntimeServiceServer::new(runtime).max_decoding_message_size(MAX_MESSAGE);
    let images = ImageServiceServer::new(images).max_decoding_message_size(MAX_MESSAGE);
    move |request| {
        if service_of(request.uri().path()) == image_service_server::SERVICE_NAME {
            images.clone().call(request)
        } else {
            runtime.clone().call(request)
        }
    }
}

/// Serves on this socket. Methods that are not implemented return
/// Unimplemented.
pub fn serve(
    listener: UnixListener,
    runtime: impl RuntimeService,
    images: impl ImageService,
) -> Server {
    Server::serve(listener, service_fn(services(runtime, images)))
}

/// Answers a request to either service.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Body>) -> BoxFuture<Response<Body>, BoxError> + Send + Sync>;

/// A runtime in this process, in place of one behind a socket.
#[derive(Clone)]
pub struct InProcess {
    pub(crate) endpoint: String,
    pub(crate) handler: Handler,
}

impl InProcess {
    /// The runtime that is meant by this endpoint.
    ///
    /// A call runs in the task of its caller: nothing but tokio's tasks and timers is waited for, and a paused
    /// clock advances only when all of them are idle.
    pub fn new(
        endpoint: impl Into<String>,
        runtime: impl RuntimeService,
        images: impl ImageService,
    ) -> Self {
        let services = services(runtime, images);
        let handler: Handler =
            Arc::new(move |request| Box::pin(contained(services(request)).err_into()));
        Self { endpoint: endpoint.into(), handler }
    }
}
