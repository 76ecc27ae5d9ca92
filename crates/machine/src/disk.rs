//! How much file systems have, and how much of it is in use.

use std::io;
use std::path::Path;

use rustix::fs::statvfs;

/// How much a file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its device.
    pub device: u64,
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that are left for those who are not root.
    pub available: u64,
    /// Bytes that are in use.
    pub used: u64,
    /// Inodes in all; 0 where they are not counted.
    pub inodes: u64,
    /// Inodes that are left.
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
}

/// Bytes of the file system that holds `path`, or the nearest directory above it that exists.
pub fn disk_capacity(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|path| path.exists())?;
    Some(FileSystem::of(existing).ok()?.capacity)
}
