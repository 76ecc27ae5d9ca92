//! Why a sync fails.

use longshore_client::error_message;
use longshore_informer::SyncError;

/// Why a sync fails. It is retried with back-off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The apiserver refused a request, or did not answer.
    #[error("{}", error_message(.0))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_apiserver_is_its_message() {
        let status = kube::core::Status::failure("pods \"p\" is forbidden: why", "Forbidden");
        let error = kube::Error::Api(Box::new(status.with_code(403)));
        assert_eq!(Error::from(error).to_string(), "pods \"p\" is forbidden: why");
        assert_eq!(Error::invalid("why").to_string(), "why");
    }
}
