//! Answers that can be cut off: a watch lives as long as its connection, and must leave one whose
//! credentials were renewed, or whose server is given up. The watcher goes on from where it was.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::BoxError;

use super::lanes::Place;

/// The body of an answer.
pub(super) struct Cuttable {
    body: Body,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _place: Option<Place>,
}

impl Cuttable {
    /// Ends with an error when `cut` is cancelled; without one, by itself alone.
    pub(super) fn new(body: Body, cut: Option<CancellationToken>, place: Option<Place>) -> Self {
        Self { body, cut: cut.map(|cut| Box::pin(cut.cancelled_owned())), _place: place }
    }
}

impl HttpBody for Cuttable {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(cut) = &mut self.cut
            && cut.as_mut().poll(context).is_ready()
        {
            self.cut = None;
            return Poll::Ready(Some(Err("the connection is left for a better one".into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
