//! Serves gRPC on a Unix socket, for other peers and fakes in tests.

use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::authority::Tolerant;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A running server; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Serves any HTTP/2 service on this socket, gRPC or not.
    pub fn serve<S, B>(listener: UnixListener, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
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

/// The service of the path `/service/Method`.
#[must_use]
pub fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split('/').next().unwrap_or_default()
}
