//! chmod without following links: a file may have been replaced by a link.

use std::ffi::{CStr, c_long};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, openat};
use rustix::io::Errno;
use rustix::path::DecInt;

/// The system call that does it at once: Linux 6.6, the same number on every architecture. Neither
/// rustix nor nix has it, and of C libraries only the newest.
const FCHMODAT2: c_long = 452;

/// The method of changing modes.
pub(super) struct Modes {
    /// `/proc/self/fd`: without fchmodat2, modes are changed through an `O_PATH` descriptor.
    descriptors: OwnedFd,
    use_fchmodat2: AtomicBool,
}

impl Modes {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = openat(CWD, "/proc/self/fd", flags, Mode::empty())?;
        Ok(Self { descriptors, use_fchmodat2: AtomicBool::new(true) })
    }

    /// Changes the mode of a file in an open directory; an error if it is a link.
    pub(super) fn change(&self, dir: &OwnedFd, name: &CStr, mode: u32) -> Result<(), Errno> {
        if self.use_fchmodat2.load(Ordering::Relaxed) {
            match fchmodat2(dir, name, mode) {
                // EPERM by seccomp filters that do not know it.
                Err(Errno::NOSYS | Errno::PERM) => {
                    self.use_fchmodat2.store(false, Ordering::Relaxed)
                }
                done => return done,
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty())?;
        let number = DecInt::from_fd(file.as_fd());
        let mode = Mode::from_raw_mode(mode);
        chmodat(&self.descriptors, number.as_c_str(), mode, AtFlags::empty())
    }
}

#[allow(unsafe_code, reason = "no crate that is kept well has this system call")]
fn fchmodat2(dir: &OwnedFd, name: &CStr, mode: u32) -> Result<(), Errno> {
    let (dir, flags) = (dir.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the descriptor is open and the name ends with NUL; both outlive the call, which reads
    // the name and writes nothing to memory.
    let done = unsafe { libc::syscall(FCHMODAT2, dir, name.as_ptr(), mode, flags) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn chmod_does_not_follow_links_as_root() {
        let root = tempfile::tempdir().unwrap();
        let (plain, target) = (root.path().join("plain"), root.path().join("target"));
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let dir = OwnedFd::from(File::open(root.path()).unwrap());
        for use_fchmodat2 in [true, false] {
            for file in [&plain, &target] {
                fs::write(file, "").unwrap();
                fs::set_permissions(file, fs::Permissions::from_mode(0o000)).unwrap();
            }
            symlink(&target, root.path().join("link")).unwrap();
            let modes =
                Modes { use_fchmodat2: AtomicBool::new(use_fchmodat2), ..Modes::new().unwrap() };
            modes.change(&dir, c"plain", 0o2640).unwrap();
            assert_eq!(mode(&plain), 0o2640);
            modes.change(&dir, c"link", 0o666).unwrap_err();
            assert_eq!(mode(&target), 0);
            assert_eq!(modes.change(&dir, c"none", 0o666), Err(Errno::NOENT));
            fs::remove_file(root.path().join("link")).unwrap();
        }
    }
}
