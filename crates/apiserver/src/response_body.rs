//! The body of an answer: text that is there, or a stream of it, and what it holds until it is sent.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use hyper::body::{Frame, SizeHint};
use longshore_base::budget::Share;
use longshore_base::connections::Unadmitted;
use longshore_serving::{BoxError, Monitored};
use longshore_telemetry::Span;
use parking_lot::Mutex;

use crate::audit;
use crate::flow_control::CountedWatch;
use crate::offload::LARGE;
use crate::request_metrics::Record;
use crate::text::Text;

/// The end of a text is handed on in parts of this size, which is that of a frame of HTTP/2: the rest
/// is counted as ours, and not lost in the buffers of a connection whose client reads nothing.
const PART: usize = 16 << 10;
/// How long a client may not read from a large response.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How much text one poll of a body compresses at most: a few milliseconds of work.
const COMPRESSED_AT_ONCE: usize = 256 << 10;
/// The memory of a compression, about.
const COMPRESSION: usize = 320 << 10;

enum Content {
    Whole(Text),
    Compressed(Box<Compressed>),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
}

/// Text that is compressed as its client takes it.
struct Compressed {
    left: Text,
    /// `None` after the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Compressed {
    /// The next part, empty when there is none yet; `None` at the end.
    fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut budget = COMPRESSED_AT_ONCE;
        let mut encoder = self.encoder.take()?;
        while budget > 0 && !self.left.is_empty() {
            let part = self.left.take(PART);
            budget = budget.saturating_sub(part.len());
            if let Err(error) = encoder.write_all(&part) {
                return Some(Err(error));
            }
            if encoder.get_ref().len() >= PART {
                break;
            }
        }
        if self.left.is_empty() {
            return Some(encoder.finish().map(Bytes::from));
        }
        let part = std::mem::take(encoder.get_mut());
        self.encoder = Some(encoder);
        Some(Ok(part.into()))
    }
}

/// The guard of a request, held until its response is sent.
#[expect(dead_code, reason = "held until it is dropped")]
pub(crate) enum RequestGuard {
    /// Its place among those being answered, and among watches.
    Admitted(Share, Option<CountedWatch>),
    /// It was rejected.
    Refused(Unadmitted),
}

/// An answer's body.
pub(crate) struct Body {
    content: Content,
    memory: Option<Arc<Memory>>,
    /// Released when the response is sent.
    _request: Option<RequestGuard>,
    /// Ends when the response is sent.
    _audit: Option<Arc<audit::Record>>,
    /// Ends when the response is sent.
    _span: Option<Box<Span>>,
    /// Counts the request when a stream ends.
    record: Option<Record>,
}

impl Body {
    pub(crate) fn stream(
        stream: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ) -> Body {
        Content::Stream(Box::pin(stream)).into()
    }

    /// The length of a body that is there as a whole.
    pub(crate) fn len(&self) -> usize {
        match &self.content {
            Content::Whole(text) => text.len(),
            Content::Compressed(_) | Content::Stream(_) => 0,
        }
    }

    /// The same body, which is part of the bytes that `memory` counts.
    pub(crate) fn with_memory(mut self, memory: Arc<Memory>) -> Body {
        self.memory = Some(memory);
        self
    }

    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// The text of a body that is there as a whole, in one piece.
    pub(crate) fn whole(&mut self) -> Option<&Bytes> {
        match &mut self.content {
            Content::Whole(text) => Some(text.join()),
            Content::Compressed(_) | Content::Stream(_) => None,
        }
    }

    /// Has other bytes sent for the same answer.
    pub(crate) fn replace(&mut self, bytes: Bytes) {
        self.content = Content::Whole(bytes.into());
    }

    /// Has the body sent in gzip, at the level that takes the least time. `false`: it is not, since memory is short or
    /// it is not there as a whole.
    #[must_use]
    pub(crate) fn compress(&mut self) -> bool {
        let has_memory = self.memory.as_ref().is_none_or(|memory| memory.grow(COMPRESSION));
        let Content::Whole(text) = &mut self.content else { return false };
        if !has_memory {
            return false;
        }
        let left = std::mem::take(text);
        let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
        self.content = Content::Compressed(Box::new(Compressed { left, encoder }));
        true
    }

    /// Keeps the audit of its request until it is sent.
    pub(crate) fn keep(&mut self, audit: Arc<audit::Record>) {
        self._audit = Some(audit);
    }

    /// Keeps the span of its request until it is sent.
    pub(crate) fn trace(&mut self, span: Span) {
        self._span = Some(Box::new(span));
    }

    /// Its request is counted now, or when it ends if it is a stream.
    pub(crate) fn count(&mut self, mut record: Record) {
        match &self.content {
            Content::Whole(text) => record.sent(text.len()),
            Content::Compressed(_) | Content::Stream(_) => self.record = Some(record),
        }
    }

    /// Holds the guard of its request.
    pub(crate) fn hold(&mut self, request: RequestGuard) {
        self._request = Some(request);
    }
}

impl From<Content> for Body {
    fn from(content: Content) -> Body {
        Body { content, memory: None, _request: None, _audit: None, _span: None, record: None }
    }
}

