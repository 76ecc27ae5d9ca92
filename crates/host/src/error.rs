//! Errors of all commands: one line, which names the thing, and says what to do where that is known.

use std::io;
use std::path::{Path, PathBuf};

/// The result of a command's part.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was tried, such as "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file's content.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another program, which failed.
    #[error("{program}: {reason}")]
    Program {
        /// Its name.
        program: String,
        /// Why it failed.
        reason: String,
    },
    /// The command line, or what the machine is: this is not possible here.
    #[error("{0}")]
    Refused(String),
    /// The cluster's answer, or the lack of one.
    #[error("{what}: {reason}")]
    Cluster {
        /// What was wanted of it.
        what: String,
        /// Why there is none.
        reason: String,
    },
    /// A signal ended the command before it was done.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }

    pub(crate) fn cluster(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Cluster { what: what.into(), reason: reason.to_string() }
    }

    /// Of a request to the apiserver: its own words, or what kept the request from it.
    pub(crate) fn api(what: impl Into<String>, error: &kube::Error) -> Self {
        Self::cluster(what, reason(error))
    }

    pub(crate) fn program(program: &str, reason: impl ToString) -> Self {
        Self::Program { program: program.to_owned(), reason: reason.to_string() }
    }
}

/// PURE: why a request failed, in one line.
pub(crate) fn reason(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error
        && !status.message.is_empty()
    {
        return crate::tokens::printable(&status.message);
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    crate::tokens::printable(&text)
}

/// Gives an I/O error its path.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source })
    }
}
