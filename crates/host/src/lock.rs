//! One command at a time on one root. `up --foreground` holds the lock for as long as it runs, so `down`
//! and `reset` find it by that.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use longshore_base::files::if_present;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::At;
use crate::{Error, Paths, Result};

/// The lock of a root, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(Flock<File>);

impl Drop for Lock {
    /// What holds the lock next may not have written its number yet.
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
    }
}

impl Lock {
    /// Takes the lock.
    pub(crate) fn take(paths: &Paths) -> Result<Self> {
        match Self::try_take(paths)? {
            Ok(lock) => Ok(lock),
            Err(holder) => {
                let holder = holder.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                Err(Error::refused(format!(
                    "a cluster or another command of longshore runs on {}{holder}: longshore down stops it",
                    paths.root().display()
                )))
            }
        }
    }

    /// Takes the lock, or gives the process that holds it.
    fn try_take(paths: &Paths) -> Result<std::result::Result<Self, Option<i32>>> {
        let path = paths.lock();
        if let Some(dir) = path.parent() {
            // For root alone: whoever can open the file can hold its lock.
            DirBuilder::new().recursive(true).mode(0o700).create(dir).at("create", dir)?;
        }
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(&path).at("open", &path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Its last holder has removed it meanwhile, and another one may hold a new file.
            Ok(held) if !is_at(&held, &path) => Self::try_take(paths),
            Ok(mut held) => {
                let pid = std::process::id().to_string();
                held.set_len(0).and_then(|()| held.write_all(pid.as_bytes())).at("write", &path)?;
                Ok(Ok(Self(held)))
            }
            Err((mut file, nix::Error::EWOULDBLOCK)) => {
                let mut text = String::new();
                (&mut file).take(32).read_to_string(&mut text).at("read", &path)?;
                Ok(Err(text.trim().parse().ok().filter(|pid| *pid > 1)))
            }
            Err((_, error)) => Err(error.into()).at("lock", &path),
        }
    }

    /// Ends whatever holds the lock with SIGTERM, and takes it when that has ended. Returns whether there
    /// was such a process.
    pub(crate) fn take_over(paths: &Paths, patience: Duration) -> Result<(Self, bool)> {
        let start = Instant::now();
        let mut ended = None;
        loop {
            match Self::try_take(paths)? {
                Ok(lock) => return Ok((lock, ended.is_some())),
                // The number is of no use if its process has ended and another one has it.
                Err(Some(pid)) if ended != Some(pid) && has_open(pid, &paths.lock()) => {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
                    ended = Some(pid);
                }
                Err(_) => {}
            }
            if start.elapsed() > patience {
                let pid = ended.map(|pid| format!("process {pid}")).unwrap_or_else(|| "it".into());
                return Err(Error::refused(format!(
                    "the cluster on {} did not stop in {patience:?}: {pid} still runs",
                    paths.root().display()
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Removes the file with its directory, once nothing of the cluster is left.
    pub(crate) fn remove(self, paths: &Paths) -> Result<()> {
        let path = paths.lock();
        if_present(fs::remove_file(&path)).at("remove", &path)?;
        if let Some(dir) = path.parent() {
            // Succeeds if nothing else is in it.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }
}

/// Whether this open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(identity), fs::symlink_metadata(path).map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Whether a process has the file open.
fn has_open(pid: i32, path: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let Some(wanted) = identity(path) else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter().any(|file| identity(&file.path()) == Some(wanted))
}

/// Whether another process holds the lock.
pub(crate) fn is_held(paths: &Paths) -> bool {
    let Ok(file) = File::open(paths.lock()) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::Error::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_held_once_and_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let lock = Lock::take(&paths).unwrap();
        let error = Lock::take(&paths).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains("longshore down"), "{error}");
        assert!(is_held(&paths));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(has_open(own, &paths.lock()));
        assert!(!has_open(own, &dir.path().join("other")) && !has_open(-1, &paths.lock()));
        drop(lock);
        assert!(!has_open(own, &paths.lock()));
        assert!(!is_held(&paths));
        assert_eq!(fs::read(paths.lock()).unwrap(), b"", "nobody holds it");
        let mode = fs::metadata(paths.lock()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let lock = Lock::take(&paths).unwrap();
        let file = File::open(paths.lock()).unwrap();
        assert!(is_at(&file, &paths.lock()));
        lock.remove(&paths).unwrap();
        assert!(!is_at(&file, &paths.lock()));
        assert!(!dir.path().join("run/longshore").exists());
    }
}
