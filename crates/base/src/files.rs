//! Atomic file replacement.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

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
    let draft = path.with_extension("tmp");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
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
}
