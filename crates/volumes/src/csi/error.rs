//! What can go wrong with a volume of a driver.

use std::path::PathBuf;

use super::super::error::{ATTACH, MAP, MAP_ATTACH, SET_UP, STAGE};

/// Why a volume of a driver could not be set up or taken down. The text is fit for a pod's event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver does not run on this node, or has yet to register.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// The driver refused or failed.
    #[error(transparent)]
    Call(#[from] longshore_csi::Error),
    /// The driver does not make volumes of that life.
    #[error("volume mode {mode:?} not supported by driver {driver} ({})", match .supported {
        Some(modes) => format!("only supports {modes:?}"),
        None => "no CSIDriver object".to_owned(),
    })]
    Mode {
        /// `Persistent` or `Ephemeral`.
        mode: &'static str,
        /// The driver's name.
        driver: String,
        /// What its CSIDriver says; `None`: there is none.
        supported: Option<Vec<String>>,
    },
    /// The volume was not attached to the node in time.
    #[error("timed out waiting for external-attacher of {driver} CSI driver to attach volume {volume}{}", match .reason {
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    })]
    NotAttached {
        /// The driver's name.
        driver: String,
        /// The volume's handle.
        volume: String,
        /// What the attachment says, or why it cannot be read.
        reason: Option<String>,
    },
    /// The volume cannot be attached to the node, or is being detached.
    #[error("{0}")]
    Attachment(String),
    /// The node has no room for it, and none was made in time.
    #[error("Node has reached its volume attachment limit: {0}")]
    AttachLimit(String),
    /// A secret that the driver needs could not be had.
    #[error("fetching {field} {namespace}/{name} failed: {reason}")]
    Secret {
        /// The field that names it.
        field: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What is the matter with it.
        reason: String,
    },
    /// Something of the cluster could not be read or written.
    #[error("failed to {action}: {reason}")]
    Api {
        /// What was to be done.
        action: String,
        /// What the apiserver said.
        reason: String,
    },
    /// Only one pod may use the volume, and another does.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    /// The driver says that the volume is unpublished or unstaged, and it is still mounted.
    #[error("the driver has left {0} mounted")]
    StillMounted(PathBuf),
    /// The note of a volume cannot be used.
    #[error("{path}: {reason}")]
    Note {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A volume could not be staged.
    #[error("{0}")]
    Stage(Box<super::super::Error>),
    /// A volume could not be made larger.
    #[error("Expander.NodeExpand failed to expand the volume : {0}")]
    Expand(longshore_csi::Error),
}

/// Whether the driver may still work on what has failed.
pub(super) fn is_under_way(error: &super::super::Error) -> bool {
    match error {
        super::super::Error::Csi(Error::Call(call)) => !call.is_final(),
        super::super::Error::Csi(Error::Stage(error)) => is_under_way(error),
        _ => false,
    }
}

/// Whether the driver has no room for another volume on the node.
pub(super) fn is_exhausted(error: &super::super::Error) -> bool {
    match error {
        super::super::Error::Csi(Error::Call(call)) => {
            call.code() == Some(longshore_csi::Code::ResourceExhausted)
        }
        super::super::Error::Csi(Error::Stage(error)) => is_exhausted(error),
        _ => false,
    }
}

impl Error {
    /// What was to be done, in upstream's words.
    pub(crate) fn operation(&self, block: bool) -> &'static str {
        match (self, block) {
            (Self::NotAttached { .. } | Self::Attachment(_) | Self::AttachLimit(_), false) => {
                ATTACH
            }
            (Self::NotAttached { .. } | Self::Attachment(_) | Self::AttachLimit(_), true) => {
                MAP_ATTACH
            }
            (Self::Stage(_), false) => STAGE,
            (Self::Stage(_), true) => "MapVolume.SetUpDevice",
            (Self::Expand(_), false) => "MountVolume.NodeExpandVolume",
            (Self::Expand(_), true) => "MapVolume.NodeExpandVolume",
            (_, false) => SET_UP,
            (_, true) => MAP,
        }
    }
}
