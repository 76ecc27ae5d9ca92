//! Why a call to the runtime gave no answer, told apart as callers need it:
//! retry (unavailable, deadline), take for done (not found), do without
//! (unimplemented), or report.

use longshore_grpc::{Endpoint, Failure, InvalidEndpoint};
use tonic::Code;

/// A failed call, by the protocol's name of the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configured endpoint cannot be one of a runtime.
    #[error("invalid runtime endpoint {endpoint:?}: {reason}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The runtime answered, but not to CRI v1.
    #[error("the runtime at {endpoint} speaks no CRI v1: {message}")]
    NoV1 {
        /// Where it listens.
        endpoint: String,
        /// Its answer.
        message: String,
    },
    /// The runtime could not be reached, went away in the middle of the call,
    /// or said itself that it is not ready.
    #[error("{call}: the runtime at {endpoint} is unavailable: {message}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// Where the runtime should listen.
        endpoint: String,
        /// The cause.
        message: String,
    },
    /// The deadline passed, here or in the runtime. Whether the call had an
    /// effect is unknown.
    #[error("{call}: deadline exceeded: {message}")]
    DeadlineExceeded {
        /// The call.
        call: &'static str,
        /// Whose deadline.
        message: String,
    },
    /// The runtime refused or failed.
    #[error("{call}: {message} ({code:?})")]
    Status {
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// The runtime's own words.
        message: String,
    },
    /// The runtime answered without something that the protocol demands.
    #[error("{call}: the runtime's answer has no {field}")]
    Incomplete {
        /// The call.
        call: &'static str,
        /// The path of the field.
        field: &'static str,
    },
}

impl Error {
    pub(crate) fn from_failure(call: &'static str, endpoint: &Endpoint, failure: Failure) -> Self {
        match failure {
            Failure::Deadline(message) => Self::DeadlineExceeded { call, message },
            Failure::Unavailable(message) => {
                Self::Unavailable { call, endpoint: endpoint.to_string(), message }
            }
            Failure::Status(code, message) => Self::Status { call, code, message },
        }
    }

    /// The gRPC code of a call that failed with one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Endpoint { .. } | Self::Incomplete { .. } => None,
            Self::NoV1 { .. } => Some(Code::Unimplemented),
            Self::Unavailable { .. } => Some(Code::Unavailable),
            Self::DeadlineExceeded { .. } => Some(Code::DeadlineExceeded),
            Self::Status { code, .. } => Some(*code),
        }
    }

    /// The error in the words in which users and their tools know it: those of Go's gRPC.
    #[must_use]
    pub fn go_text(&self) -> String {
        let (code, message) = match self {
            Self::Status { code, message, .. } => (format!("{code:?}"), message),
            Self::Unavailable { message, .. } => ("Unavailable".to_owned(), message),
            Self::DeadlineExceeded { message, .. } => ("DeadlineExceeded".to_owned(), message),
            other => return other.to_string(),
        };
        let code = if code == "Cancelled" { "Canceled" } else { &code };
        format!("rpc error: code = {code} desc = {message}")
    }

    /// The thing asked for does not exist (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// The runtime does not know this call.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// The runtime is not there; the same call may succeed later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The call took longer than it may.
    #[must_use]
    pub fn is_deadline_exceeded(&self) -> bool {
        matches!(self, Self::DeadlineExceeded { .. })
    }
}

impl From<InvalidEndpoint> for Error {
    fn from(invalid: InvalidEndpoint) -> Self {
        Self::Endpoint { endpoint: invalid.endpoint, reason: invalid.reason }
    }
}
