//! Errors of calls to drivers.

use longshore_grpc::{Failure, InvalidEndpoint, code_name};
use tonic::Code;

/// A failed call, with the names of the driver and the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The endpoint of a driver is invalid.
    #[error("invalid endpoint of {driver}: {endpoint:?}: {reason}")]
    Endpoint {
        /// The driver's name.
        driver: String,
        /// The endpoint.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The call failed. The message has the format of gRPC's Go library, as in upstream's events.
    #[error("{driver}: {call}: rpc error: code = {} desc = {message}", code_name(*.code))]
    Call {
        /// The driver's name, or the socket if it is not known yet.
        driver: String,
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// The driver's message, or the local cause.
        message: String,
    },
    /// A required field is missing in the response.
    #[error("{driver}: {call}: the response has no {field}")]
    Incomplete {
        /// The driver's name.
        driver: String,
        /// The call.
        call: &'static str,
        /// The path of the field.
        field: &'static str,
    },
}

impl Error {
    pub(crate) fn endpoint(driver: &str, invalid: InvalidEndpoint) -> Self {
        let InvalidEndpoint { endpoint, reason } = invalid;
        Self::Endpoint { driver: driver.to_owned(), endpoint, reason }
    }

    pub(crate) fn call(driver: &str, call: &'static str, failure: Failure) -> Self {
        let (driver, code) = (driver.to_owned(), failure.code());
        Self::Call { driver, call, code, message: failure.into_message() }
    }

    /// The gRPC code of a call that failed with one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Endpoint { .. } | Self::Incomplete { .. } => None,
        }
    }

    /// Whether the operation is not in progress any more. After other errors the driver may still
    /// complete it, so it has to be undone.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(
            self.code(),
            Some(
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Unavailable
                    | Code::ResourceExhausted
                    | Code::Aborted
            )
        )
    }
}
