//! What can go wrong on a test host, said so that the reader knows what to do about it.
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

/// A failure of the test host's machinery (not of what is tested on it).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, directory or socket could not be worked with.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A helper program could not be started or said no.
    #[error("`{command}`: {message}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status and the end of what it wrote to stderr.
        message: String,
    },
    /// A daemon left although it should be running.
    #[error("{name} ended ({status}); the end of its log:\n{tail}")]
    Ended {
        /// The daemon's name.
        name: String,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        tail: String,
    },
    /// Something did not come true in time.
    #[error("gave up after {after:?} waiting for {what}{last}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// What the last attempt said, led by `: `, or nothing.
        last: String,
    },
    /// A program of this project has not been built.
    #[error(
        "{name} is not built (looked in {}): run `cargo build --workspace --bins` first, \
         or name its folder in LONGSHORE_BIN_DIR", looked_in.display()
    )]
    NotBuilt {
        /// The program.
        name: String,
        /// Where it should be.
        looked_in: PathBuf,
    },
    /// The machine lacks something that a host needs.
    #[error("this machine cannot carry a test host: {0}")]
    Machine(String),
    /// An image could not be put together.
    #[error("image {reference}: {message}")]
    Image {
        /// The image's name.
        reference: String,
        /// Why.
        message: String,
    },
    /// A registry refused what was asked of it, or was not there.
    #[error("{call}: {message}")]
    Registry {
        /// The HTTP call.
        call: String,
        /// What it said.
        message: String,
    },
    /// Leftovers were found.
    #[error("left behind:\n{}", Lines(.0))]
    LeftBehind(Vec<String>),
}

/// The result of an operation on a test host.
pub type Result<T, E = Error> = std::result::Result<T, E>;

struct Lines<'a>(&'a [String]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Gives an I/O error the path that it is about.
pub(crate) trait AtPath<T> {
    fn at(self, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> AtPath<T> for std::result::Result<T, E> {
    fn at(self, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|source| Error::Io { path: path.as_ref().into(), source: source.into() })
    }
}
