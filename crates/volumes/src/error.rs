//! Errors of a pod's volumes.

pub(crate) mod csi;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_client::objects;
use nix::errno::Errno;

use crate::claims::ClaimError;

/// Upstream's names of the operations, for file system and block volumes.
pub(super) const SET_UP: &str = "MountVolume.SetUp";
/// Checks the source.
pub(super) const NEW_MOUNTER: &str = "MountVolume.NewMounter initialization";
pub(super) const MAP: &str = "MapVolume.MapPodDevice";
/// Attaches the device, and mounts it for all pods.
pub(super) const ATTACH: &str = "MountVolume.WaitForAttach";
pub(super) const MAP_ATTACH: &str = "MapVolume.WaitForAttach";
pub(super) const STAGE: &str = "MountVolume.MountDevice";
/// Checks that the volume is accessible from the node.
pub(super) const NODE_AFFINITY: &str = "MountVolume.NodeAffinity check";
/// Checks whether the volume type supports mount options.
pub(super) const MOUNT_OPTION_SUPPORT: &str = "MountVolume.MountOptionSupport check";
/// Checks that the control plane has attached it.
pub(super) const VERIFY: &str = "VerifyControllerAttachedVolume";
pub(super) const MAP_NODE_AFFINITY: &str = "MapVolume.NodeAffinity check";

/// Why a volume could not be set up, refreshed or taken down. The message is used in pod events.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files of a volume are larger than the limit.
    #[error("the files of the volume are larger than {0} bytes together")]
    LargePayload(usize),
    /// One volume of the pod failed.
    #[error("{operation} failed for volume {volume:?} : {source}")]
    SetUp {
        /// The operation, by upstream's name.
        operation: &'static str,
        /// The volume's name: in the pod, or the PersistentVolume's.
        volume: String,
        /// What failed.
        source: Box<Error>,
    },
    /// The claim of a volume, or the volume, cannot be used.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {source}"
    )]
    Claim {
        /// The volume's name in the pod.
        volume: String,
        /// The reason.
        source: Box<ClaimError>,
    },
    /// The volume of a claim is not accessible from this node.
    #[error("no matching NodeSelectorTerms")]
    OtherNodes,
    /// The control plane has not attached the volume in time.
    #[error("volume not attached according to node status")]
    NotAttached,
    /// A gitRepo volume, which is disabled for security.
    #[error(
        "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling \
         the feature-gate `GitRepoVolumeDriver`"
    )]
    GitRepo,
    /// A system tool that the volume needs is not installed.
    #[error("{tool} is not installed on this node: it comes with the package {package}")]
    NoTool {
        /// The program.
        tool: &'static str,
        /// The package that most distributions have it in.
        package: &'static str,
    },
    /// A system tool failed.
    #[error("{tool} failed: {status}: {output}")]
    Tool {
        /// The program.
        tool: &'static str,
        /// Its exit status.
        status: String,
        /// Its output.
        output: String,
    },
    /// A system tool was killed because of its timeout.
    #[error("{tool} did not end within {limit:?} and was killed: {output}")]
    ToolHung {
        /// The program.
        tool: &'static str,
        /// The timeout.
        limit: Duration,
        /// Its output until then.
        output: String,
    },
    /// A device without a file system is to be mounted read-only.
    #[error("cannot mount unformatted disk {0} as we are manipulating it in read-only mode")]
    Unformatted(PathBuf),
    /// A device could not be mounted, and has another file system than the volume names.
    #[error(
        "failed to mount the volume as {wanted:?}, it already contains {found}. Mount error: {source}"
    )]
    OtherFormat {
        /// The file system that the volume names.
        wanted: String,
        /// What is on the device.
        found: String,
        /// Why it could not be mounted.
        source: Box<Error>,
    },
    /// A mount option that does not apply to bind mounts.
    #[error("mount option {0:?} cannot be applied to a bind mount")]
    MountOption(String),
    /// The volume type does not support mount options.
    #[error("mount options are not supported for this volume type")]
    MountOptions,
    /// A disk could not be attached.
    #[error("{0}")]
    Unreached(Box<Error>),
    /// A device could not be mounted for all its pods.
    #[error("{0}")]
    Unstaged(Box<Error>),
    /// A disk did not show up after its target was logged in.
    #[error("Timed out waiting for device at path {path} after {limit:?}")]
    NoDevice {
        /// The expected path.
        path: PathBuf,
        /// The timeout.
        limit: Duration,
    },
    /// A Fibre Channel disk cannot be found.
    #[error("fc: {0}")]
    Fc(String),
    /// A FlexVolume driver is missing or failed.
    #[error("FlexVolume driver {driver}: {message}")]
    Flex {
        /// The driver.
        driver: String,
        /// What is wrong, or what it printed about that.
        message: String,
    },
    /// The path of a local volume does not exist.
    #[error("path {:?} does not exist", .0)]
    NoLocal(PathBuf),
    /// The path of a local volume contains `..`.
    #[error("invalid path: {} must not contain '..'", .0.display())]
    LocalBack(PathBuf),
    /// What a local volume names is neither a directory nor a block device.
    #[error("only directory and block device are supported")]
    NotLocal,
    /// The path of a block volume is not a block device.
    #[error("{0} is not a block device")]
    NotBlock(PathBuf),
    /// A CSI driver, or what it needs, failed.
    #[error(transparent)]
    Csi(#[from] csi::Error),
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
    /// A secret, configmap or token could not be read.
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
    /// A host path contains `..`.
    #[error("invalid HostPath `{0}`: must not contain '..'")]
    HostPathBack(String),
    /// Unknown host path type.
    #[error("{0} is an invalid volume type")]
    NoHostPathType(String),
    /// The host path is not of the type that the volume requires.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType {
        /// The path on the host.
        path: String,
        /// The required type.
        expected: &'static str,
    },
    /// The medium that an emptyDir requests is not available.
    #[error("{0}")]
    Medium(String),
    /// A sub-path is absolute or contains `..`.
    #[error("{}", refusal(.path))]
    SubPathOut {
        /// The path as written, or with its variables expanded.
        path: String,
    },
    /// A sub-path could not be made or bound. Details are logged only, as they could reveal paths
    /// of the host to the pod.
    #[error("failed to {action} for volumeMount {volume:?} of container {container:?}")]
    SubPath {
        /// `create subPath directory` or `prepare subPath`.
        action: &'static str,
        /// The volume's name in the pod.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// Something that the node did not create prevents removing a pod's directory. It is left in
    /// place.
    #[error("{path} {what}, left in place")]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Mounts of a pod are covered by another mount, so that they cannot be unmounted. Everything else is
    /// taken down.
    #[error(
        "cannot unmount {}: another mount covers what it is mounted on; it stays until the machine \
         restarts",
        .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Hidden(Vec<PathBuf>),
    /// A system call failed.
    #[error("failed to {action} {path}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The operation was interrupted, such as by the end of the daemon.
    #[error("work on volumes was interrupted")]
    Interrupted,
}

