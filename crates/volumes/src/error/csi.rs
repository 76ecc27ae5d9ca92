//! Errors of CSI volumes.

use std::path::PathBuf;

use super::{ATTACH, MAP, MAP_ATTACH, SET_UP, STAGE};

/// Why a volume of a driver could not be set up or taken down. The message is used in pod events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver is not registered on this node.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// A call to the driver failed.
    #[error(transparent)]
    Call(#[from] longshore_csi::Error),
    /// The driver does not support the volume lifecycle mode.
    #[error("volume mode {mode:?} not supported by driver {driver} ({})", match .supported {
        Some(modes) => format!("only supports {modes:?}"),
        None => "no CSIDriver object".to_owned(),
    })]
    Mode {
        /// `Persistent` or `Ephemeral`.
        mode: &'static str,
        /// The driver's name.
        driver: String,
        /// The modes of its CSIDriver; `None`: there is no such object.
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
        /// The attachment's error, or why it cannot be read.
        reason: Option<String>,
    },
    /// The volume cannot be attached to the node, or is being detached.
    #[error("{0}")]
    Attachment(String),
    /// The node's attach limit is reached.
    #[error("Node has reached its volume attachment limit: {0}")]
    AttachLimit(String),
    /// A secret that the driver needs could not be read.
    #[error("fetching {field} {namespace}/{name} failed: {reason}")]
    Secret {
        /// The field that names it.
        field: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A request to the apiserver failed.
    #[error("failed to {action}: {reason}")]
    Api {
        /// The operation.
        action: String,
        /// The apiserver's message.
        reason: String,
    },
    /// The volume is ReadWriteOncePod, and used by another pod.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    /// The volume is still mounted after the driver has unpublished or unstaged it.
    #[error("the driver has left {0} mounted")]
    StillMounted(PathBuf),
    /// The `vol_data.json` of a volume is invalid.
    #[error("{path}: {reason}")]
    VolData {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The containers of a pod use a volume with several SELinux labels.
    #[error("multiple SELinux labels found: {0}")]
    Labels(String),
    /// Another pod uses the volume with another SELinux label.
    #[error("conflicting SELinux labels of volume {volume}: {known:?} and {wanted:?}")]
    OtherLabel {
        /// The PersistentVolume's name.
        volume: String,
        /// The label of the other pod.
        known: String,
        /// That of this one.
        wanted: String,
    },
    /// A volume could not be staged.
    #[error("{0}")]
    Stage(Box<super::Error>),
    /// A volume could not be made larger.
    #[error("Expander.NodeExpand failed to expand the volume : {0}")]
    Expand(longshore_csi::Error),
}

/// Whether the operation may still be in progress in the driver.
pub(crate) fn is_under_way(error: &super::Error) -> bool {
    match error {
        super::Error::Csi(Error::Call(call)) => !call.is_final(),
        super::Error::Csi(Error::Stage(error)) => is_under_way(error),
        _ => false,
    }
}

/// Whether the driver's limit of volumes on the node is reached.
pub(crate) fn is_exhausted(error: &super::Error) -> bool {
    match error {
        super::Error::Csi(Error::Call(call)) => {
            call.code() == Some(longshore_csi::Code::ResourceExhausted)
        }
        super::Error::Csi(Error::Stage(error)) => is_exhausted(error),
        _ => false,
    }
}

impl Error {
    /// The operation, by upstream's name.
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
