//! What can go wrong with a pod's volumes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_client::objects;
use nix::errno::Errno;

use super::claims::ClaimError;
use super::csi;

/// What is done to set up a volume: one with files, and one that is a device.
pub(super) const SET_UP: &str = "MountVolume.SetUp";
/// Looking what is to be mounted, before that.
pub(super) const LOOK: &str = "MountVolume.NewMounter initialization";
pub(super) const MAP: &str = "MapVolume.MapPodDevice";
/// Reaching what is to be mounted, and mounting it for all pods, before that.
pub(super) const ATTACH: &str = "MountVolume.WaitForAttach";
pub(super) const MAP_ATTACH: &str = "MapVolume.WaitForAttach";
pub(super) const STAGE: &str = "MountVolume.MountDevice";
/// Looking whether it can be reached from the node, before that.
pub(super) const CHECK: &str = "MountVolume.NodeAffinity check";
/// Looking whether its kind takes mount options.
pub(super) const OPTIONS: &str = "MountVolume.MountOptionSupport check";
/// Looking whether the control plane has attached it.
pub(super) const VERIFY: &str = "VerifyControllerAttachedVolume";
pub(super) const MAP_CHECK: &str = "MapVolume.NodeAffinity check";

/// Why a volume could not be set up, refreshed or taken down. The text is fit for a pod's event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files of a volume are more than the node holds for one.
    #[error("the files of the volume are larger than {0} bytes together")]
    LargePayload(usize),
    /// One volume of the pod failed.
    #[error("{operation} failed for volume {volume:?} : {source}")]
    SetUp {
        /// What was to be done, in upstream's words.
        operation: &'static str,
        /// The volume's name: in the pod, or the PersistentVolume's.
        volume: String,
        /// What failed.
        source: Box<Error>,
    },
    /// The claim of a volume, or the volume, does not lead to one that the pod can use.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {source}"
    )]
    Claim {
        /// The volume's name in the pod.
        volume: String,
        /// What is the matter with it.
        source: Box<ClaimError>,
    },
    /// The volume of a claim cannot be reached from this node.
    #[error("no matching NodeSelectorTerms")]
    OtherNodes,
    /// The control plane has not said in time that the node has the volume.
    #[error("volume not attached according to node status")]
    NotAttached,
    /// A git repository: too dangerous a volume to be set up by anybody any more.
    #[error(
        "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling \
         the feature-gate `GitRepoVolumeDriver`"
    )]
    GitRepo,
    /// A tool of the system that a volume needs is not there.
    #[error("{tool} is not installed on this node: it comes with the package {package}")]
    NoTool {
        /// The program.
        tool: &'static str,
        /// Where most systems have it.
        package: &'static str,
    },
    /// A tool of the system failed.
    #[error("{tool} failed: {status}: {output}")]
    Tool {
        /// The program.
        tool: &'static str,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// A tool of the system was ended because it took too long.
    #[error("{tool} did not end within {limit:?} and was killed: {output}")]
    ToolHung {
        /// The program.
        tool: &'static str,
        /// How long it might have taken.
        limit: Duration,
        /// What it printed until then.
        output: String,
    },
    /// A device without a file system is to be mounted read-only.
    #[error("cannot mount unformatted disk {0} as we are manipulating it in read-only mode")]
    Unformatted(PathBuf),
    /// A device could not be mounted, and what is on it is not what the volume names.
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
    /// A mount option that means nothing to a bind mount.
    #[error("mount option {0:?} cannot be applied to a bind mount")]
    MountOption(String),
    /// A volume has mount options, and its kind takes none.
    #[error("mount options are not supported for this volume type")]
    MountOptions,
    /// A disk could not be reached.
    #[error("{0}")]
    Unreached(Box<Error>),
    /// A device could not be mounted for all its pods.
    #[error("{0}")]
    Unstaged(Box<Error>),
    /// A disk did not show up after its target was logged in.
    #[error("Timed out waiting for device at path {path} after {limit:?}")]
    NoDevice {
        /// Where it was to be.
        path: PathBuf,
        /// How long it was waited for.
        limit: Duration,
    },
    /// Nothing is where a local volume is said to be.
    #[error("path {:?} does not exist", .0)]
    NoLocal(PathBuf),
    /// The path of a local volume leads backwards.
    #[error("invalid path: {} must not contain '..'", .0.display())]
    LocalBack(PathBuf),
    /// What a local volume names is neither a directory nor a block device.
    #[error("only directory and block device are supported")]
    NotLocal,
    /// What is to be given to containers as a device is none.
    #[error("{0} is not a block device")]
    NotBlock(PathBuf),
    /// A driver, or what it needs, stands in the way.
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
    /// A host path leads backwards.
    #[error("invalid HostPath `{0}`: must not contain '..'")]
    HostPathBack(String),
    /// A host path is to be of a type that nobody knows.
    #[error("{0} is an invalid volume type")]
    NoHostPathType(String),
    /// What stands at a host path is not of the type that the volume names.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType {
        /// The path on the host.
        path: String,
        /// What the volume expects there.
        expected: &'static str,
    },
    /// The medium that an emptyDir asks for is not to be had.
    #[error("{0}")]
    Medium(String),
    /// A sub-path leads out of its volume by itself.
    #[error("{}", refusal(.path))]
    SubPathOut {
        /// The path as written, or with its variables expanded.
        path: String,
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

/// In upstream's words.
fn refusal(path: &str) -> String {
    match path.starts_with('/') {
        true => format!("error SubPath `{path}` must not be an absolute path"),
        false => format!("unable to provision SubPath `{path}`: must not contain '..'"),
    }
}

impl Error {
    /// The reason of the event that tells it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SetUp { operation, .. } if operation.starts_with("MapVolume") => {
                "FailedMapVolume"
            }
            _ => "FailedMount",
        }
    }

    /// Whether the pod cannot have its volume on this node, so that it is to be made anew on
    /// another: the reason for its status.
    pub fn rejects(&self) -> Option<&'static str> {
        match self {
            Self::Csi(super::CsiError::AttachLimit(_)) => Some("VolumeAttachmentLimitExceeded"),
            Self::SetUp { source, .. } => source.rejects(),
            _ => None,
        }
    }

    /// The error as that of one volume.
    pub(super) fn of_volume(self, operation: &'static str, volume: &str) -> Self {
        let volume = volume.to_owned();
        match self {
            // It did not come so far that something was done.
            Self::Claim { source, .. } => Self::Claim { volume, source },
            error => Self::SetUp { operation, volume, source: Box::new(error) },
        }
    }

    /// A volume of that name is of a kind that Kubernetes has no more.
    pub(super) fn no_plugin(volume: &str) -> Self {
        let volume = volume.to_owned();
        Self::Claim { source: Box::new(ClaimError::NoPlugin(volume.clone())), volume }
    }

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
