//! Errors. The texts are upstream's, where it has any.

use std::path::PathBuf;

/// Why a plugin is not registered, or its devices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The plugin uses another version of the API.
    #[error(
        "requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]"
    )]
    Version(String),
    /// The name is none of an extended resource.
    #[error("the ResourceName {0:?} is invalid")]
    ResourceName(String),
    /// The plugin's socket is not a path below the plugins' folder.
    #[error("the Endpoint {0:?} is invalid")]
    Endpoint(String),
    /// There are too many resources.
    #[error("the ResourceName {name:?} is one more than the {most} that can be registered")]
    TooMany {
        /// The resource.
        name: String,
        /// The bound.
        most: usize,
    },
    /// The plugin does not listen.
    #[error("failed to dial device plugin: {0}")]
    Dial(String),
    /// The plugin does not give its options.
    #[error("failed to get device plugin options: {0}")]
    Options(String),
    /// No plugin is registered for the resource.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The plugin of the resource has gone.
    #[error("endpoint {0} has been stopped")]
    Stopped(String),
    /// An allocation for a resource that no plugin has.
    #[error("unknown Device Plugin {0}")]
    Unknown(String),
    /// The plugin has allocated nothing.
    #[error("no containers return in allocation response of {0}")]
    NoResponse(String),
    /// The plugin refused the allocation.
    #[error("{0}")]
    Allocate(String),
    /// The plugin refused the start of a container.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
    /// A container that is to start has no devices.
    #[error(
        "no devices found allocated in local cache for pod {uid}, container {container}, resource \
         {resource}"
    )]
    NotAllocated {
        /// The pod's UID.
        uid: String,
        /// The container.
        container: String,
        /// The resource.
        resource: String,
    },
    /// The plugin of a container's devices has not registered since the daemon started.
    #[error("waiting for the device plugin of {0} to register")]
    Waiting(String),
    /// The checkpoint could not be written.
    #[error("failed to write checkpoint file \"{path}\": {why}")]
    NotPersisted {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

/// As much of a text from outside as fits into a message.
pub(crate) fn brief(text: &str) -> String {
    const MOST: usize = 256;
    text[..text.floor_char_boundary(MOST)].to_owned()
}
