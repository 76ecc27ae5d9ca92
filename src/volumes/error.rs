//! What can go wrong with a pod's volumes.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::objects;

/// Why a volume could not be set up, refreshed or taken down. The text is fit for a pod's event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One volume of the pod failed.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {source}")]
    SetUp {
        /// The volume's name in the pod.
        volume: String,
        /// What failed.
        source: Box<Error>,
    },
    /// The node cannot set up volumes of this kind.
    #[error("volume {volume:?}: kind {kind} is not supported yet")]
    Unsupported {
        /// The volume's name in the pod.
        volume: String,
        /// The kind, as the pod's spec spells it.
        kind: String,
    },
    /// The node cannot do a part of what a supported volume asks for.
    #[error("{0} is not supported yet")]
    UnsupportedPart(String),
    /// Several sources of one projected volume failed.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Error>),
    /// A secret, configmap or token could not be had.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// A field or resource of the pod has no value.
    #[error(transparent)]
    Downward(#[from] longshore_pod::downward::Error),
    /// An `items` list names a key that the secret lacks.
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    /// An `items` list names a key that the configmap lacks.
    #[error("configmap references non-existent config key: {0}")]
    NoConfigMapKey(String),
    /// A path or name is empty, absolute, too long or leads outside.
    #[error("invalid {what} {path:?}: {reason}")]
    InvalidPath {
        /// What the path is for.
        what: &'static str,
        /// The path as written.
        path: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// What stands at a host path is not of the type that the volume names.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType {
        /// The path on the host.
        path: String,
        /// What the volume expects there.
        expected: &'static str,
    },
    /// A sub-path could not be made or bound. Its details are logged and not told to the pod,
    /// which could learn about the host from them.
    #[error("failed to {action} for volumeMount {volume:?} of container {container:?}")]
    SubPath {
        /// `create subPath directory` or `prepare subPath`.
        action: &'static str,
        /// The volume's name in the pod.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// Something that is not the node's own stands in the way of removing a pod's directory. It
    /// is left alone.
    #[error("{path} {what}, left in place")]
    Foreign {
        /// Where it stands.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A system call failed.
    #[error("failed to {action} {path}: {source}")]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The work ended before its answer, as when the daemon stops.
    #[error("work on volumes was interrupted")]
    Interrupted,
}

impl Error {
    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// The error number of a failed system call.
    pub(super) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => source.raw_os_error().map(Errno::from_raw),
            _ => None,
        }
    }
}

/// Turns "there is no such file" into `None`.
pub(super) fn if_exists<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first error of many attempts, all of which were made.
#[derive(Default)]
pub(super) struct FirstError(Option<Error>);

impl FirstError {
    /// Whether the attempt succeeded; its error is kept if it is the first.
    pub(super) fn note(&mut self, attempt: Result<(), Error>) -> bool {
        match attempt {
            Ok(()) => true,
            Err(error) => {
                self.0.get_or_insert(error);
                false
            }
        }
    }

    pub(super) fn result(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