impl<T: Into<Text>> From<T> for Body {
    fn from(text: T) -> Body {
        Content::Whole(text.into()).into()
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let next = match &mut self.content {
            Content::Whole(text) if text.is_empty() => Poll::Ready(None),
            Content::Whole(text) => {
                // while much is left it is counted as ours, and large parts take fewer calls
                let length = if text.len() >= 2 * LARGE { LARGE } else { PART };
                Poll::Ready(Some(Ok(Frame::data(text.take(length)))))
            }
            Content::Compressed(text) => match text.next() {
                Some(Ok(part)) if part.is_empty() => {
                    // others come first
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                next => Poll::Ready(next.map(|part| part.map(Frame::data).map_err(Into::into))),
            },
            Content::Stream(stream) => stream
                .as_mut()
                .poll_next(context)
                .map(|next| next.map(|text| text.map(Frame::data))),
        };
        if let (Some(record), Poll::Ready(Some(Ok(frame)))) = (&mut self.record, &next) {
            record.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        if let Some(memory) = &self.memory {
            memory.note(next.is_ready());
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(text) => SizeHint::with_exact(text.len() as u64),
            Content::Compressed(_) | Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// The memory that an answer takes until its client has taken the answer.
pub(crate) struct Memory {
    share: Mutex<Share>,
    began: Instant,
    /// Since when the client has had something to take, in milliseconds after `began`;
    /// [`Memory::NOTHING`] when it is for us to make more.
    waits_since: AtomicU64,
}

impl Memory {
    const NOTHING: u64 = u64::MAX;

    pub(crate) fn new(share: Share) -> Arc<Memory> {
        let waits_since = AtomicU64::new(Self::NOTHING);
        Arc::new(Memory { share: Mutex::new(share), began: Instant::now(), waits_since })
    }

    /// Counts more; `false` when there is too little left.
    #[must_use]
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        self.share.lock().grow(bytes as u64)
    }

    pub(crate) fn shrink(&self, bytes: usize) {
        self.share.lock().shrink(bytes as u64);
    }

    /// The body was polled, and was ready or not.
    fn note(&self, is_there: bool) {
        let now = self.began.elapsed().as_millis().try_into().unwrap_or(Self::NOTHING);
        self.waits_since.store(if is_there { now } else { Self::NOTHING }, Ordering::Relaxed);
    }
}

impl Monitored for Memory {
    /// Whether much of an answer lies about because its client does not take it.
    fn is_stalled(&self) -> bool {
        let waited = match self.waits_since.load(Ordering::Relaxed) {
            Self::NOTHING => Duration::ZERO,
            since => self.began.elapsed().saturating_sub(Duration::from_millis(since)),
        };
        waited >= STALL_TIMEOUT && self.share.lock().amount() >= LARGE as u64
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use http_body_util::BodyExt;
    use longshore_base::budget::{Budget, Holder, Priority};

    use super::*;

    #[tokio::test]
    async fn response_body_is_sent_in_parts() {
        for (length, large_parts) in [(100_000, 0), (1_000_000, 14)] {
            let text: String = "longshore ".repeat(length / 10);
            let mut body = Body::from(text.clone());
            let mut parts = Vec::new();
            while let Some(frame) = body.frame().await {
                parts.push(frame.unwrap().into_data().unwrap());
            }
            assert_eq!(parts.concat(), text.as_bytes());
            let (large, rest) = parts.split_at(large_parts);
            assert!(large.iter().all(|part| part.len() == LARGE));
            assert!(rest.len() > 5 && rest.iter().all(|part| part.len() <= PART));
            assert_eq!(hyper::body::Body::size_hint(&body).exact(), Some(0));
        }
        assert!(Body::from("").frame().await.is_none());
    }

    #[tokio::test]
    async fn response_body_is_compressed_as_it_is_read() {
        use std::io::Read;
        for text in ["longshore ".repeat(100_000), "x".repeat(10 << 20), String::new()] {
            let mut body = Body::from(text.clone());
            assert!(body.compress());
            let mut parts = Vec::new();
            while let Some(frame) = body.frame().await {
                parts.push(frame.unwrap().into_data().unwrap());
            }
            let sent = parts.concat();
            assert!(sent.len() < text.len() / 50 + 100);
            let mut read = String::new();
            flate2::read::GzDecoder::new(&sent[..]).read_to_string(&mut read).unwrap();
            assert!(read == text);
        }
        assert!(!Body::stream(futures::stream::empty()).compress());
        let budget = Budget::new(1000, 0);
        let share = budget.take(&Holder::new("a", Priority::Ordinary), 1).unwrap();
        let mut counted = Body::from("text").with_memory(Memory::new(share));
        assert!(!counted.compress() && counted.len() == 4);
    }

    #[tokio::test]
    async fn response_stall_detection_of_large_bodies() {
        let budget = Budget::new(u64::MAX, 0);
        let holder = Holder::new("a", Priority::Ordinary);
        for (bytes, waited, stalled) in [
            (LARGE as u64, STALL_TIMEOUT, true),
            (LARGE as u64 - 1, STALL_TIMEOUT, false),
            (LARGE as u64, STALL_TIMEOUT / 2, false),
        ] {
            let memory = Memory::new(budget.take(&holder, bytes).unwrap());
            let mut memory = Arc::try_unwrap(memory).ok().unwrap();
            let Some(began) = Instant::now().checked_sub(waited) else { return };
            memory.began = began;
            let mut body = Body::from("x".repeat(100_000)).with_memory(Arc::new(memory));
            assert!(!body.memory().unwrap().is_stalled(), "it was not polled yet");
            body.memory().unwrap().waits_since.store(0, Ordering::Relaxed);
            assert_eq!(body.memory().unwrap().is_stalled(), stalled, "{bytes} {waited:?}");
            let _ = body.frame().await;
            assert!(!body.memory().unwrap().is_stalled(), "some of it was taken");
            body.memory().unwrap().note(false);
            assert_eq!(body.memory().unwrap().waits_since.load(Ordering::Relaxed), Memory::NOTHING);
        }
    }
}
