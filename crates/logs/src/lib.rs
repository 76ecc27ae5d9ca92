//! The logs of containers: files that a runtime writes, and that this node rotates and reads back.
//!
//! `<restarts>.log` is written; rotation puts it away as `<restarts>.log.<time>`, and packs all but
//! the newest of those as `<restarts>.log.<time>.gz`. Together, oldest first, they are one log:
//! [`Log`] reads it for the server, over all its files and across rotations that happen meanwhile;
//! [`tail`] its end for the status of a container; [`rotation`] keeps it small.
//!
//! Current limitations: who follows a log and takes nothing for 64 rotations is cut off, since files
//! that are removed already take space for as long as he holds them.

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

/// Which part of a log is read, and how its lines look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on as the container writes.
    pub follow: bool,
    /// Each line with its time.
    pub timestamps: bool,
    /// Nothing older.
    pub since: Option<Timestamp>,
    /// Only so many last lines, as the runtime wrote them.
    pub tail: Option<u64>,
    /// Only so many bytes.
    pub limit: Option<u64>,
    /// Only that stream.
    pub stream: Option<Stream>,
}

/// Why a log cannot be read; worded as upstream does, for these texts are users' answers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error("failed to try resolving symlinks in path {path:?}: lstat {missing}: {}", go_text(.source))]
    Resolve {
        /// The log.
        path: PathBuf,
        /// The part of its path that is not there.
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

/// An error of the kernel's as Go has it: in lower case, and without its number.
fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
