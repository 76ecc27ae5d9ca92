//! The identity of a span, within a task and between programs.

use std::fmt::Write;

use tokio::sync::mpsc;

use crate::otlp;

tokio::task_local! {
    static CURRENT: Scope;
}

/// A span that has ended.
pub(crate) type Finished = Box<otlp::Span>;

/// The span that a task is within.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) context: SpanContext,
    /// Where spans within it go when they end; `None`: only a tracer makes some.
    pub(crate) finished: Option<mpsc::Sender<Finished>>,
}

/// The identity of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace; not zero.
    pub trace: [u8; 16],
    /// The span; not zero.
    pub span: [u8; 8],
    /// Whether the trace is recorded.
    pub sampled: bool,
}

/// The context of the task, if there is one.
#[must_use]
pub fn current() -> Option<SpanContext> {
    scope().map(|scope| scope.context)
}

pub(crate) fn scope() -> Option<Scope> {
    CURRENT.try_with(Scope::clone).ok()
}

/// Runs a future with that context; without one, as it is.
pub async fn within<T>(context: Option<SpanContext>, future: impl Future<Output = T>) -> T {
    enter(context.map(|context| Scope { context, finished: None }), future).await
}

pub(crate) async fn enter<T>(scope: Option<Scope>, future: impl Future<Output = T>) -> T {
    match scope {
        None => future.await,
        Some(scope) => Box::pin(CURRENT.scope(scope, future)).await,
    }
}

impl SpanContext {
    /// A new span in the trace of its parent, or else in a new one that is `sampled` or not. `None`: there
    /// are no random numbers.
    pub(crate) fn new(
        parent: Option<Self>,
        sampled: impl FnOnce(&[u8; 16]) -> bool,
    ) -> Option<Self> {
        let span = random()?;
        match parent {
            Some(Self { trace, sampled, .. }) => Some(Self { trace, span, sampled }),
            None => {
                let trace = random()?;
                Some(Self { trace, span, sampled: sampled(&trace) })
            }
        }
    }

    /// The value of the header `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        let hex = |text: &mut String, bytes: &[u8]| {
            for byte in bytes {
                // writing to a String cannot fail
                let _ = write!(text, "{byte:02x}");
            }
        };
        hex(&mut text, &self.trace);
        text.push('-');
        hex(&mut text, &self.span);
        text.push_str(if self.sampled { "-01" } else { "-00" });
        text
    }

    /// The context in a header `traceparent`; `None`: it is not valid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = bytes::<1>(parts.next()?)?;
        let (trace, span) = (bytes::<16>(parts.next()?)?, bytes::<8>(parts.next()?)?);
        let [flags] = bytes::<1>(parts.next()?)?;
        let is_valid = match version {
            [0] => parts.next().is_none(),
            [0xff] => false,
            // later versions may append parts
            _ => true,
        };
        let is_zero = trace == [0; 16] || span == [0; 8];
        (is_valid && !is_zero).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

/// Lower-case hexadecimal.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 2 * N || !is_hex {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Random bytes that are not all zero.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    (bytes != [0; N]).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_context_is_read_as_the_w3c_says() {
        let context = SpanContext::parse(EXAMPLE).unwrap();
        assert!(context.sampled && context.trace[0] == 0x4b && context.span[7] == 0xb7);
        assert_eq!(context.traceparent(), EXAMPLE);
        let later = EXAMPLE.replacen("00", "01", 1) + "-more";
        assert_eq!(SpanContext::parse(&later), Some(context));
        for text in [
            "",
            "00",
            &EXAMPLE.replacen("00", "ff", 1),
            &(EXAMPLE.to_owned() + "-more"),
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &EXAMPLE.replace("b7", "b"),
        ] {
            assert_eq!(SpanContext::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn trace_context_never_panics(text in ".{0,60}") {
            let _ = SpanContext::parse(&text);
        }
    }

    #[tokio::test]
    async fn trace_context_is_that_of_the_task() {
        let context = SpanContext::parse(EXAMPLE);
        assert_eq!(current(), None);
        assert_eq!(within(context, async { current() }).await, context);
        assert_eq!(within(None, async { current() }).await, None);
        let child = SpanContext::new(context, |_| false).unwrap();
        assert!(child.sampled && child.trace == context.unwrap().trace);
        assert_ne!(child.span, context.unwrap().span);
    }
}
