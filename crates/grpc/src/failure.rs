//! Why a call gave no answer, told apart as callers need it.

use std::error::Error as _;

use tonic::{Code, Status};

/// Said when the deadline passed on this side.
pub(crate) const NO_ANSWER: &str = "no answer in time";

/// Why a call failed, with the peer's words or those of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The peer could not be reached, went away in the middle of the call, or said itself that it
    /// is not ready.
    Unavailable(String),
    /// The deadline passed, here or at the peer. Whether the call had an effect is unknown.
    Deadline(String),
    /// The peer refused or failed.
    Status(Code, String),
}

impl Failure {
    /// What a status tells.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let said = || status.message().to_owned();
        match (Cause::of(status), status.code()) {
            (Cause::Deadline, _) => Self::Deadline(NO_ANSWER.to_owned()),
            (Cause::Transport(message), _) => Self::Unavailable(message),
            (Cause::Answer, Code::DeadlineExceeded) => Self::Deadline(said()),
            (Cause::Answer, Code::Unavailable) => Self::Unavailable(said()),
            (Cause::Answer, code) => Self::Status(code, said()),
        }
    }

    /// The gRPC code that tells it.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unavailable(_) => Code::Unavailable,
            Self::Deadline(_) => Code::DeadlineExceeded,
            Self::Status(code, _) => *code,
        }
    }

    /// What was said.
    #[must_use]
    pub fn into_message(self) -> String {
        let (Self::Unavailable(message) | Self::Deadline(message) | Self::Status(_, message)) =
            self;
        message
    }
}

/// Where a status was made. One that the peer sent has no source; for those made on this side,
/// tonic picks codes that vary with how exactly the connection broke (Unknown, Cancelled,
/// Internal), which is why the source decides and not the code.
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
