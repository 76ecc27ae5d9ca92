//! Routers of axum, and other services of tower, as handlers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, Response, StatusCode};
use longshore_base::connections::Unadmitted;
use longshore_base::panics;
use tower::{Service, ServiceExt};
use tracing::debug;

use crate::{BoxError, Guarded, Handler, Peer};

type Report = dyn Fn(SocketAddr, &str) + Send + Sync;

/// A service as a handler. Requests have the [`Peer`] (in an [`Arc`]) as an extension.
pub struct Routes<S> {
    service: S,
    report: Option<Box<Report>>,
}

impl<S> Routes<S> {
    /// Serves by this service.
    pub fn new(service: S) -> Self {
        Self { service, report: None }
    }

    /// The same, with another report of connections that failed.
    #[must_use]
    pub fn reporting(self, report: impl Fn(SocketAddr, &str) + Send + Sync + 'static) -> Self {
        Self { report: Some(Box::new(report)), ..self }
    }
}

impl<S, B> Handler for Routes<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + From<&'static str> + Send + Unpin + 'static,
{
    type Body = Guarded<B, Option<Unadmitted>>;

    fn handle(
        self: Arc<Self>,
        peer: Arc<Peer>,
        mut request: Request<Incoming>,
        unadmitted: Unadmitted,
    ) -> impl Future<Output = Response<Self::Body>> + Send {
        request.extensions_mut().insert(peer);
        let answer = panics::contained(self.service.clone().oneshot(request), || {
            Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"))
        });
        async move {
            let Ok(answer) = answer.await;
            let is_refused = answer.status().is_client_error() || answer.status().is_server_error();
            let refused = Some(unadmitted).filter(|_| is_refused);
            answer.map(|body| Guarded::new(body, refused))
        }
    }

    fn too_many(&self) -> Response<Self::Body> {
        let text = "Too many requests, please try again later.\n";
        plain(StatusCode::TOO_MANY_REQUESTS, text).map(|body: B| Guarded::new(body, None))
    }

    fn connection_failed(&self, address: SocketAddr, reason: &str) {
        match &self.report {
            Some(report) => report(address, reason),
            None => debug!(%address, reason, "connection ended"),
        }
    }
}

fn plain<B: From<&'static str>>(status: StatusCode, text: &'static str) -> Response<B> {
    let mut response = Response::new(B::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
