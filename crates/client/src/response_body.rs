//! Response bodies that can be cancelled: a watch lasts as long as its connection, and must leave one
//! whose credentials were renewed or whose server has failed. The watcher resumes from the last
//! resourceVersion. The sizes of all other responses are recorded as metrics.

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

use super::connection_pool::StreamPermit;

/// The body of a response.
pub(super) struct ResponseBody {
    body: Body,
    end: End,
    _stream: Option<StreamPermit>,
}

/// How a response ends.
enum End {
    /// A watch: ends with an error when it is cancelled.
    Cancelled(Option<Pin<Box<WaitForCancellationFutureOwned>>>),
    /// Any other response: its size is recorded.
    Own(Counted),
}

/// The size of a response, recorded when its body is dropped.
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

impl ResponseBody {
    /// The body of a watch, which ends with an error when `cancel` is cancelled.
    pub(super) fn watch(
        body: Body,
        cancel: CancellationToken,
        stream: Option<StreamPermit>,
    ) -> Self {
        let end = End::Cancelled(Some(Box::pin(cancel.cancelled_owned())));
        Self { body, end, _stream: stream }
    }

    /// The body of the response to a request with that method to that host.
    pub(super) fn to(
        method: Method,
        host: String,
        body: Body,
        stream: Option<StreamPermit>,
        metrics: RestClient,
    ) -> Self {
        let end = End::Own(Counted { metrics, method, host, bytes: 0 });
        Self { body, end, _stream: stream }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let End::Cancelled(end) = &mut self.end
            && let Some(cancel) = end
            && cancel.as_mut().poll(context).is_ready()
        {
            *end = None;
            return Poll::Ready(Some(Err("the watch moves to a new connection".into())));
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
