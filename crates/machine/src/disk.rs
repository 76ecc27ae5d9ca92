//! Capacity and usage of file systems.

use std::io;
use std::path::Path;

use rustix::fs::statvfs;

/// Capacity and usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its device.
    pub device: u64,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
    /// Used bytes.
    pub used: u64,
    /// Inodes; 0 if unlimited.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl FileSystem {
    /// The file system of a path; blocks.
    ///
    /// # Errors
    /// The kernel's, without the path.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::stat(path)?;
        let all = statvfs(path)?;
        Ok(Self {
            device: stat.st_dev,
            capacity: all.f_blocks.saturating_mul(all.f_frsize),
            available: all.f_bavail.saturating_mul(all.f_frsize),
            used: all.f_blocks.saturating_sub(all.f_bfree).saturating_mul(all.f_frsize),
            inodes: all.f_files,
            inodes_free: all.f_ffree,
        })
    }

    /// The same of a path that need not exist: that of its nearest parent that does.
    ///
    /// # Errors
    /// As [`FileSystem::of`].
    pub fn of_nearest(path: &Path) -> io::Result<Self> {
        Self::of(path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")))
    }
}

/// Capacity of the file system of `path`, or of its nearest existing parent.
pub fn disk_capacity(path: &Path) -> Option<u64> {
    Some(FileSystem::of_nearest(path).ok()?.capacity)
}
