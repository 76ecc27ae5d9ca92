//! Paths at which the kernel and udev show disks.

use std::path::PathBuf;
use std::time::Duration;

/// Paths of udev and sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) disks: PathBuf,
    pub(crate) sys: PathBuf,
    /// Timeout for a disk to appear after a login.
    pub(crate) device_timeout: Duration,
}

impl Default for Kernel {
    fn default() -> Self {
        let (disks, sys) = ("/dev/disk/by-path".into(), "/sys".into());
        Self { disks, sys, device_timeout: Duration::from_secs(30) }
    }
}
