//! Errors of calls, by what callers do: retry (unavailable, deadline), ignore
//! (not found), do without (unimplemented), or report.

use longshore_grpc::{Failure, InvalidEndpoint};
use tonic::Code;

use crate::peer::Peer;

/// A failed call, with the name of its RPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configured endpoint is invalid.
    #[error("invalid runtime endpoint {endpoint:?}: {reason}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// The reason.
        reason: &'static str,
    },
    /// The runtime does not support CRI v1.
    #[error("the runtime at {endpoint} does not support CRI v1: {message}")]
    NoV1 {
        /// Its endpoint.
        endpoint: String,
        /// Its message.
        message: String,
    },
    /// The runtime could not be reached, the connection was lost during the call,
    /// or the runtime reported that it is not ready.
    #[error("{call}: the runtime at {endpoint} is unavailable: {message}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// The endpoint of the runtime.
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
        /// The message, of either side.
        message: String,
    },
    /// The runtime returned an error.
    #[error("{call}: {message} ({code:?})")]
    Status {
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// The message of the runtime.
        message: String,
    },
    /// A mandatory field is missing in the response.
    #[error("{call}: the response has no {field}")]
    Incomplete {
        /// The call.
        call: &'static str,
        /// The path of the field.
        field: &'static str,
    },
}

impl Error {
    pub(crate) fn from_failure(call: &'static str, peer: &Peer, failure: Failure) -> Self {
        match failure {
            Failure::Deadline(message) => Self::DeadlineExceeded { call, message },
            Failure::Unavailable(message) => {
                Self::Unavailable { call, endpoint: peer.to_string(), message }
            }
            Failure::Status(code, message) => Self::Status { call, code, message },
        }
    }

    /// The gRPC code, if there is one.
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

    /// The error in the format of Go's gRPC, as users and tools know it.
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

    /// The object does not exist (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// The runtime does not implement this call.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// The runtime is unavailable; a retry may succeed.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The deadline was exceeded.
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
