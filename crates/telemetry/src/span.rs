//! A span: something that begins, ends and may fail.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;

use crate::context::{Finished, Scope, SpanContext, enter};
use crate::otlp;

/// The role of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work of this program.
    Internal,
    /// A request that is answered.
    Server,
    /// A request that is made.
    Client,
}

/// Something that has begun and ends when this is dropped, unless it [has ended](Span::lasted) before.
/// Spans of a tracer that is off, and of traces that are not sampled, are empty.
#[derive(Debug, Default)]
pub struct Span {
    context: Option<SpanContext>,
    recorded: Option<Box<Recorded>>,
}

#[derive(Debug)]
struct Recorded {
    span: Box<otlp::Span>,
    finished: mpsc::Sender<Finished>,
}

impl Span {
    pub(crate) fn recording(
        name: &str,
        kind: Kind,
        context: SpanContext,
        parent: Option<SpanContext>,
        finished: mpsc::Sender<Finished>,
    ) -> Self {
        let span = Box::new(otlp::Span {
            trace_id: context.trace.to_vec(),
            span_id: context.span.to_vec(),
            parent_span_id: parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
            name: name.to_owned(),
            kind: match kind {
                Kind::Internal => otlp::INTERNAL,
                Kind::Server => otlp::SERVER,
                Kind::Client => otlp::CLIENT,
            },
            start_time_unix_nano: now(),
            flags: 1,
            ..otlp::Span::default()
        });
        Self { context: Some(context), recorded: Some(Box::new(Recorded { span, finished })) }
    }

    pub(crate) fn unrecorded(context: SpanContext) -> Self {
        Self { context: Some(context), recorded: None }
    }

    /// Its identity, for spans within it; `None` if it is of a tracer that is off.
    #[must_use]
    pub fn context(&self) -> Option<SpanContext> {
        self.context
    }

    /// Runs a future within this span: spans of it are [`child`](crate::child)ren.
    pub async fn enter<T>(&self, future: impl Future<Output = T>) -> T {
        let finished = self.recorded.as_ref().map(|recorded| recorded.finished.clone());
        enter(self.context.map(|context| Scope { context, finished }), future).await
    }

    /// It began that much earlier.
    pub fn began(&mut self, ago: Duration) {
        if let Some(recorded) = &mut self.recorded {
            let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            let start = &mut recorded.span.start_time_unix_nano;
            *start = start.saturating_sub(ago);
        }
    }

    /// It began then, and has ended that long after; otherwise it ends when this is dropped.
    pub fn lasted(&mut self, began: SystemTime, duration: Duration) {
        if let Some(recorded) = &mut self.recorded {
            let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            let span = &mut recorded.span;
            span.start_time_unix_nano = since_1970(began);
            span.end_time_unix_nano = span.start_time_unix_nano.saturating_add(nanoseconds);
        }
    }

    /// Whether what is said of it matters.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Says something of it.
    pub fn text(&mut self, key: &'static str, value: impl Into<String>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.span.attributes.push(otlp::KeyValue::text(key, value.into()));
        }
    }

    /// Says a number of it.
    pub fn number(&mut self, key: &'static str, value: i64) {
        if let Some(recorded) = &mut self.recorded {
            recorded.span.attributes.push(otlp::KeyValue::number(key, value));
        }
    }

    /// It fails, for that reason.
    pub fn fail(&mut self, message: impl Into<String>) {
        if let Some(recorded) = &mut self.recorded {
            let status = otlp::Status { message: message.into(), code: otlp::ERROR };
            recorded.span.status = Some(status);
        }
    }

    pub(crate) fn link(&mut self, other: Option<SpanContext>) {
        if let (Some(recorded), Some(other)) = (&mut self.recorded, other) {
            recorded
                .span
                .links
                .push(otlp::Link { trace_id: other.trace.to_vec(), span_id: other.span.to_vec() });
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            let Recorded { mut span, finished } = *recorded;
            if span.end_time_unix_nano == 0 {
                span.end_time_unix_nano = now();
            }
            // what does not fit into the queue is lost
            let _ = finished.try_send(span);
        }
    }
}

/// In nanoseconds since 1970.
fn now() -> u64 {
    since_1970(SystemTime::now())
}

fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
