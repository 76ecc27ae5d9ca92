//! Why a sync fails.

use longshore_informer::SyncError;

/// Why a sync fails. It is retried with back-off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The apiserver refused a request, or did not answer.
    #[error("{}", message(.0))]
    Api(#[from] kube::Error),
    /// The object cannot be synced as it is.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn invalid(reason: &str) -> Self {
        Self::Invalid(reason.to_owned())
    }
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict())
    }
}

/// The error as Go's clients print it: the message of the apiserver alone.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
