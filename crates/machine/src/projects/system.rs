//! The system calls: `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` and `quotactl_fd`, which Linux has since 5.14.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, c_long, c_void};
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

use super::Counted;

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqinfo` of `linux/quota.h`.
#[repr(C)]
struct Info {
    block_grace: u64,
    inode_grace: u64,
    flags: u32,
    valid: u32,
}

/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;
/// `PRJQUOTA`.
const PROJECTS: u32 = 2;
/// `Q_GETINFO`.
const GET_INFO: u32 = 0x0080_0005;
/// `Q_GETQUOTA`.
const GET_QUOTA: u32 = 0x0080_0007;

const GET: rustix::ioctl::Opcode = opcode::read::<Attributes>(b'X', 31);
const SET: rustix::ioctl::Opcode = opcode::write::<Attributes>(b'X', 32);

/// The project of a directory, and whether what is made in it belongs to it.
pub(super) fn project(dir: BorrowedFd<'_>) -> io::Result<(u32, bool)> {
    let attributes = attributes(dir)?;
    Ok((attributes.project, attributes.flags & INHERIT != 0))
}

pub(super) fn set_project(dir: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let before = attributes(dir)?;
    let attributes = Attributes { project, flags: before.flags | INHERIT, ..before };
    #[allow(unsafe_code, reason = "no crate wraps it")]
    // SAFETY: the kernel reads a `struct fsxattr`, which is what is passed.
    Ok(unsafe { ioctl(dir, Setter::<SET, Attributes>::new(attributes)) }?)
}

fn attributes(dir: BorrowedFd<'_>) -> io::Result<Attributes> {
    #[allow(unsafe_code, reason = "no crate wraps it")]
    // SAFETY: the kernel writes a `struct fsxattr`, which is what there is room for; any bytes are one.
    Ok(unsafe { ioctl(dir, Getter::<GET, Attributes>::new()) }?)
}

/// An error, unless the file system counts projects.
pub(super) fn counts_projects(dir: BorrowedFd<'_>) -> io::Result<()> {
    quotactl::<Info>(dir, GET_INFO, 0).map(drop)
}

/// What a project of the directory's file system counts; one that does not exist counts nothing.
pub(super) fn counted(dir: BorrowedFd<'_>, project: u32) -> io::Result<Counted> {
    match quotactl::<libc::dqblk>(dir, GET_QUOTA, project) {
        Ok(quota) => Ok(Counted { bytes: quota.dqb_curspace, inodes: quota.dqb_curinodes }),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Counted::default()),
        Err(error) => Err(error),
    }
}

/// `T` is the structure that the command writes; any bytes are one.
fn quotactl<T>(dir: BorrowedFd<'_>, command: u32, project: u32) -> io::Result<T> {
    let command = (command << 8) | PROJECTS;
    let mut answer = MaybeUninit::<T>::zeroed();
    #[allow(unsafe_code, reason = "no crate wraps it")]
    // SAFETY: the callers name the structure of the command, which lives until the call is over.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            c_long::from(dir.as_raw_fd()),
            c_long::from(command),
            c_long::from(project),
            answer.as_mut_ptr().cast::<c_void>(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(unsafe_code, reason = "as above")]
    // SAFETY: all of it was zero, and any bytes are one.
    Ok(unsafe { answer.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Attributes>(), size_of::<Info>()), (28, 24));
        assert_eq!(size_of::<libc::dqblk>(), 72);
        assert_eq!((GET, SET), (0x801c_581f, 0x401c_5820));
    }
}
