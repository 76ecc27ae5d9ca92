//! Why a plugin is not registered.

use std::sync::Arc;

use kube::Error as KubeError;

/// Why a plugin is not registered. The text is told to the plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plugin did not answer as it should.
    #[error(transparent)]
    Call(#[from] longshore_csi::Error),
    /// The node registers no plugins of that type.
    #[error("no handler registered for plugin type {kind:?} at socket {socket}")]
    Type {
        /// The type, as the plugin has it.
        kind: String,
        /// Where it announced itself.
        socket: String,
    },
    /// The plugin's name cannot be one of a CSI driver.
    #[error(
        "invalid name of a CSI driver {0:?}: it must be like a domain of at most 63 characters"
    )]
    Name(String),
    /// The driver speaks none of the versions of CSI that the node does.
    #[error("CSI driver {driver:?} supports none of the node's versions (1.x): {versions:?}")]
    Versions {
        /// The driver's name.
        driver: String,
        /// What it speaks.
        versions: Vec<String>,
    },
    /// A driver of that name is registered, and no older.
    #[error(
        "another CSI driver with the name {driver:?} is already registered with version {version}"
    )]
    Duplicate {
        /// The driver's name.
        driver: String,
        /// The version of the one that is registered.
        version: String,
    },
    /// The driver says that it is in another place than the node is.
    #[error(
        "detected topology value collision: driver reported {key:?}:{told:?} but existing label is {key:?}:{known:?}"
    )]
    Topology {
        /// The label.
        key: String,
        /// Its value as the driver has it.
        told: String,
        /// Its value at the Node.
        known: String,
    },
    /// The annotation of the Node that names its drivers was written by somebody else.
    #[error("failed to parse the node's annotation {annotation:?} ({value:?}): {reason}")]
    Annotation {
        /// The annotation.
        annotation: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The cluster could not be told.
    #[error("failed to {action}: {reason}")]
    Api {
        /// What was to be done.
        action: &'static str,
        /// The server's message, or what went wrong on the way.
        reason: Arc<str>,
    },
}

impl Error {
    pub(super) fn api(action: &'static str, error: &KubeError) -> Self {
        Self::Api { action, reason: error.to_string().into() }
    }

    /// Whether another try can have another end while the plugin is the same.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Type { .. } | Self::Name(_) | Self::Versions { .. })
    }
}
