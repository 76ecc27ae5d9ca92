//! What goes wrong with networks.

use std::path::PathBuf;
use std::time::Duration;

use longshore_base::panics::Panicked;

/// The result of an operation on a network.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on a network that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No configuration can be used.
    #[error("no valid networks found in {folder:?}{}", reasons(.rejected))]
    NoNetwork {
        /// The folder of configurations.
        folder: PathBuf,
        /// What is wrong with each file.
        rejected: Vec<String>,
    },
    /// An identifier would not be one in a file name or a variable.
    #[error("invalid {what} {value:?}")]
    Invalid {
        /// Whose.
        what: &'static str,
        /// As given.
        value: String,
    },
    /// There is no such plugin.
    #[error("failed to find plugin {plugin:?} in path {folders:?}")]
    NoPlugin {
        /// Its type.
        plugin: String,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// A plugin could not be run, or gave no valid answer.
    #[error("plugin type={plugin:?} name={network:?} failed ({command}): {reason}")]
    Run {
        /// The command.
        command: &'static str,
        /// The plugin's type.
        plugin: String,
        /// The network.
        network: String,
        /// Why.
        reason: String,
    },
    /// A plugin reported an error.
    #[error("plugin type={plugin:?} name={network:?} failed ({command}): {message}")]
    Plugin {
        /// The command.
        command: &'static str,
        /// The plugin's type.
        plugin: String,
        /// The network.
        network: String,
        /// CNI's code: 11 is to be tried again.
        code: u64,
        /// Its message, with its details.
        message: String,
    },
    /// A plugin took too long, and was ended.
    #[error("plugin type={plugin:?} name={network:?} did not end within {limit:?} ({command})")]
    Timeout {
        /// The command.
        command: &'static str,
        /// The plugin's type.
        plugin: String,
        /// The network.
        network: String,
        /// The limit.
        limit: Duration,
    },
    /// Nothing is kept of an attachment.
    #[error("there is no result of an ADD for container {container:?}")]
    NoResult {
        /// The container.
        container: String,
    },
    /// What is kept is not valid.
    #[error("invalid cached result {path:?}: {reason}")]
    Cache {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file or folder.
    #[error("cannot {action} {path:?}: {source}")]
    File {
        /// What was to be done.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A fault of this program.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl Error {
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: std::io::Error,
    ) -> Self {
        Self::File { action, path: path.into(), source }
    }
}

fn reasons(rejected: &[String]) -> String {
    rejected.iter().map(|reason| format!("; {reason}")).collect()
}
