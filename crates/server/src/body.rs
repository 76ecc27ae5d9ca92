//! Bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use longshore_base::panics;

/// A body that holds a guard until it is sent or dropped. Panics are contained.
pub(super) struct Tracked<T> {
    body: Body,
    _held: T,
}

impl<T> Tracked<T> {
    pub(super) fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> HttpBody for Tracked<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        panics::contain_sync(|| Pin::new(&mut self.body).poll_frame(context)).unwrap_or_else(
            |panicked| {
                self.body = Body::empty();
                Poll::Ready(Some(Err(axum::Error::new(panicked))))
            },
        )
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn panic_in_a_response_body_is_contained() {
        let frames = futures::stream::poll_fn(|_| -> Poll<Option<Result<Bytes, axum::Error>>> {
            panic!("here")
        });
        let held = Arc::new(());
        let mut body = Tracked::new(Body::from_stream(frames), Arc::clone(&held));
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
