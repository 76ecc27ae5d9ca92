//! Traversal of untrusted directory trees of any depth: without recursion, without a descriptor per
//! level, without following links, and on one file system.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory and its identity.
#[derive(Debug)]
pub struct OpenDir {
    fd: OwnedFd,
    /// Device and inode.
    id: (u64, u64),
}

impl OpenDir {
    /// Opens a directory. Links in its path are followed, except the last component.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(openat(CWD, path, DIRECTORY, Mode::empty())?)?)
    }

    fn of(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = fstat(&fd)?;
        Ok(Self { fd, id: (stat.st_dev, stat.st_ino) })
    }

    /// The open directory.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Opens a subdirectory.
    ///
    /// # Errors
    /// `EXDEV` if another file system is mounted there; else as `openat(2)`.
    pub fn child(&self, name: &CString) -> Result<Self, Errno> {
        let child = Self::of(openat(&self.fd, name, DIRECTORY, Mode::empty())?)?;
        if child.id.0 == self.id.0 { Ok(child) } else { Err(Errno::XDEV) }
    }

    /// Device and inode.
    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Opens the parent directory, which must have that identity.
    ///
    /// # Errors
    /// `ESTALE` if this one was moved meanwhile; else as `openat(2)`.
    pub fn above(&self, id: (u64, u64)) -> Result<Self, Errno> {
        let above = Self::of(openat(&self.fd, c"..", DIRECTORY, Mode::empty())?)?;
        if above.id == id { Ok(above) } else { Err(Errno::STALE) }
    }
}

/// Removes a directory tree; of a link, only the link.
///
/// # Errors
/// The first error; what was removed until then stays removed. Missing files are no errors, except
/// `path` itself.
pub fn remove(path: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let root = match OpenDir::open(path) {
        // a link, or a file
        Err(error) if is(&error, Errno::NOTDIR) || is(&error, Errno::LOOP) => {
            return std::fs::remove_file(path);
        }
        root => root?,
    };
    clear(root)?;
    unlinkat(CWD, name(path)?, AtFlags::REMOVEDIR)?;
    Ok(())
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Removes the content of a directory.
fn clear(root: OpenDir) -> Result<(), Errno> {
    let mut here = root;
    // The parent directories: their identity and the name of the subdirectory.
    let mut above: Vec<((u64, u64), CString)> = Vec::new();
    loop {
        if let Some(name) = clear_until_full(&here)? {
            let child = match here.child(&name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                child => child?,
            };
            above.push((here.id, name));
            here = child;
        } else {
            let Some((id, name)) = above.pop() else { return Ok(()) };
            here = here.above(id)?;
            forgive_gone(unlinkat(here.fd(), &name, AtFlags::REMOVEDIR))?;
        }
    }
}

/// Removes files and empty directories; returns the first directory that is not empty.
fn clear_until_full(dir: &OpenDir) -> Result<Option<CString>, Errno> {
    for entry in Dir::read_from(dir.fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(dir.fd(), name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            removed => {
                forgive_gone(removed)?;
                continue;
            }
        }
        match unlinkat(dir.fd(), name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
            removed => forgive_gone(removed)?,
        }
    }
    Ok(None)
}

fn forgive_gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn tree_removal_does_not_follow_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("tree/a/b/c")).unwrap();
        fs::create_dir_all(at("tree/empty")).unwrap();
        for name in ["tree/file", "tree/a/file", "tree/a/b/c/file", "kept"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/kept"), "x").unwrap();
        symlink(at("other"), at("tree/a/link")).unwrap();
        remove(&at("tree")).unwrap();
        assert!(!at("tree").exists());
        assert!(at("kept").exists() && at("other/kept").exists());
        symlink(at("other"), at("link")).unwrap();
        remove(&at("link")).unwrap();
        assert!(at("other/kept").exists() && !at("link").is_symlink());
        assert_eq!(remove(&at("link")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// Finding 13: 25,000 nested directories overflow the stack of `remove_dir_all`.
    #[test]
    fn tree_removal_of_any_depth() {
        // in memory: so many directories take a disk minutes
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut here = OpenDir::open(dir.path()).unwrap();
        for depth in 0..25_000 {
            mkdirat(here.fd(), c"d", Mode::RWXU).unwrap();
            if depth % 5000 == 0 {
                mkdirat(here.fd(), c"beside", Mode::RWXU).unwrap();
            }
            here = here.child(&c"d".to_owned()).unwrap();
        }
        drop(here);
        // a small stack, as of threads of other libraries
        let tree = dir.path().join("d");
        let work = move || remove(&tree).map_err(|error| error.to_string());
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(()));
        assert!(!dir.path().join("d").exists());
    }
}
