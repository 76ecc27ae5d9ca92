//! Project quotas: a file system counts what is in a directory, as one project, so that nobody walks it, and files
//! that are deleted and still open count too. Nothing is limited.
//!
//! Which directory is which project is kept in `/etc/projects` and `/etc/projid`, where upstream's kubelet and
//! administrators look for it.

mod files;
mod system;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

pub use self::files::ProjectFiles;

/// The first project that is assigned, as upstream's.
const FIRST: u32 = 1_048_577;

/// What a project counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Makes an empty directory a project of its own, if its file system counts projects; whether it is one now. What is
/// made in it belongs to the project.
///
/// # Errors
/// The files of projects cannot be read or written, or the directory cannot be changed.
pub fn assign(dir: impl AsFd, path: &Path, files: &ProjectFiles) -> io::Result<bool> {
    let dir = dir.as_fd();
    if system::counts_projects(dir).is_err() {
        return Ok(false);
    }
    if project(dir)?.is_some() {
        return Ok(true);
    }
    let is_unused = |id| Ok(system::counted(dir, id)? == Counted::default());
    let id = files.add(path, is_unused)?;
    system::set_project(dir, id)?;
    Ok(true)
}

/// What the project of a directory counts, if [`assign`] made it one: if it is not that of the directory above.
///
/// # Errors
/// The directories cannot be opened, or the kernel does not tell.
pub fn counted(path: &Path) -> io::Result<Option<Counted>> {
    let dir = File::open(path)?;
    let Some(id) = project(dir.as_fd())? else { return Ok(None) };
    let above = File::open(path.join(".."))?;
    if project(above.as_fd())? == Some(id) {
        return Ok(None);
    }
    system::counted(dir.as_fd(), id).map(Some)
}

/// The project of a directory, if it is one of those that are assigned, and what is made in it belongs to it.
fn project(dir: std::os::fd::BorrowedFd<'_>) -> io::Result<Option<u32>> {
    match system::project(dir) {
        Ok((id, inherits)) => Ok(Some(id).filter(|id| inherits && *id >= FIRST)),
        // The file system has no projects.
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, ENOTTY, EOPNOTSUPP};
    matches!(error.raw_os_error(), Some(ENOTTY | EOPNOTSUPP | EINVAL))
}
