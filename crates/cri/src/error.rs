//! Why a call to the runtime gave no answer, told apart as callers need it:
//! retry (unavailable, deadline), take for done (not found), do without
//! (unimplemented), or report.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::endpoint::Endpoint;

/// Said when the deadline passed on this side.
pub(crate) const NO_ANSWER: &str = "no answer in time";

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
    pub(crate) fn from_status(call: &'static str, endpoint: &Endpoint, status: &Status) -> Self {
        let cause = Cause::of(status);
        let message = match &cause {
            Cause::Answer => status.message().to_owned(),
            Cause::Deadline => NO_ANSWER.to_owned(),
            Cause::Transport(message) => message.clone(),
        };
        match (cause, status.code()) {
            (Cause::Deadline, _) | (Cause::Answer, Code::DeadlineExceeded) => {
                Self::DeadlineExceeded { call, message }
            }
            (Cause::Transport(_), _) | (Cause::Answer, Code::Unavailable) => {
                Self::Unavailable { call, endpoint: endpoint.to_string(), message }
            }
            (Cause::Answer, code) => Self::Status { call, code, message },
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

/// Where a status was made. One that the peer sent has no source; for those
/// made on this side, tonic picks codes that vary with how exactly the
/// connection broke (Unknown, Cancelled, Internal), which is why the source
/// decides and not the code.
enum Cause {
    Answer,
    Deadline,
    Transport(String),
}

impl Cause {
    fn of(status: &Status) -> Self {
        let mut next = status.source();
        let Some(mut last) = next else {
            return Self::Answer;
        };
        while let Some(error) = next {
            if error.is::<tonic::TimeoutExpired>() {
                return Self::Deadline;
            }
            last = error;
            next = error.source();
        }
        Self::Transport(last.to_string())
    }
}
