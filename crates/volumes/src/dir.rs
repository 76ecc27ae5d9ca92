//! Open directory handles, so that operations below them cannot be redirected: containers may put
//! links and mounts into their volumes at any time. Names are resolved by `openat2` from the open
//! directory, never following a link and never leaving it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir as Listing, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, symlinkat, unlinkat};
use rustix::fs::RenameFlags;

use crate::error::Error;

/// Path resolution below a volume: no links, nothing outside.
const CONFINED: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS);
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// An open directory, and its path for messages.
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// One name in a directory.
pub(super) struct Entry {
    pub(super) name: OsString,
    pub(super) kind: Kind,
}

/// The type of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    Link,
    Other,
}

impl Dir {
    /// Opens a directory whose path no container can change.
    pub(super) fn open_trusted(path: &Path) -> Result<Self, Error> {
        let fd = nix::fcntl::open(path, DIRECTORY, Mode::empty())
            .map_err(|errno| Error::io("open directory", path, errno))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory below this one; it may be the root of another mount.
    pub(super) fn dir(&self, name: impl AsRef<Path>) -> Result<Self, Error> {
        self.open_dir(name.as_ref(), CONFINED)
    }

    /// A directory below this one on the same mount. [`Errno::EXDEV`] if it is another mount.
    pub(super) fn dir_of_same_mount(&self, name: impl AsRef<Path>) -> Result<Self, Error> {
        self.open_dir(name.as_ref(), CONFINED.union(ResolveFlag::RESOLVE_NO_XDEV))
    }

    fn open_dir(&self, name: &Path, resolve: ResolveFlag) -> Result<Self, Error> {
        let fd = self.open(name, DIRECTORY, Mode::empty(), resolve)?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    fn open(
        &self,
        name: &Path,
        flags: OFlag,
        mode: Mode,
        resolve: ResolveFlag,
    ) -> Result<OwnedFd, Error> {
        let how = OpenHow::new().flags(flags).mode(mode).resolve(resolve);
        openat2(&self.fd, name, how).map_err(|errno| self.error("open", name, errno))
    }

    /// The subdirectory of that name, made with exactly that mode if it is absent.
    pub(super) fn make_dir(&self, name: impl AsRef<Path>, mode: u32) -> Result<Self, Error> {
        let name = name.as_ref();
        match self.new_dir(name, mode) {
            Err(error) if error.errno() == Some(Errno::EEXIST) => self.dir(name),
            made => made,
        }
    }

    /// Makes the subdirectory with exactly that mode; [`Errno::EEXIST`] if the name is taken.
    pub(super) fn new_dir(&self, name: impl AsRef<Path>, mode: u32) -> Result<Self, Error> {
        let name = name.as_ref();
        mkdirat(&self.fd, name, Mode::from_bits_truncate(mode))
            .map_err(|errno| self.error("create directory", name, errno))?;
        let made = self.dir(name)?;
        made.set_mode(mode)?;
        Ok(made)
    }

    /// The directories of a relative path, each made if it is absent; the last one is returned,
    /// or `None` for a path without any.
    pub(super) fn make_dirs(&self, path: &Path, mode: u32) -> Result<Option<Self>, Error> {
        let mut last: Option<Self> = None;
        for name in path {
            last = Some(last.as_ref().unwrap_or(self).make_dir(name, mode)?);
        }
        Ok(last)
    }

    /// Makes a file with exactly that mode, owner and group; the name must be free.
    pub(super) fn new_file(
        &self,
        name: &OsStr,
        data: &[u8],
        mode: u32,
        (owner, group): (Option<u32>, Option<u32>),
    ) -> Result<(), Error> {
        let name = Path::new(name);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut file = File::from(self.open(name, flags, private, CONFINED)?);
        file.write_all(data).map_err(|error| Error::io("write", &self.path.join(name), error))?;
        fchown(&file, owner.map(Uid::from_raw), group.map(Gid::from_raw))
            .map_err(|errno| self.error("change owner of", name, errno))?;
        // The mode comes last: a change of owner would clear its set-id bits.
        fchmod(&file, Mode::from_bits_truncate(mode))
            .map_err(|errno| self.error("change mode of", name, errno))
    }

    /// Whether a regular file at that relative path holds exactly that data.
    pub(super) fn holds(&self, path: &Path, data: &[u8]) -> bool {
        // Non-blocking, as it could be a pipe.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let Ok(fd) = self.open(path, flags, Mode::empty(), CONFINED) else { return false };
        let file = File::from(fd);
        let same_size = file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() == data.len() as u64);
        let mut content = Vec::new();
        same_size
            && file.take((data.len() as u64).saturating_add(1)).read_to_end(&mut content).is_ok()
            && content == data
    }

    /// What the link of that name points to; `None` if the name is free or no link.
    pub(super) fn link_target(&self, name: &OsStr) -> Result<Option<OsString>, Error> {
        match nix::fcntl::readlinkat(&self.fd, name) {
            Ok(target) => Ok(Some(target)),
            Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(self.error("read link", name, errno)),
        }
    }

    /// Makes a link; the name must be free.
    pub(super) fn new_link(&self, name: &OsStr, target: &OsStr) -> Result<(), Error> {
        symlinkat(target, &self.fd, name).map_err(|errno| self.error("create link", name, errno))
    }

    /// Renames within this directory, replacing what has the new name.
    pub(super) fn rename(&self, old: &OsStr, new: &OsStr) -> Result<(), Error> {
        nix::fcntl::renameat(&self.fd, old, &self.fd, new)
            .map_err(|errno| self.error("rename", old, errno))
    }

    /// Moves a name of this directory to a free name in another one.
    pub(super) fn move_to(&self, name: &OsStr, to: &Self, new: &OsStr) -> Result<(), Error> {
        rustix::fs::renameat_with(&self.fd, name, &to.fd, new, RenameFlags::NOREPLACE)
            .map_err(|error| self.error("move", name, error))
    }

    /// Removes a name that is no directory. A name that does not exist is no error.
    pub(super) fn remove_file(&self, name: &OsStr) -> Result<(), Error> {
        self.unlink("remove", name, UnlinkatFlags::NoRemoveDir)
    }

    /// Removes an empty directory. A name that does not exist is no error.
    pub(super) fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<(), Error> {
        self.unlink("remove directory", name.as_ref(), UnlinkatFlags::RemoveDir)
    }

    fn unlink(
        &self,
        action: &'static str,
        name: &OsStr,
        flags: UnlinkatFlags,
    ) -> Result<(), Error> {
        match unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.error(action, name, errno)),
        }
    }

    /// Up to `limit` names of this directory.
    pub(super) fn entries(&self, limit: usize) -> Result<Vec<Entry>, Error> {
        let error = |errno| Error::io("list", &self.path, errno);
        let mut listing =
            Listing::openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(error)?;
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let entry = entry.map_err(error)?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                Some(kind) => Kind::of(kind),
                None => self.kind(entry.file_name())?,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            entries.push(Entry { name, kind });
            if entries.len() == limit {
                break;
            }
        }
        Ok(entries)
    }

    /// For file systems whose listings have no file type.
    fn kind(&self, name: &CStr) -> Result<Kind, Error> {
        let stat = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| Error::io("look at", &self.path, errno))?;
        Ok(match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFDIR => Kind::Directory,
            SFlag::S_IFLNK => Kind::Link,
            _ => Kind::Other,
        })
    }

    /// Whether something is mounted at that name.
    pub(super) fn is_mount_point(&self, name: &OsStr) -> Result<bool, Error> {
        let resolve = CONFINED.union(ResolveFlag::RESOLVE_NO_XDEV);
        match self.open(Path::new(name), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty(), resolve) {
            Ok(_) => Ok(false),
            Err(error) => match error.errno() {
                Some(Errno::EXDEV) => Ok(true),
                Some(Errno::ENOENT | Errno::ELOOP) => Ok(false),
                _ => Err(error),
            },
        }
    }

    pub(super) fn stat(&self) -> Result<FileStat, Error> {
        fstat(&self.fd).map_err(|errno| Error::io("look at", &self.path, errno))
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<(), Error> {
        fchmod(&self.fd, Mode::from_bits_truncate(mode))
            .map_err(|errno| Error::io("change mode of", &self.path, errno))
    }

    /// Changes the group of the directory and sets the set-group-ID bit. Owner and group get the
    /// permissions `files`, and may enter it.
    pub(super) fn set_volume_ownership(&self, group: u32, files: u32) -> Result<(), Error> {
        let mode = self.stat()?.st_mode & 0o7777;
        fchown(&self.fd, None, Some(Gid::from_raw(group)))
            .map_err(|errno| Error::io("change group of", &self.path, errno))?;
        self.set_mode(mode | files | 0o2110)
    }

    fn error(
        &self,
        action: &'static str,
        name: impl AsRef<Path>,
        cause: impl Into<io::Error>,
    ) -> Error {
        Error::io(action, &self.path.join(name), cause)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Kind {
    fn of(kind: Type) -> Self {
        match kind {
            Type::Directory => Self::Directory,
            Type::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}
