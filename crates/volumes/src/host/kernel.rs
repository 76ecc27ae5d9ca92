//! Paths at which the kernel and udev show disks.

use std::path::PathBuf;
use std::time::Duration;

/// Paths of udev and sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Links to disks by their path...
    pub(crate) disks: PathBuf,
    /// ...and by their identifier.
    pub(crate) ids: PathBuf,
    pub(crate) dev: PathBuf,
    pub(crate) sys: PathBuf,
    /// Timeout for a disk to appear after a login or a scan.
    pub(crate) device_timeout: Duration,
    /// Timeout for a multipath device to appear over the paths to a disk.
    pub(crate) multipath_timeout: Duration,
}

impl Default for Kernel {
    fn default() -> Self {
        let (disks, ids) = ("/dev/disk/by-path".into(), "/dev/disk/by-id".into());
        let (dev, sys) = ("/dev".into(), "/sys".into());
        Self {
            disks,
            ids,
            dev,
            sys,
            device_timeout: Duration::from_secs(30),
            multipath_timeout: Duration::from_secs(10),
        }
    }
}
