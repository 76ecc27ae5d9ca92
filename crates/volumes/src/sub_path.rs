//! Sub-paths: bind mounts a path inside a volume to where the runtime can mount it from. Containers
//! may exchange links below that path at any time, so it is resolved once, by the kernel, to an
//! open file inside of the volume; that file is bind mounted.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, lstat, mkdirat, umask};

use crate::dir::Dir;
use crate::error::{Error, if_exists};
use crate::{layout, remove};

/// The kernel gives up a resolution when something is renamed at the same time.
const ATTEMPTS: usize = 32;
/// As many links as the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// One volume mount of a container that names a path inside its volume.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// The name of the volume's directory.
    pub volume: &'a str,
    /// Its name in the pod, for events.
    pub mount: &'a str,
    /// The volume's path on the host.
    pub volume_path: &'a Path,
    /// The container's name.
    pub container: &'a str,
    /// The mount's index in the container's `volumeMounts`.
    pub index: usize,
    /// The path in the volume: `subPath`, or `subPathExpr` with its variables expanded.
    pub path: &'a str,
}

/// Validates a sub-path.
pub fn validate(path: &str) -> Result<(), Error> {
    let leads_out = |component| matches!(component, Component::RootDir | Component::ParentDir);
    if Path::new(path).components().any(leads_out) {
        return Err(Error::SubPathOut { path: path.to_owned() });
    }
    match path.contains('\0') {
        true => Err(Error::InvalidPath {
            what: "subPath",
            path: path.to_owned(),
            reason: "must not contain NUL",
        }),
        false => Ok(()),
    }
}

/// Opens the path in the volume, made as directories if it is absent, and binds it below the pod's
/// directory. Returns where. An existing bind mount of the same file is kept.
pub(super) fn bind(pod: &Dir, sub_path: SubPath<'_>) -> Result<PathBuf, Error> {
    let hidden = |action: &'static str| {
        move |error: Error| {
            tracing::warn!(
                volume = sub_path.volume, container = sub_path.container, %error, "failed to {action}"
            );
            let (volume, container) = (sub_path.mount.to_owned(), sub_path.container.to_owned());
            Error::SubPath { action, volume, container }
        }
    };
    let (root, path) = (sub_path.volume_path, Path::new(sub_path.path));
    let found = open_volume(root).and_then(|volume| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let file = if_exists(resolve(&volume, root, path, OFlag::O_PATH))?;
        Ok((volume, file))
    });
    let file = match found.map_err(hidden("prepare subPath"))? {
        (_, Some(file)) => file,
        (volume, None) => make(&volume, root, path).map_err(hidden("create subPath directory"))?,
    };
    let parent = layout::sub_paths_dir(pod, sub_path.volume, sub_path.container)?;
    let index = sub_path.index.to_string();
    bind_at(&file, &parent, index.as_ref()).map_err(hidden("prepare subPath"))?;
    Ok(parent.path().join(index))
}

/// Reads a regular file of a volume, following links inside of it. One of more than `limit` bytes
/// is an error.
pub(super) fn read(root: &Path, path: &Path, limit: usize) -> Result<Vec<u8>, Error> {
    // Non-blocking, as it could be a pipe.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
    let file = File::from(resolve(&open_volume(root)?, root, path, flags)?);
    let fail = |error| Error::io("read", &root.join(path), error);
    let size = file.metadata().map_err(fail)?;
    match size.is_file() {
        false => return Err(fail(Errno::EINVAL.into())),
        true if size.len() > limit as u64 => return Err(fail(Errno::EFBIG.into())),
        true => {}
    }
    let mut content = Vec::new();
    file.take(limit as u64).read_to_end(&mut content).map_err(fail)?;
    Ok(content)
}

fn open_volume(root: &Path) -> Result<OwnedFd, Error> {
    open(root, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("open volume", root, errno))
}

/// Makes the directories of `path` that are absent and opens the last one.
fn make(volume: &OwnedFd, root: &Path, path: &Path) -> Result<OwnedFd, Error> {
    let fail = |action, at: &Path| {
        let at = root.join(at);
        move |errno: Errno| Error::io(action, &at, errno)
    };
    // New directories have the mode of the volume.
    let mode = fstat(volume).map_err(fail("look at", Path::new("")))?.st_mode & 0o7777;
    let mode = Mode::from_bits_truncate(mode);
    let (mut parent, mut at) = (None::<OwnedFd>, PathBuf::new());
    for name in path.components() {
        at.push(name);
        let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let next = match if_exists(resolve(volume, root, &at, directory))? {
            Some(next) => next,
            None => {
                let parent = parent.as_ref().unwrap_or(volume);
                let new = match make_open(parent, name.as_os_str(), mode) {
                    Ok(()) => true,
                    Err(Errno::EEXIST) => false,
                    Err(errno) => return Err(fail("create directory", &at)(errno)),
                };
                // From its parent, without links: it is inside of the volume.
                let flags = directory | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_BENEATH);
                let made = openat2(parent, name.as_os_str(), how).map_err(fail("open", &at))?;
                if new {
                    // For the mode bits that mkdir does not set.
                    fchmod(&made, mode).map_err(fail("change mode of", &at))?;
                }
                made
            }
        };
        parent = Some(next);
    }
    parent.ok_or_else(|| fail("open", path)(Errno::ENOENT))
}

