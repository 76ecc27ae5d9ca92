use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use super::contain_sync;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A body of HTTP that a panic ends with an error.
#[derive(Debug)]
pub struct ContainedBody<B> {
    body: B,
    panicked: bool,
}

impl<B> ContainedBody<B> {
    /// This body.
    pub fn new(body: B) -> Self {
        Self { body, panicked: false }
    }
}

impl<B: Body<Error: Into<BoxError>> + Unpin> Body for ContainedBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        if self.panicked {
            return Poll::Ready(None);
        }
        match contain_sync(|| Pin::new(&mut self.body).poll_frame(context)) {
            Ok(next) => next.map(|next| next.map(|frame| frame.map_err(Into::into))),
            Err(panicked) => {
                self.panicked = true;
                Poll::Ready(Some(Err(panicked.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.panicked || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.panicked { SizeHint::with_exact(0) } else { self.body.size_hint() }
    }
}
