//! Files that are replaced whole, or read up to a limit. All block their thread.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Replaces a file atomically and durably: readers see the old or the new content; only root can read
/// it. Its directory must exist. Blocks until it is on disk.
///
/// # Errors
/// The I/O error; the file is unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, content, 0o600)
}

/// Likewise, of a file that others may read: it has exactly these permissions, whatever the umask of the process.
///
/// # Errors
/// As of [`replace`].
pub fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let write = |draft: &Path| {
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(draft)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    replace_by(&path.with_extension("tmp"), path, write)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Replaces a file atomically, and not durably: after a loss of power it may be empty. Its directory must exist; what
/// it is written to first is a hidden file there.
///
/// # Errors
/// The I/O error; the file is unchanged.
pub fn replace_volatile(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(".tmp");
    replace_by(&path.with_file_name(name), path, |draft| fs::write(draft, content))
}

/// Replaces a file by a draft, of which nothing is left.
fn replace_by(
    draft: &Path,
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let replaced = write(draft).and_then(|()| fs::rename(draft, path));
    if replaced.is_err() {
        let _ = fs::remove_file(draft);
    }
    replaced
}

/// Reads a file of at most so many bytes. Of a FIFO, what it holds.
///
/// # Errors
/// The I/O error, and `FileTooLarge`.
pub fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // Nobody may have opened the other end of a FIFO.
    let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if read as u64 > limit {
        let reason = format!("the file is larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(content)
}

/// The result of an operation on a file that need not be there: `None` when it is not.
///
/// # Errors
/// Other errors of the operation.
pub fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// A descriptor whose readiness can be waited for: a pipe, a socket, a pidfd, an eventfd. Must be called inside a tokio
/// runtime.
///
/// # Errors
/// Of epoll, which refuses regular files.
#[allow(deprecated, reason = "its successor is the same and unsafe, for types that are not std's")]
pub fn awaitable<T: AsRawFd>(file: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    Ok(AsyncFd::try_with_interest(file, interest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for content in ["a long one", "short"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        replace_with_mode(&path, b"for all", 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o666);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_is_kept_when_the_write_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, "old").unwrap();
        fs::create_dir(dir.path().join("state.tmp")).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn volatile_files_are_whole_and_leave_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.b");
        for content in ["a long one", "short"] {
            replace_volatile(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace_volatile(Path::new("/"), b"").is_err());
        // A folder is in the way of the file.
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert!(replace_volatile(&dir.path().join("folder"), b"").is_err());
        assert!(replace(&dir.path().join("folder"), b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_not_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(if_present(fs::read_to_string(&path)).unwrap(), None);
        fs::write(&path, "text").unwrap();
        assert_eq!(if_present(fs::read_to_string(&path)).unwrap().as_deref(), Some("text"));
        // It is there, and no file.
        assert!(if_present(fs::remove_file(dir.path())).is_err());
    }

    #[test]
    fn files_are_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_at_most(&path, 5).unwrap(), b"12345");
        assert_eq!(read_at_most(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let endless = read_at_most(Path::new("/dev/zero"), 4).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_at_most(&fifo, 4).unwrap(), b"");
        let missing = read_at_most(&dir.path().join("none"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
