//! Why a node cannot start: what its rooms say.

use std::path::PathBuf;

use crate::{allocation, lock, run_once, systemd};
use longshore_client::ClientError;
use longshore_client::certificates::{BootstrapError, StoreError};
use longshore_resources as resources;
use longshore_resources::managers;
use longshore_runtime::UserNamespaceError;
use longshore_server::ServerError;

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime can never be worked with.
    #[error(transparent)]
    Runtime(#[from] longshore_cri::Error),
    /// The way to the apiserver is not known.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is no credential for the apiserver, nor a way to one.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The certificate of the server has no place.
    #[error(transparent)]
    Certificates(#[from] StoreError),
    /// The node has no address.
    #[error(transparent)]
    Address(#[from] longshore_machine::addresses::AddressError),
    /// The machine's resources cannot be managed as the config says.
    #[error(transparent)]
    Resources(#[from] resources::Error),
    /// The CPU, memory or topology manager cannot begin.
    #[error(transparent)]
    Managers(#[from] managers::Error),
    /// There are no ids for pods with users of their own.
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
    /// The config allows sysctls that cannot be.
    #[error(transparent)]
    Sysctls(#[from] longshore_pod::admission::Error),
    /// The node's ports cannot be opened.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Not all pods of a single run came up.
    #[error(transparent)]
    RunOnce(#[from] run_once::Error),
    /// What was given to pods cannot be read back.
    #[error(transparent)]
    Allocation(#[from] allocation::Error),
    /// The watchdog of the unit cannot be answered.
    #[error(transparent)]
    Watchdog(#[from] systemd::Error),
    /// Whether another node runs here is not known.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// A directory cannot be made.
    #[error("{path}: {source}", path = .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
