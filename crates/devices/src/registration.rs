//! The service by which plugins register, on `kubelet.sock` in their folder.

use std::sync::Arc;

use futures::future::BoxFuture;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::Server;
use tokio::net::UnixListener;
use tonic::{Response, Status};
use tower::Service as _;
use tracing::warn;

use crate::error::{Error, brief};
use crate::v1beta1::registration_server::{Registration, RegistrationServer};
use crate::v1beta1::{Empty, RegisterRequest};

/// Registers a plugin.
pub(crate) type Register =
    Arc<dyn Fn(RegisterRequest) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

/// Serves registrations on this socket.
pub(crate) fn serve(listener: UnixListener, register: Register) -> Server {
    let service = RegistrationServer::new(Service(register));
    Server::serve(
        listener,
        service_fn(move |request: Request<Incoming>| service.clone().call(request)),
    )
}

struct Service(Register);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: tonic::Request<RegisterRequest>,
    ) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let resource = brief(&request.resource_name);
        match (self.0)(request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                warn!(resource, %error, "bad registration request from a device plugin");
                // What Go's gRPC makes of a plain error.
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}
