//! Serves gRPC on a Unix socket, for other peers and fakes in tests.

use std::time::Duration;

use futures::FutureExt;
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_base::panics::{self, BoxError, ContainedBody};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};
use tonic::Status;

use crate::authority::Tolerant;

/// A running server; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Serves a service of gRPC on this socket. A panic ends its request alone.
    pub fn serve<S, B>(listener: UnixListener, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let service = service_fn(move |request| contained(service.call(request)));
        Self(tokio::spawn(async move {
            // owned by this task, so that they end with it
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // most likely too many open files: some will be closed
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while connections.try_join_next().is_some() {}
                let (reader, writer) = stream.into_split();
                let stream = tokio::io::join(Tolerant::new(reader), writer);
                connections.spawn(
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service.clone()),
                );
            }
        }))
    }

    /// Closes all connections, and returns when the listener is closed. The
    /// socket's file is kept.
    pub async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer to a request of gRPC; Internal, or a stream that ends with an error, if the service panics.
///
/// # Errors
/// Of the service.
pub fn contained<B, E>(
    answer: impl Future<Output = Result<Response<B>, E>>,
) -> impl Future<Output = Result<Response<tonic::body::Body>, E>>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let answer = panics::contain(answer);
    answer.map(|answer| match answer {
        Ok(answer) => {
            answer.map(|response| response.map(ContainedBody::new).map(tonic::body::Body::new))
        }
        Err(panicked) => Ok(Status::internal(panicked.to_string()).into_http()),
    })
}

/// The service of the path `/service/Method`.
#[must_use]
pub fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split('/').next().unwrap_or_default()
}
