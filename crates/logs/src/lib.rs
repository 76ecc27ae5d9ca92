//! Container logs: files written by the runtime, which the node rotates and reads.
//!
//! The runtime writes `<restarts>.log`; rotation renames it to `<restarts>.log.<time>`, and compresses
//! all but the newest of those to `<restarts>.log.<time>.gz`. [`Log`] reads all of them in order, also
//! during rotations; [`tail`] reads the end for container statuses; [`rotation`] bounds the size.
//!
//! Current limitations: a reader that reads nothing for 64 rotations is disconnected, since removed
//! files take space while it holds them.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod chain;
mod files;
mod follow;
mod format;
mod lines;
mod read;
pub mod rotation;
mod segment;
mod start;
#[cfg(test)]
mod tests;
mod watch;

use std::io;
use std::path::PathBuf;

pub use follow::Log;
pub use format::Stream;
use k8s_openapi::jiff::Timestamp;
pub use read::tail;

/// Options of reading a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Follow the log.
    pub follow: bool,
    /// Prefix lines with their time.
    pub timestamps: bool,
    /// Only lines since then.
    pub since: Option<Timestamp>,
    /// Only that number of last lines.
    pub tail: Option<u64>,
    /// Only that number of bytes.
    pub limit: Option<u64>,
    /// Only that stream.
    pub stream: Option<Stream>,
}

/// Errors of reading a log, worded as upstream's, as users see them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error("failed to try resolving symlinks in path {path:?}: lstat {missing}: {}", go_text(.source))]
    Resolve {
        /// The log.
        path: PathBuf,
        /// The part of its path that does not exist.
        missing: String,
        /// The cause.
        source: io::Error,
    },
    /// It cannot be opened.
    #[error("failed to open log file {path:?}: {}", go_text(.source))]
    Open {
        /// The log.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// An operating system error in the format of Go: lower case, without the number.
fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
