//! Bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use longshore_base::panics::{BoxError, ContainedBody};

/// A body that holds a guard until it is sent or dropped. A panic ends it, and nothing else.
#[derive(Debug)]
pub struct Guarded<B, T> {
    body: ContainedBody<B>,
    _guard: T,
}

impl<B, T> Guarded<B, T> {
    /// This body with that guard.
    pub fn new(body: B, guard: T) -> Self {
        Self { body: ContainedBody::new(body), _guard: guard }
    }
}

impl<B, T> Body for Guarded<B, T>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    T: Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
