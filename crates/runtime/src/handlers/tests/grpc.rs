//! Health checks against a server of tonic's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use serde_json::json;
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use super::super::grpc::{HealthCheckRequest, HealthCheckResponse};
use super::server::{listen, raw};
use super::{Outcome, closed_port, failure, probe};

/// A health service that gives each service of it the status of its name.
async fn health() -> (u16, Arc<Mutex<String>>) {
    let seen = Arc::new(Mutex::new(String::new()));
    let agent = seen.clone();
    let port = listen(move |stream| {
        let agent = agent.clone();
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let agent_of = request.headers()["user-agent"].to_str().unwrap().to_owned();
                *agent.lock() = format!("{} {agent_of}", request.uri().path());
                async move {
                    let check = |request: tonic::Request<HealthCheckRequest>| async move {
                        match request.into_inner().service.as_str() {
                            "" => Ok(Response::new(HealthCheckResponse { status: 1 })),
                            "slow" => std::future::pending().await,
                            "old" => Err(Status::unimplemented("unknown service")),
                            "gone" => Err(Status::not_found("unknown service")),
                            number => {
                                let status = number.parse().unwrap();
                                Ok(Response::new(HealthCheckResponse { status }))
                            }
                        }
                    };
                    let codec = ProstCodec::<HealthCheckResponse, HealthCheckRequest>::default();
                    let mut grpc = tonic::server::Grpc::new(codec);
                    let answer = grpc.unary(tower::service_fn(check), request).await;
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await;
    (port, seen)
}

#[tokio::test]
async fn grpc_probe_results() {
    let (port, seen) = health().await;
    assert_eq!(probe(json!({"grpc": {"port": port}})).await.unwrap(), Outcome::Success);
    assert_eq!(*seen.lock(), "/grpc.health.v1.Health/Check kube-probe/1.36");
    let unhealthy = |status: &str| format!("service unhealthy (responded with \"{status}\")");
    let old = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service";
    let gone = "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service";
    for (service, expected) in [
        ("1", None),
        ("0", Some(unhealthy("UNKNOWN"))),
        ("2", Some(unhealthy("NOT_SERVING"))),
        ("3", Some(unhealthy("SERVICE_UNKNOWN"))),
        ("9", Some(unhealthy("9"))),
        ("old", Some(old.to_owned())),
        ("gone", Some(gone.to_owned())),
        ("slow", Some("timeout: health rpc did not complete within 1s".to_owned())),
    ] {
        let expected = expected.map_or(Outcome::Success, Outcome::Failure);
        let probe_spec = json!({"grpc": {"port": port, "service": service}});
        assert_eq!(probe(probe_spec).await.unwrap(), expected, "{service}");
    }
}

#[tokio::test]
async fn grpc_probe_timeout_without_a_server() {
    let silent = listen(|stream| async move {
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let (other, _) = raw(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await;
    for port in [closed_port().await, silent, other] {
        let start = Instant::now();
        assert_eq!(
            failure(json!({"grpc": {"port": port}})).await,
            format!(
                "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
            )
        );
        assert!(start.elapsed() >= Duration::from_secs(1));
    }
}

#[tokio::test]
async fn grpc_probe_waits_for_a_late_server() {
    let (port, _) = health().await;
    let late = closed_port().await;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", late)).await.unwrap();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut onward = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut onward).await;
            });
        }
    });
    let probe_spec = json!({"grpc": {"port": late}, "timeoutSeconds": 5});
    assert_eq!(probe(probe_spec).await.unwrap(), Outcome::Success);
}
