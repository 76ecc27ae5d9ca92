//! Serves CRI on a Unix socket, and through pipes in memory for a client in the same process.

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_grpc::{Server, service_of};
use tokio::net::UnixListener;
use tonic::transport::Channel;
use tower::Service as _;

use crate::MAX_MESSAGE;
use crate::v1::image_service_server::{self, ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};

/// Bytes that a pipe in memory holds.
const PIPE: usize = 1 << 20;

/// The service of both, by the path of a request.
macro_rules! dispatch {
    ($runtime:expr, $images:expr) => {{
        let runtime = RuntimeServiceServer::new($runtime).max_decoding_message_size(MAX_MESSAGE);
        let images = ImageServiceServer::new($images).max_decoding_message_size(MAX_MESSAGE);
        service_fn(move |request: Request<Incoming>| {
            if service_of(request.uri().path()) == image_service_server::SERVICE_NAME {
                images.clone().call(request)
            } else {
                runtime.clone().call(request)
            }
        })
    }};
}

/// Serves on this socket. Methods that are not implemented return
/// Unimplemented.
pub fn serve(
    listener: UnixListener,
    runtime: impl RuntimeService,
    images: impl ImageService,
) -> Server {
    Server::serve(listener, dispatch!(runtime, images))
}

/// A runtime in this process, in place of one behind a socket.
#[derive(Clone)]
pub struct InProcess {
    pub(crate) endpoint: String,
    pub(crate) channel: Channel,
}

impl InProcess {
    /// The runtime that is meant by this endpoint. Must be created inside a tokio runtime.
    ///
    /// Its channel is a pipe in memory: nothing but tokio's tasks and timers is waited for, and a paused clock
    /// advances only when all of them are idle.
    pub fn new(
        endpoint: impl Into<String>,
        runtime: impl RuntimeService,
        images: impl ImageService,
    ) -> Self {
        let dispatch = dispatch!(runtime, images);
        let connect = move |_| {
            let (client, server) = tokio::io::duplex(PIPE);
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(server), dispatch.clone());
            tokio::spawn(connection);
            std::future::ready(Ok::<_, std::io::Error>(TokioIo::new(client)))
        };
        let channel = tonic::transport::Endpoint::from_static("http://localhost")
            .connect_with_connector_lazy(tower::service_fn(connect));
        Self { endpoint: endpoint.into(), channel }
    }
}
