//! Common parts of all calls: the deadline, errors, and the observer for metrics.

use std::future::Future;
use std::time::Duration;

use longshore_grpc::code_name;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::{Error, Result};

/// Observes finished calls; for `csi_operations_seconds`.
pub trait Observer: Send + Sync {
    /// `method` is the path of the call, such as `/csi.v1.Node/NodePublishVolume`; `code` the name
    /// of its gRPC code, `OK` if it succeeded. Called on the caller's task: must not block.
    fn observe(&self, driver: &str, method: &str, took: Duration, code: &str);
}

/// A call.
pub(crate) struct Call<'a> {
    pub(crate) driver: &'a str,
    pub(crate) service: &'static str,
    pub(crate) rpc: &'static str,
    pub(crate) deadline: Duration,
    pub(crate) observer: Option<&'a dyn Observer>,
}

impl Call<'_> {
    /// A request with the deadline.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        longshore_grpc::request(message, Some(self.deadline))
    }

    /// Waits for the response.
    pub(crate) fn response<T>(
        &self,
        sent: impl Future<Output = std::result::Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<T>> {
        let response = longshore_grpc::await_response(Some(self.deadline), sent);
        async move {
            let start = Instant::now();
            let response = response.await;
            let result = response.map_err(|failure| Error::call(self.driver, self.rpc, failure));
            if let Some(observer) = self.observer {
                let code = result.as_ref().err().and_then(Error::code).unwrap_or(tonic::Code::Ok);
                let method = format!("/{}/{}", self.service, self.rpc);
                observer.observe(self.driver, &method, start.elapsed(), &code_name(code));
            }
            result
        }
    }

    /// An error if a required field is missing.
    pub(crate) fn require(&self, present: bool, field: &'static str) -> Result<()> {
        if present {
            return Ok(());
        }
        Err(Error::Incomplete { driver: self.driver.to_owned(), call: self.rpc, field })
    }
}
