//! Host operations: mounts, file systems, loop devices, and system tools.

pub(crate) mod format;
pub(crate) mod kernel;
pub(crate) mod loops;
pub(crate) mod mounts;
pub(crate) mod multipath;
pub(crate) mod shared;
pub(crate) mod tools;

use std::path::PathBuf;

use longshore_base::panics;

use crate::error::Error;
use crate::remove;

/// Runs file operations on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    panics::blocking(work).await.unwrap_or(Err(Error::Interrupted))
}

/// Whether something is mounted at a path.
pub(crate) async fn is_mounted(path: PathBuf) -> Result<bool, Error> {
    blocking(move || Ok(mounts::Table::read()?.has(&path))).await
}

/// Unmounts all mounts at a path.
pub(crate) async fn unmount(path: PathBuf) -> Result<(), Error> {
    blocking(move || remove::unmount(&path)).await
}
