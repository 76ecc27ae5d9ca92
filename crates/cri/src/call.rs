//! What all calls have in common: the deadline, the error's shape, and the
//! observer that metrics are fed by.

use std::future::Future;
use std::time::Duration;

use longshore_grpc::Endpoint;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::{Error, Result};

/// Is told of each finished call; feeds `kubelet_runtime_operations_*`.
pub trait Observer: Send + Sync {
    /// `operation` is the label that the kubelet's metrics use, such as
    /// `run_podsandbox`. Called on the caller's task: must not block.
    fn observe(&self, operation: &'static str, took: Duration, error: Option<&Error>);
}

/// One call about to be made.
pub(crate) struct Call<'a> {
    pub(crate) rpc: &'static str,
    pub(crate) operation: &'static str,
    /// None: the call may take as long as it likes.
    pub(crate) deadline: Option<Duration>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) observer: Option<&'a dyn Observer>,
}

impl Call<'_> {
    /// Gives another deadline than the usual.
    pub(crate) fn within(self, deadline: Option<Duration>) -> Self {
        Self { deadline, ..self }
    }

    /// Puts a message in its envelope, with the deadline.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        longshore_grpc::request(message, self.deadline)
    }

    /// Waits for the answer.
    pub(crate) fn answer<T>(
        &self,
        sent: impl Future<Output = std::result::Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<T>> {
        let answer = longshore_grpc::answer(self.deadline, sent);
        async move {
            let start = Instant::now();
            let result = answer
                .await
                .map_err(|failure| Error::from_failure(self.rpc, self.endpoint, failure));
            if let Some(observer) = self.observer {
                observer.observe(self.operation, start.elapsed(), result.as_ref().err());
            }
            result
        }
    }

    /// Refuses an answer that lacks what the protocol demands.
    pub(crate) fn demand(&self, present: bool, field: &'static str) -> Result<()> {
        if present {
            return Ok(());
        }
        Err(Error::Incomplete { call: self.rpc, field })
    }

    /// Unwraps a sub-message that the protocol demands.
    pub(crate) fn required<T>(&self, value: Option<T>, field: &'static str) -> Result<T> {
        value.ok_or(Error::Incomplete { call: self.rpc, field })
    }
}