/// In upstream's words.
fn refusal(path: &str) -> String {
    match path.starts_with('/') {
        true => format!("error SubPath `{path}` must not be an absolute path"),
        false => format!("unable to provision SubPath `{path}`: must not contain '..'"),
    }
}

impl Error {
    /// The reason for the event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SetUp { operation, .. } if operation.starts_with("MapVolume") => {
                "FailedMapVolume"
            }
            _ => "FailedMount",
        }
    }

    /// The reason of the pod's status, if the pod cannot run on this node because of the error.
    pub fn rejects(&self) -> Option<&'static str> {
        match self {
            Self::Csi(csi::Error::AttachLimit(_)) => Some("VolumeAttachmentLimitExceeded"),
            Self::SetUp { source, .. } => source.rejects(),
            _ => None,
        }
    }

    /// Whether a device has another file system than its volume names.
    pub(super) fn is_other_format(&self) -> bool {
        match self {
            Self::OtherFormat { .. } => true,
            Self::Unreached(source) | Self::Unstaged(source) => source.is_other_format(),
            _ => false,
        }
    }

    /// The error as that of one volume.
    pub(super) fn of_volume(self, operation: &'static str, volume: &str) -> Self {
        let volume = volume.to_owned();
        match self {
            // No operation was started.
            Self::Claim { source, .. } => Self::Claim { volume, source },
            error => Self::SetUp { operation, volume, source: Box::new(error) },
        }
    }

    /// The volume is of a type that was removed from Kubernetes.
    pub(super) fn no_plugin(volume: &str) -> Self {
        let volume = volume.to_owned();
        Self::Claim { source: Box::new(ClaimError::NoPlugin(volume.clone())), volume }
    }

    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// The disk could not be attached, for that reason.
    pub(super) fn unreached(self) -> Self {
        Self::Unreached(Box::new(self))
    }

    /// Whether something is in use: as the system said, or a CSI driver that passes its words on.
    pub(super) fn is_in_use(&self) -> bool {
        match self {
            Self::Csi(error) => error.to_string().contains("device or resource busy"),
            other => other.errno() == Some(Errno::EBUSY),
        }
    }

    /// The error number of a failed system call.
    pub(super) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => source.raw_os_error().map(Errno::from_raw),
            _ => None,
        }
    }
}

/// Turns `ENOENT` into `None`.
pub(super) fn if_exists<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first error of many attempts, all of which were made. What is in use may be so for a reason that
/// is beyond the node, and hides no other error.
#[derive(Default)]
pub(super) struct FirstError(Option<Error>);

impl FirstError {
    /// Whether the attempt succeeded; its error is kept if it is the first.
    pub(super) fn note(&mut self, attempt: Result<(), Error>) -> bool {
        match attempt {
            Ok(()) => true,
            Err(error) => {
                if self.0.as_ref().is_none_or(|first| first.is_in_use() && !error.is_in_use()) {
                    self.0 = Some(error);
                }
                false
            }
        }
    }

    pub(super) fn result(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
