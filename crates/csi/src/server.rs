//! CSI servers, for drivers of tests.

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::{Server, service_of};
use tokio::net::UnixListener;
use tower::Service as _;

use crate::v1::identity_server::{self, Identity, IdentityServer};
use crate::v1::node_server::{Node, NodeServer};

/// Serves a driver on this socket. A method that an implementation leaves out is answered with
/// Unimplemented.
pub fn serve_driver(listener: UnixListener, identity: impl Identity, node: impl Node) -> Server {
    let (identity, node) = (IdentityServer::new(identity), NodeServer::new(node));
    let dispatch = service_fn(move |request: Request<Incoming>| {
        if service_of(request.uri().path()) == identity_server::SERVICE_NAME {
            identity.clone().call(request)
        } else {
            node.clone().call(request)
        }
    });
    Server::serve(listener, dispatch)
}
