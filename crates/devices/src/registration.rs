//! The service by which plugins register, on `kubelet.sock` in their folder.

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::Server;
use tokio::net::UnixListener;
use tonic::{Response, Status};
use tower::Service as _;
use tracing::warn;

use crate::error::brief;
use crate::manager::Devices;
use crate::names;
use crate::v1beta1::registration_server::{Registration, RegistrationServer};
use crate::v1beta1::{Empty, RegisterRequest};

/// Serves registrations on this socket.
pub(crate) fn serve(listener: UnixListener, devices: Devices) -> Server {
    let service = RegistrationServer::new(Service(devices));
    Server::serve(
        listener,
        service_fn(move |request: Request<Incoming>| service.clone().call(request)),
    )
}

struct Service(Devices);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: tonic::Request<RegisterRequest>,
    ) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request.into_inner();
        let registered = async {
            names::check([version.as_str()], &resource_name)?;
            let socket = names::socket(self.0.folder(), &endpoint)?;
            self.0.connect(&resource_name, &socket).await
        };
        match registered.await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                let resource = brief(&resource_name);
                warn!(resource, %error, "bad registration request from a device plugin");
                // What Go's gRPC makes of a plain error.
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}
