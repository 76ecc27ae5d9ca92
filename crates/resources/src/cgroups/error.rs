//! Why cgroups are not as they should be.

use std::io;
use std::path::{Path, PathBuf};

/// A cgroup could not be made, set or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory or file is not as it should be.
    #[error("cgroup {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel does not take a value.
    #[error("cgroup {path}: cannot write {value:?}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The cause.
        source: io::Error,
    },
    /// systemd does not do what it is asked for.
    #[error("systemd unit {unit}: {source}")]
    Unit {
        /// The slice.
        unit: String,
        /// The cause.
        source: super::systemd::Error,
    },
    /// The driver is systemd's, and there is no systemd.
    #[error(
        "cgroupDriver: systemd cannot be reached ({0}); on a host without it, set cgroupDriver to \
         cgroupfs here and in the runtime"
    )]
    NoSystemd(String),
    /// A part of a cgroup's name that cannot be one.
    #[error("{0:?} cannot be the name of a cgroup")]
    Name(String),
    /// Cgroup v1 without what cannot be missed.
    #[error("cgroup v1: controllers are not mounted: {0}")]
    NotMounted(String),
    /// A cgroup that should be there is not.
    #[error("cgroup {name:?} has some missing paths: {}", .missing.join(", "))]
    Missing {
        /// The cgroup, as the config names it.
        name: String,
        /// What it lacks.
        missing: Vec<String>,
    },
    /// A setting of the config that cannot be kept to.
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

    /// The same, as the fault of a setting.
    pub fn of_field(self, field: &'static str) -> Self {
        Self::Field { field, source: Box::new(self) }
    }
}
