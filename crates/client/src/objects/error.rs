//! Why objects are not to be had.

use std::sync::Arc;

use kube::Error as KubeError;

use crate::pod_certificates::CertificateError;

/// Why an object or token could not be had. Cheap to clone: callers share one request's outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The apiserver has no such object.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `secret`, `configmap` or `runtimeclass.node.k8s.io`.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// The apiserver refused or could not be reached.
    #[error("failed to {action}: {reason}")]
    Request {
        /// The failed action.
        action: String,
        /// The server's message, or the client's error.
        reason: Arc<str>,
    },
    /// The object cannot be decoded. There is no point in a retry: its next change is reported.
    #[error("failed to {action}: {reason}")]
    Unreadable {
        /// The failed action.
        action: String,
        /// Which object, which field, and why.
        reason: Arc<str>,
    },
    /// The node runs without an apiserver.
    #[error("failed to {action}: no apiserver is configured")]
    NoApiserver {
        /// The failed action.
        action: String,
    },
    /// A trust bundle projection cannot be resolved.
    #[error("{0}")]
    TrustBundle(String),
    /// A source of certificates has none.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The feature gate of certificates is off, or there is no apiserver.
    #[error(
        "podCertificate projection is not supported: the feature gate PodCertificateRequest is off, or \
         no apiserver is configured"
    )]
    NoCertificates,
    /// A token was requested for a pod without a service account.
    #[error("pod has no service account to request a token for")]
    NoServiceAccount,
}

impl Error {
    /// Whether the object does not exist, which an `optional` reference forgives.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether a retry may succeed.
    pub(super) fn is_passing(&self) -> bool {
        !matches!(self, Self::NotFound { .. } | Self::Unreadable { .. })
    }

    pub(super) fn request(action: String, error: KubeError) -> Self {
        let reason = match error {
            KubeError::Api(status) => status.message,
            // The outer text is often just "service error"; the innermost says why.
            error => root_cause(&error),
        };
        Self::Request { action, reason: reason.into() }
    }
}

/// What went wrong at the bottom of an error.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
