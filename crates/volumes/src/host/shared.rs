//! The mount that holds the node's directory is shared: what is mounted there later is seen by those who
//! have a copy of it, such as the containers of CSI drivers.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc::{O_DIRECTORY, O_PATH};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tracing::{info, warn};

use super::mounts::{Table, real_dir};
use crate::error::Error;

const NONE: Option<&str> = None;

/// Makes the mount that holds a directory shared, if it is not: the directory becomes a mount of its own
/// for that. What is mounted below stays visible.
pub(crate) fn share(directory: &Path) -> Result<(), Error> {
    let directory = real_dir(directory);
    let table = Table::read()?;
    if table.is_shared(&directory) {
        return Ok(());
    }
    info!(directory = %directory.display(), "making the directory a shared mount");
    if table.has(&directory) {
        return make_shared(&directory);
    }
    let covered = OpenOptions::new()
        .read(true)
        .custom_flags(O_PATH | O_DIRECTORY)
        .open(&directory)
        .map_err(|error| Error::io("open", &directory, error))?;
    let bound = mount(Some(&directory), &directory, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE);
    bound.map_err(|errno| Error::io("bind-mount", &directory, errno))?;
    if let Err(error) = make_shared(&directory) {
        let _ = umount2(&directory, MntFlags::MNT_DETACH);
        return Err(error);
    }
    unmount_covered(&covered, &directory, &table);
    Ok(())
}

fn make_shared(directory: &Path) -> Result<(), Error> {
    let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
    let shared = mount(NONE, directory, NONE, flags, NONE);
    shared.map_err(|errno| Error::io("make rshared", directory, errno))
}

/// Unmounts what is below the new mount, which has a copy of each. Otherwise the directories stay in use
/// for as long as the machine is up, and no path leads to what is mounted on them.
fn unmount_covered(covered: &File, directory: &Path, before: &Table) {
    let way = Path::new("/proc/self/fd").join(covered.as_raw_fd().to_string());
    for point in before.below(directory).iter().rev() {
        let Ok(inside) = point.strip_prefix(directory) else { continue };
        let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
        if let Err(error) = umount2(&way.join(inside), flags) {
            warn!(mount = %point.display(), %error, "a mount stays covered by the shared one");
        }
    }
}
