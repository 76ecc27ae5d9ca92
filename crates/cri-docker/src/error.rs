//! What goes wrong, and the gRPC code that it has.

use std::path::PathBuf;

use bollard::errors::Error as Docker;
use longshore_base::panics::Panicked;
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's endpoint is not one.
    #[error("invalid Docker endpoint {endpoint:?}: {reason}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// Why.
        reason: &'static str,
    },
    /// The engine refused a call, or did not answer.
    #[error("{action}: {}", docker_text(.source))]
    Docker {
        /// What was to be done, with the object.
        action: String,
        /// The cause.
        source: Docker,
    },
    /// The engine cannot be reached.
    #[error("the Docker Engine at {socket:?} is unavailable: {source}")]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The streaming server cannot listen.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Its address.
        address: std::net::SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// What was passed as the socket of CRI is not one.
    #[error("LISTEN_FDS: {0}")]
    Inherited(String),
    /// The engine's API is another one.
    #[error("{0}")]
    Api(String),
    /// A network of CNI.
    #[error("{action}: {source}")]
    Network {
        /// What was to be done, with the sandbox.
        action: String,
        /// The cause.
        source: longshore_cni::Error,
    },
    /// The engine did not answer in time.
    #[error("{action}: the Docker Engine did not answer within {seconds} s")]
    Deadline {
        /// What was to be done.
        action: String,
        /// The limit.
        seconds: u64,
    },
    /// A command took longer than its caller allows.
    #[error("command timed out: timeout {seconds}s exceeded")]
    Timeout {
        /// The limit.
        seconds: u64,
    },
    /// There is no such object, or it is not of Kubernetes.
    #[error("{kind} {id:?} not found")]
    NotFound {
        /// Container or sandbox.
        kind: &'static str,
        /// As asked for.
        id: String,
    },
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// There is such an object already.
    #[error("{0}")]
    Exists(String),
    /// The object's state does not allow it.
    #[error("{0}")]
    Precondition(String),
    /// A container could not be started.
    #[error("{0}")]
    Start(String),
    /// The engine or the kernel cannot.
    #[error("{0}")]
    Unsupported(String),
    /// A file could not be read or written.
    #[error("{action} {path:?}: {source}")]
    File {
        /// What was to be done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A fault of this program.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// Anything else.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// A failed call to the engine.
    pub fn docker(action: impl Into<String>, source: Docker) -> Self {
        Self::Docker { action: action.into(), source }
    }

    /// A failed operation on a file.
    pub fn file(action: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::File { action, path: path.into(), source }
    }

    /// The object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Code::NotFound
    }

    /// The code that the caller sees.
    #[must_use]
    pub fn code(&self) -> Code {
        match self.code_of_kind() {
            Code::Unknown if is_out_of_space(&self.to_string()) => Code::ResourceExhausted,
            code => code,
        }
    }

    fn code_of_kind(&self) -> Code {
        match self {
            Self::Endpoint { .. } | Self::Inherited(_) | Self::Invalid(_) => Code::InvalidArgument,
            Self::Docker { source, .. } => docker_code(source),
            Self::Deadline { .. } | Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::NotFound { .. } => Code::NotFound,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Unreachable { .. } | Self::Listen { .. } => Code::Unavailable,
            Self::Api(_) => Code::FailedPrecondition,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Unsupported(_) => Code::Unimplemented,
            Self::Panicked(_) => Code::Internal,
            Self::Network { .. } | Self::File { .. } | Self::Start(_) | Self::Internal(_) => {
                Code::Unknown
            }
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Whether a failure is one of a disk that is full, in the words of the engine, of a plugin of CNI or of this machine.
pub(crate) fn is_out_of_space(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no space left on device", "disk quota exceeded"].iter().any(|words| text.contains(words))
}

/// The code for an answer or a failure of the engine.
pub(crate) fn docker_code(error: &Docker) -> Code {
    match error {
        Docker::DockerResponseServerError { status_code, message } => match status_code {
            // The sandbox whose namespaces a container was to have is gone.
            400 if message.contains("No such container") => Code::NotFound,
            400 => Code::InvalidArgument,
            401 | 403 => Code::PermissionDenied,
            404 => Code::NotFound,
            409 => Code::FailedPrecondition,
            501 => Code::Unimplemented,
            503 => Code::Unavailable,
            _ => Code::Unknown,
        },
        Docker::RequestTimeoutError => Code::DeadlineExceeded,
        Docker::HyperResponseError { .. } | Docker::IOError { .. } => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// The HTTP status of the engine's answer, if it answered.
pub(crate) fn docker_status(error: &Docker) -> Option<u16> {
    match error {
        Docker::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The engine's own words.
pub(crate) fn docker_text(error: &Docker) -> String {
    match error {
        Docker::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_code_of_what_is_wrong() {
        let answer = |status_code, message: &str| {
            let message = message.to_owned();
            Error::docker("create", Docker::DockerResponseServerError { status_code, message })
        };
        let file = |errno| Error::file("write", "/x", std::io::Error::from_raw_os_error(errno));
        for (error, code) in [
            (answer(500, "mkdir /x: no space left on device"), Code::ResourceExhausted),
            (answer(500, "mkdir /x: disk quota exceeded"), Code::ResourceExhausted),
            (answer(500, "mkdir /x: permission denied"), Code::Unknown),
            (answer(404, "no such file: no space left on device"), Code::NotFound),
            (answer(400, "No such container: 8af8"), Code::NotFound),
            (answer(400, "invalid mount"), Code::InvalidArgument),
            (file(nix::libc::ENOSPC), Code::ResourceExhausted),
            (file(nix::libc::EDQUOT), Code::ResourceExhausted),
            (file(nix::libc::EACCES), Code::Unknown),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
