//! Answers that can be cut off: a watch lives as long as its connection, and must leave one whose
//! credentials were renewed, or whose server is given up. The watcher goes on from where it was.
//! Those that come to an end by themselves are counted by their size.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::http::Method;
use kube::client::Body;
use longshore_metrics::RestClient;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::BoxError;

use super::connection_pool::Place;

/// The body of an answer.
pub(super) struct Answer {
    body: Body,
    end: End,
    _place: Option<Place>,
}

/// How an answer ends.
enum End {
    /// When it is cut off, with an error.
    Cut(Option<Pin<Box<WaitForCancellationFutureOwned>>>),
    /// By itself.
    Own(Counted),
}

/// The size of an answer, told when nobody reads it any more.
struct Counted {
    metrics: RestClient,
    method: Method,
    host: String,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.answered(self.method.as_str(), &self.host, self.bytes);
    }
}

impl Answer {
    /// One that ends with an error when `cut` is cancelled.
    pub(super) fn watch(body: Body, cut: CancellationToken, place: Option<Place>) -> Self {
        let end = End::Cut(Some(Box::pin(cut.cancelled_owned())));
        Self { body, end, _place: place }
    }

    /// One to such a request to that host.
    pub(super) fn to(
        method: Method,
        host: String,
        body: Body,
        place: Option<Place>,
        metrics: RestClient,
    ) -> Self {
        let end = End::Own(Counted { metrics, method, host, bytes: 0 });
        Self { body, end, _place: place }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let End::Cut(end) = &mut self.end
            && let Some(cut) = end
            && cut.as_mut().poll(context).is_ready()
        {
            *end = None;
            return Poll::Ready(Some(Err("the connection is left for a better one".into())));
        }
        let frame = Pin::new(&mut self.body).poll_frame(context).map_err(Into::into);
        if let (Poll::Ready(Some(Ok(frame))), End::Own(counted)) = (&frame, &mut self.end) {
            counted.bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
