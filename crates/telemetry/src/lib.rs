//! Traces, as `TracingConfiguration` asks for them: spans of calls and of work on pods, sampled, and
//! exported in batches as OTLP over gRPC.
//!
//! A [`Tracer`] that is off costs nothing: its spans are empty. The context of a span goes with the task
//! ([`within`]) and to others as the W3C's `traceparent`.
//!
//! The exporter is a task and speaks the part of OTLP that is needed, with the gRPC client that is here
//! already: the SDK of OpenTelemetry would bring a thread, a dozen crates, and its own queue of tasks.
//!
//! Current limitations: no baggage, no events in spans; links are of requests that come in.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod context;
mod export;
mod otlp;
mod span;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::Arc;

use tokio::sync::mpsc;

use context::{Scope, scope};
pub use context::{SpanContext, current, within};
pub use export::{Error, Exporter};
pub use span::{Kind, Span};

use context::Finished;

/// The header and the key of gRPC's metadata with the context of a span.
pub const TRACEPARENT: &str = "traceparent";

/// How many spans wait for their export; further ones are lost.
const QUEUE: usize = 2048;
/// The most that `samplingRatePerMillion` may be.
const MILLION: u64 = 1_000_000;

/// What is traced, and to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `host:port`, `dns:///host:port`, or `unix:///path`.
    pub endpoint: String,
    /// How many of a million traces that begin here are sampled; those that others began are sampled as
    /// they say.
    pub rate_per_million: u32,
    /// The program, such as `kubelet`.
    pub service: &'static str,
    /// What is said of the program besides, such as `host.name`.
    pub attributes: Vec<(&'static str, String)>,
}

impl Settings {
    /// Upstream's default endpoint.
    pub const DEFAULT_ENDPOINT: &str = "localhost:4317";
}

/// Makes spans. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Sampling>>);

#[derive(Debug)]
struct Sampling {
    /// A trace is sampled if half of its id is below this.
    bound: u64,
    finished: mpsc::Sender<Finished>,
}

impl Tracer {
    /// A tracer, and what exports its spans, to be run as a task. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The endpoint is not one.
    pub fn new(settings: &Settings) -> Result<(Self, Exporter), Error> {
        let (finished, spans) = mpsc::channel(QUEUE);
        let exporter = Exporter::new(settings, spans)?;
        let tracer = Self::sampling(settings.rate_per_million, finished);
        Ok((tracer, exporter))
    }

    fn sampling(rate_per_million: u32, finished: mpsc::Sender<Finished>) -> Self {
        let rate = u128::from(rate_per_million).min(u128::from(MILLION));
        // half of the range of ids, as other SDKs have it
        let bound = u64::try_from((1_u128 << 63) * rate / u128::from(MILLION)).unwrap_or(1 << 63);
        Self(Some(Arc::new(Sampling { bound, finished })))
    }

    /// Whether there may be spans.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span within that of the task, or the first of a trace.
    #[must_use]
    pub fn span(&self, name: &str, kind: Kind) -> Span {
        self.begin(name, kind, current())
    }

    /// The span of a request of anyone: the first of a trace, with a link to the span of the client.
    #[must_use]
    pub fn request(&self, name: &str, client: Option<&str>) -> Span {
        let mut span = self.begin(name, Kind::Server, None);
        span.link(client.and_then(SpanContext::parse));
        span
    }

    /// The span of a request of a client that is trusted: within its span, and sampled as that is.
    #[must_use]
    pub fn continued(&self, name: &str, client: Option<&str>) -> Span {
        self.begin(name, Kind::Server, client.and_then(SpanContext::parse))
    }

    fn begin(&self, name: &str, kind: Kind, parent: Option<SpanContext>) -> Span {
        let Some(sampling) = &self.0 else { return Span::default() };
        let sampled = |trace: &[u8; 16]| {
            let half = trace[8..].iter().fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
            half >> 1 < sampling.bound
        };
        let Some(context) = SpanContext::new(parent, sampled) else { return Span::default() };
        match context.sampled {
            true => Span::recording(name, kind, context, parent, sampling.finished.clone()),
            false => Span::unrecorded(context),
        }
    }
}

/// A span within that of the task, which goes where that goes; it is empty where there is none.
#[must_use]
pub fn child(name: &str, kind: Kind) -> Span {
    let Some(Scope { context: parent, finished }) = scope() else { return Span::default() };
    match (SpanContext::new(Some(parent), |_| false), finished) {
        (Some(context), Some(finished)) if context.sampled => {
            Span::recording(name, kind, context, Some(parent), finished)
        }
        (Some(context), _) => Span::unrecorded(context),
        (None, _) => Span::default(),
    }
}
