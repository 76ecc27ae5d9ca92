//! The gRPC health check: `grpc.health.v1.Health/Check`.

use std::time::Duration;

use hyper::Uri;
use hyper::client::conn::http2;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use longshore_base::time;
use longshore_config::GoDuration;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::dial::{ConnectionExecutor, FirstBytes, dial, join_host_port, recorded};
use super::{Outcome, PROBE_AGENT, rpc_error};

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The delay between attempts to connect, as in gRPC.
const PAUSE: Duration = Duration::from_secs(1);
/// Type of the SETTINGS frame, with which HTTP/2 starts.
const SETTINGS: u8 = 4;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// Check the health of a service at that address.
pub(super) async fn check(host: &str, port: u16, service: &str, limit: Duration) -> Outcome {
    let deadline = time::after(limit);
    let address = join_host_port(host, port);
    let within = GoDuration::secs(limit.as_secs().try_into().unwrap_or(i64::MAX));
    let received = Mutex::new(FirstBytes::default());
    let is_connected = || {
        let received = received.lock();
        received.get().is_some_and(|said| said.get(3) == Some(&SETTINGS))
    };
    let asking = async {
        let mut pause = PAUSE;
        loop {
            let answer = check_health(host, port, &address, service, deadline, &received).await;
            // A server that is not listening yet is retried until the timeout.
            if answer.is_ok() || is_connected() {
                return answer;
            }
            sleep(pause).await;
            pause = time::part(pause.saturating_mul(8), 5);
        }
    };
    let answer = timeout_at(deadline, asking).await;
    Outcome::Failure(match answer {
        Ok(Ok(HealthCheckResponse { status: 1 })) => return Outcome::Success,
        Ok(Ok(HealthCheckResponse { status })) => {
            let name = match status {
                0 => "UNKNOWN",
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => &status.to_string(),
            };
            format!("service unhealthy (responded with {name:?})")
        }
        Ok(Err(status)) if status.code() == Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        ),
        Ok(Err(status)) if status.code() != Code::DeadlineExceeded => format!(
            "error: health rpc probe failed: {}",
            rpc_error(status.code(), status.message())
        ),
        Err(_) if !is_connected() => format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        ),
        Ok(Err(_)) | Err(_) => format!("timeout: health rpc did not complete within {within}"),
    })
}

async fn check_health(
    host: &str,
    port: u16,
    address: &str,
    service: &str,
    deadline: Instant,
    received: &Mutex<FirstBytes>,
) -> Result<HealthCheckResponse, Status> {
    let unavailable = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
    let stream = dial(host, port).await.map_err(|error| unavailable(&error))?;
    let (stream, first_bytes) = recorded(stream);
    *received.lock() = first_bytes;
    let end = ConnectionExecutor(Some(deadline));
    let (sender, connection) = http2::Builder::new(end)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unavailable(&error))?;
    end.execute(connection);
    let service_fn = tower::service_fn(move |mut request: hyper::Request<tonic::body::Body>| {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(PROBE_AGENT));
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    let origin = Uri::builder().scheme("http").authority(address).path_and_query("/").build();
    let mut client = Grpc::with_origin(service_fn, origin.map_err(|error| unavailable(&error))?);
    let mut request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    request.set_timeout(deadline.duration_since(Instant::now()));
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer = client.unary(request, PathAndQuery::from_static(CHECK), codec).await;
    answer.map(tonic::Response::into_inner)
}