/// Creates a directory with its final mode at once, as after a crash its mode is not checked again.
/// The umask is shared by all threads, so this is done in a thread with its own.
pub(super) fn make_open(parent: &OwnedFd, name: &OsStr, mode: Mode) -> nix::Result<()> {
    let make = || {
        unshare(CloneFlags::CLONE_FS)?;
        umask(Mode::empty());
        mkdirat(parent, name, mode)
    };
    thread::scope(|scope| {
        let making = thread::Builder::new().spawn_scoped(scope, make);
        let making = making.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        making.join().unwrap_or(Err(Errno::EIO))
    })
}

/// Opens a path of the volume, following links inside of it, and absolute links with the volume's
/// path on the host.
fn resolve(volume: &OwnedFd, root: &Path, path: &Path, flags: OFlag) -> Result<OwnedFd, Error> {
    let mut path = path.to_owned();
    let mut result = beneath(volume, root, &path, flags);
    for _ in 0..MOST_LINKS {
        if !matches!(&result, Err(error) if error.errno() == Some(Errno::EXDEV)) {
            break;
        }
        let Some(next) = past_link(volume, root, &path) else { break };
        path = next;
        result = beneath(volume, root, &path, flags);
    }
    result
}

/// The same path with its first link that leads outside resolved.
fn past_link(volume: &OwnedFd, root: &Path, path: &Path) -> Option<PathBuf> {
    let mut parent = PathBuf::new();
    let mut rest = path.components();
    while let Some(name) = rest.next() {
        let at = parent.join(name);
        match beneath(volume, root, &at, OFlag::O_PATH) {
            Ok(_) => parent = at,
            Err(error) if error.errno() != Some(Errno::EXDEV) => return None,
            Err(_) => {
                let dir = match parent.as_os_str().is_empty() {
                    true => volume.try_clone().ok()?,
                    false => beneath(volume, root, &parent, OFlag::O_PATH).ok()?,
                };
                let target = PathBuf::from(readlinkat(&dir, name.as_os_str()).ok()?);
                let real = fs::canonicalize(root).ok();
                let target = match target.is_relative() {
                    true => parent.join(target),
                    false => {
                        let real = real.as_deref().and_then(|real| target.strip_prefix(real).ok());
                        target.strip_prefix(root).ok().or(real)?.to_owned()
                    }
                };
                return Some(Path::new(".").join(target).join(rest.as_path()));
            }
        }
    }
    None
}

/// Opens a path of the volume, resolved beneath it.
fn beneath(volume: &OwnedFd, root: &Path, path: &Path, flags: OFlag) -> Result<OwnedFd, Error> {
    let inside = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(inside);
    let mut result = Err(Errno::EAGAIN);
    for _ in 0..ATTEMPTS {
        result = openat2(volume, path, how);
        if !matches!(result, Err(Errno::EAGAIN)) {
            break;
        }
    }
    result.map_err(|errno| Error::io("open", &root.join(path), errno))
}

/// Makes `name` in `parent` a bind mount of the file, replacing another one.
fn bind_at(file: &OwnedFd, parent: &Dir, name: &OsStr) -> Result<(), Error> {
    let path = parent.path().join(name);
    let fail = |action| {
        let path = &path;
        move |errno: Errno| Error::io(action, path, errno)
    };
    let wanted = fstat(file).map_err(fail("look at source of"))?;
    if parent.is_mount_point(name)? {
        let bound = lstat(&path).map_err(fail("look at"))?;
        if (wanted.st_dev, wanted.st_ino) == (bound.st_dev, bound.st_ino) {
            return Ok(());
        }
        remove::unmount(&path)?;
    }
    remove::mount_target(parent, name)?;
    if wanted.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits() {
        parent.new_dir(name, 0o750)?;
    } else {
        parent.new_file(name, &[], 0o640, (None, None))?;
    }
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    mount(Some(source.as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(fail("bind sub-path to"))
}
