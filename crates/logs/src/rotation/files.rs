//! Renames and removes the files of a log.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use longshore_base::files::if_present;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::Error;
use crate::files::{Files, Rotated, next_stamp};

/// Removes rotated files beyond that number, oldest first, so that readers are not overtaken.
pub(super) fn remove_excess(log: &Path, keep: usize) -> Result<(), Error> {
    let rotated = list(log)?.rotated;
    for excess in &rotated[..rotated.len().saturating_sub(keep)] {
        // files being compressed have two names
        for packed in [false, true] {
            remove(&Rotated { packed, ..excess.clone() }.path(log))?;
        }
    }
    Ok(())
}

/// Rotates the log; returns its new name, which sorts last.
pub(super) fn rotate_file(log: &Path) -> Result<PathBuf, Error> {
    let stamp = next_stamp(&Zoned::now(), list(log)?.rotated.last());
    let rotated = Rotated { stamp, packed: false }.path(log);
    fs::rename(log, &rotated).map_err(Error::at(log))?;
    Ok(rotated)
}

/// Undoes [`rotate_file`], unless there is a new log already.
pub(super) fn take_back(rotated: &Path, log: &Path) -> Result<(), Error> {
    match renameat_with(CWD, rotated, CWD, log, RenameFlags::NOREPLACE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        // not supported by all file systems
        Err(Errno::INVAL | Errno::NOSYS) if !log.exists() => {
            fs::rename(rotated, log).map_err(Error::at(rotated))
        }
        Err(error) => Err(Error::at(rotated)(error.into())),
    }
}

pub(super) fn list(log: &Path) -> Result<Files, Error> {
    Files::list(log).map_err(Error::at(log))
}

/// Removes a file that may not exist.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    if_present(fs::remove_file(path)).map(drop).map_err(Error::at(path))
}
