//! Errors of cgroups.

use std::io;
use std::path::{Path, PathBuf};

/// A cgroup could not be created, updated or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O error.
    #[error("cgroup {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel rejected a value.
    #[error("cgroup {path}: cannot write {value:?}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The cause.
        source: io::Error,
    },
    /// A systemd call failed.
    #[error("systemd unit {unit}: {source}")]
    Unit {
        /// The slice.
        unit: String,
        /// The cause.
        source: super::systemd::Error,
    },
    /// systemd is not available for its driver.
    #[error(
        "cgroupDriver: systemd cannot be reached ({0}); on a host without it, set cgroupDriver to \
         cgroupfs here and in the runtime"
    )]
    NoSystemd(String),
    /// Invalid cgroup name.
    #[error("{0:?} cannot be the name of a cgroup")]
    Name(String),
    /// Required cgroup v1 controllers are not mounted.
    #[error("cgroup v1: controllers are not mounted: {0}")]
    NotMounted(String),
    /// A required cgroup does not exist.
    #[error("cgroup {name:?} has some missing paths: {}", .missing.join(", "))]
    Missing {
        /// The cgroup, as the config names it.
        name: String,
        /// What it lacks.
        missing: Vec<String>,
    },
    /// `systemCgroups` is the root.
    #[error("system container cannot be root (\"/\")")]
    SystemRoot,
    /// A setting of the config cannot be applied.
    #[error("{field}: {source}")]
    Field {
        /// The setting.
        field: &'static str,
        /// Why.
        source: Box<Error>,
    },
}

impl Error {
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { path: path.to_owned(), source }
    }

    /// The same, attributed to a setting.
    pub fn of_field(self, field: &'static str) -> Self {
        Self::Field { field, source: Box::new(self) }
    }
}
