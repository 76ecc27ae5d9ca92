//! Errors of the start of a node.

use std::path::PathBuf;

use super::task_set::TaskError;
use crate::{allocation, lock, run_once};
use longshore_base::systemd;
use longshore_client::ClientError;
use longshore_client::certificates::{BootstrapError, StoreError};
use longshore_resources as resources;
use longshore_resources::managers;
use longshore_runtime::UserNamespaceError;
use longshore_server::ServerError;

/// Why a node cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime is not supported.
    #[error(transparent)]
    Runtime(#[from] longshore_cri::Error),
    /// CRI cannot be served over a Docker Engine.
    #[error(transparent)]
    Docker(#[from] longshore_cri_docker::Error),
    /// The credential provider plugins cannot be used.
    #[error("Failed to register CRI auth plugins: {0}")]
    CredentialProviders(#[from] longshore_credential_provider::Error),
    /// Traces cannot be exported.
    #[error(transparent)]
    Tracing(#[from] longshore_telemetry::Error),
    /// The client configuration is invalid.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is no client certificate, and none can be requested.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The serving certificate cannot be stored.
    #[error(transparent)]
    Certificates(#[from] StoreError),
    /// Kernel settings are not as a node needs them.
    #[error("Failed to start ContainerManager: {0}")]
    Tunables(#[from] longshore_machine::tunables::Error),
    /// The root directory cannot become a shared mount.
    #[error("error configuring root directory: {0}")]
    RootDirectory(longshore_volumes::Error),
    /// Resource management cannot be set up.
    #[error(transparent)]
    Resources(#[from] resources::Error),
    /// The CPU, memory or topology manager cannot start.
    #[error(transparent)]
    Managers(#[from] managers::Error),
    /// There are no ids for user namespaces.
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
    /// The allowed unsafe sysctls are invalid.
    #[error(transparent)]
    Sysctls(#[from] longshore_pod::admission::Error),
    /// The node's ports cannot be opened.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// `--runonce` failed.
    #[error(transparent)]
    RunOnce(#[from] run_once::Error),
    /// The allocation checkpoint cannot be restored.
    #[error(transparent)]
    Allocation(#[from] allocation::Error),
    /// The checkpoint of claims cannot be restored.
    #[error(transparent)]
    Claims(#[from] longshore_dra::Error),
    /// The watchdog of the unit is misconfigured.
    #[error(transparent)]
    Watchdog(#[from] systemd::Error),
    /// The lock file cannot be used.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// A part of the node ended early.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A directory cannot be made.
    #[error("{path}: {source}", path = .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
