//! Why a plugin is not registered.

use std::sync::Arc;

use kube::Error as KubeError;

/// Why a plugin is not registered. The message is sent to the plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] longshore_csi::Error),
    /// Invalid driver name.
    #[error(
        "invalid name of a CSI driver {0:?}: it must be like a domain of at most 63 characters"
    )]
    Name(String),
    /// No supported CSI version.
    #[error("CSI driver {driver:?} supports none of the node's versions (1.x): {versions:?}")]
    Versions {
        /// The driver's name.
        driver: String,
        /// Its versions.
        versions: Vec<String>,
    },
    /// A driver of that name and the same or a newer version is registered.
    #[error(
        "another CSI driver with the name {driver:?} is already registered with version {version}"
    )]
    Duplicate {
        /// The driver's name.
        driver: String,
        /// The version of the one that is registered.
        version: String,
    },
    /// The driver's topology conflicts with a label of the node.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{known:?}"
    )]
    Topology {
        /// The label.
        key: String,
        /// The driver's value.
        reported: String,
        /// The Node's value.
        known: String,
    },
    /// The annotation of the Node with driver IDs is invalid.
    #[error("failed to parse the node's annotation {annotation:?} ({value:?}): {reason}")]
    Annotation {
        /// The annotation.
        annotation: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A request to the apiserver failed.
    #[error("failed to {action}: {reason}")]
    Api {
        /// The operation.
        action: &'static str,
        /// The server's message, or the local error.
        reason: Arc<str>,
    },
}

impl Error {
    pub(super) fn api(action: &'static str, error: &KubeError) -> Self {
        Self::Api { action, reason: error.to_string().into() }
    }
}
