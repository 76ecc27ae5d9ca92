//! What all calls have in common: deadline, errors, and the observer for
//! metrics.

use std::future::Future;
use std::time::Duration;

use longshore_telemetry::{Span, TRACEPARENT};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use crate::peer::Peer;
use crate::{Error, Result};

/// Is called for each finished call; feeds `kubelet_runtime_operations_*`.
pub trait Observer: Send + Sync {
    /// `operation` is the label that the kubelet's metrics use, such as
    /// `run_podsandbox`. Called on the caller's task: must not block.
    fn observe(&self, operation: &'static str, took: Duration, error: Option<&Error>);
}

/// One call.
pub(crate) struct Call<'a> {
    pub(crate) rpc: &'static str,
    pub(crate) operation: &'static str,
    /// `None` for no deadline.
    pub(crate) deadline: Option<Duration>,
    pub(crate) peer: &'a Peer,
    pub(crate) observer: Option<&'a dyn Observer>,
    /// The span of the call, which ends with it.
    pub(crate) span: Mutex<Span>,
}

impl Call<'_> {
    /// Replaces the default deadline.
    pub(crate) fn within(self, deadline: Option<Duration>) -> Self {
        Self { deadline, ..self }
    }

    /// Creates the request, with the deadline.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = longshore_grpc::request(message, self.deadline);
        if let Some(context) = self.span.lock().context()
            && let Ok(value) = context.traceparent().parse()
        {
            request.metadata_mut().insert(TRACEPARENT, value);
        }
        request
    }

    /// Waits for the response.
    pub(crate) fn response<T>(
        &self,
        sent: impl Future<Output = std::result::Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<T>> {
        let response = longshore_grpc::await_response(self.deadline, sent);
        async move {
            let start = Instant::now();
            let result =
                response.await.map_err(|failure| Error::from_failure(self.rpc, self.peer, failure));
            if let Some(observer) = self.observer {
                observer.observe(self.operation, start.elapsed(), result.as_ref().err());
            }
            self.trace(result.as_ref().err());
            result
        }
    }

    /// Ends the span, with the attributes that otelgrpc gives it.
    fn trace(&self, error: Option<&Error>) {
        let mut span = std::mem::take(&mut *self.span.lock());
        if !span.is_recorded() {
            return;
        }
        let code = error.map_or(Code::Ok, |error| error.code().unwrap_or(Code::Unknown));
        span.number("rpc.grpc.status_code", i64::from(code as i32));
        if let Some(error) = error {
            span.fail(error.go_text());
        }
    }

    /// Checks that a mandatory field is present.
    pub(crate) fn require(&self, present: bool, field: &'static str) -> Result<()> {
        if present {
            return Ok(());
        }
        Err(Error::Incomplete { call: self.rpc, field })
    }

    /// Unwraps a mandatory message.
    pub(crate) fn required<T>(&self, value: Option<T>, field: &'static str) -> Result<T> {
        value.ok_or(Error::Incomplete { call: self.rpc, field })
    }
}
