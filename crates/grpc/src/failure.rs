//! Failures of calls, by what callers do.

use std::error::Error as _;

use tonic::{Code, Status};

/// The message if the deadline passed on this side.
pub(crate) const DEADLINE_MESSAGE: &str = "no response in time";

/// Why a call failed, with the message of the peer or the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The peer could not be reached, the connection was lost during the call, or the peer reported
    /// that it is not ready.
    Unavailable(String),
    /// The deadline passed, here or at the peer. Whether the call had an effect is unknown.
    Deadline(String),
    /// The peer returned an error.
    Status(Code, String),
}

impl Failure {
    /// The failure of a status.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let said = || status.message().to_owned();
        match (Cause::of(status), status.code()) {
            (Cause::Deadline, _) => Self::Deadline(DEADLINE_MESSAGE.to_owned()),
            (Cause::Transport(message), _) => Self::Unavailable(message),
            (Cause::Answer, Code::DeadlineExceeded) => Self::Deadline(said()),
            (Cause::Answer, Code::Unavailable) => Self::Unavailable(said()),
            (Cause::Answer, code) => Self::Status(code, said()),
        }
    }

    /// The gRPC code of the failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unavailable(_) => Code::Unavailable,
            Self::Deadline(_) => Code::DeadlineExceeded,
            Self::Status(code, _) => *code,
        }
    }

    /// The failure as gRPC's Go library prints it.
    #[must_use]
    pub fn go_text(self) -> String {
        format!("rpc error: code = {} desc = {}", code_name(self.code()), self.into_message())
    }

    /// The message.
    #[must_use]
    pub fn into_message(self) -> String {
        let (Self::Unavailable(message) | Self::Deadline(message) | Self::Status(_, message)) =
            self;
        message
    }
}

/// The name of a code as in Go, for metrics and events.
#[must_use]
pub fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// The origin of a status. One that the peer sent has no source; for those created on this side,
/// tonic uses codes that vary with how exactly the connection broke (Unknown, Cancelled, Internal),
/// which is why the source decides and not the code.
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
