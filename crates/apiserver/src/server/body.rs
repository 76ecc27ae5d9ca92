//! The body of an answer: text that is there, or a stream of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use hyper::body::{Frame, SizeHint};

/// Why a stream broke off.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

enum Content {
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
}

/// An answer's body. While it exists, its connection is in use.
pub(crate) struct Body {
    content: Content,
    _activity: Option<Arc<()>>,
}

impl Body {
    pub(crate) fn stream(
        stream: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ) -> Body {
        Body { content: Content::Stream(Box::pin(stream)), _activity: None }
    }

    pub(super) fn holding(mut self, activity: Arc<()>) -> Body {
        self._activity = Some(activity);
        self
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(text: T) -> Body {
        Body { content: Content::Whole(Some(text.into())), _activity: None }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.content {
            Content::Whole(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Content::Stream(stream) => stream
                .as_mut()
                .poll_next(context)
                .map(|next| next.map(|text| text.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}
