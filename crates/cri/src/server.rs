//! Serves CRI on a Unix socket, for other runtimes and fakes in tests.

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::{Server, service_of};
use tokio::net::UnixListener;
use tower::Service as _;

use crate::MAX_MESSAGE;
use crate::v1::image_service_server::{self, ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// Serves on this socket. Methods that are not implemented return
/// Unimplemented.
pub fn serve(
    listener: UnixListener,
    runtime: impl RuntimeService,
    images: impl ImageService,
) -> Server {
    let runtime = RuntimeServiceServer::new(runtime).max_decoding_message_size(MAX_MESSAGE);
    let images = ImageServiceServer::new(images).max_decoding_message_size(MAX_MESSAGE);
    let dispatch = service_fn(move |request: Request<Incoming>| {
        if service_of(request.uri().path()) == image_service_server::SERVICE_NAME {
            images.clone().call(request)
        } else {
            runtime.clone().call(request)
        }
    });
    Server::serve(listener, dispatch)
}
