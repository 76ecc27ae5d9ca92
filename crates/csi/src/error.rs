//! Why a call to a driver gave no answer.

use longshore_grpc::{Failure, InvalidEndpoint};
use tonic::Code;

/// A failed call, by the driver's name and the protocol's name of the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The socket that a driver named cannot be one.
    #[error("invalid endpoint of {driver}: {endpoint:?}: {reason}")]
    Endpoint {
        /// The driver's name.
        driver: String,
        /// As the driver has it.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The driver refused or failed, or was not to be reached. In the form in which gRPC's Go
    /// library puts it, which people look for in events.
    #[error("{driver}: {call}: rpc error: code = {} desc = {message}", code_name(*.code))]
    Call {
        /// The driver's name, or the socket of one that has yet to tell it.
        driver: String,
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// The driver's own words, or the cause on this side.
        message: String,
    },
    /// The driver answered without something that the protocol demands.
    #[error("{driver}: {call}: the answer has no {field}")]
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

    /// Whether nothing of the call is under way any more. After the other errors the driver may
    /// still work on it, and what it has made so far has to be taken back.
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

/// A code as Go spells it; metrics and events have it so.
pub(crate) fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}
