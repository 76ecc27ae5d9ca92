//! What goes wrong inside the embedded store: a refusal that its caller caused, or the engine.

use std::path::Path;

use crate::Error;

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// Why an operation on the tables did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// Answered to the caller as it is; nothing was written, the engine is well.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The engine failed, and with it the transaction.
    #[error(transparent)]
    Engine(redb::Error),
}

impl Fault {
    /// As callers of the store see it.
    pub(super) fn into_error(self, path: &Path) -> Error {
        match self {
            Fault::Refused(error) => error,
            Fault::Engine(error) => Error::Backend(format!("{}: {error}", path.display())),
        }
    }
}

macro_rules! from_engine {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Fault::Engine(error.into())
            }
        }
    )*};
}

from_engine!(
    redb::Error,
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::CompactionError,
    redb::DatabaseError
);
