//! The server of a registration socket, for plugins of tests.

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::Server;
use tokio::net::UnixListener;
use tower::Service as _;

use crate::registration::registration_server::{Registration, RegistrationServer};

/// Serves the registration of a plugin on this socket.
pub fn serve_registration(listener: UnixListener, registration: impl Registration) -> Server {
    let registration = RegistrationServer::new(registration);
    let dispatch = service_fn(move |request: Request<Incoming>| registration.clone().call(request));
    Server::serve(listener, dispatch)
}
