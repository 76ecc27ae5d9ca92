//! `--lock-file`: one node at a time. With `--exit-on-lock-contention` the node exits when another
//! process opens the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use rustix::fs::{FlockOperation, flock};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Poll interval while another process holds the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The lock cannot be acquired or watched.
#[derive(Debug, thiserror::Error)]
#[error("lock file {path}: {source}", path = .path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// The lock, held until this is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for the lock; `None`: stopped before that.
    pub async fn acquire(path: &Path, stop: &CancellationToken) -> Result<Option<Self>, Error> {
        let failed = |source| Error { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(path).map_err(failed)?;
        let mut waits = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { path: path.to_owned(), _file: file })),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if !waits {
                info!(path = %path.display(), "waiting for the lock file, held by another process");
                waits = true;
            }
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                () = stop.cancelled() => return Ok(None),
            }
        }
    }

    /// A future that resolves when another process opens the file. The watch starts at once.
    pub fn contention(&self) -> Result<impl Future<Output = ()> + Send + use<>, Error> {
        let events = self.watch().map_err(|source| Error { path: self.path.clone(), source })?;
        let path = self.path.clone();
        Ok(async move {
            let mut events = events;
            if let Some(Err(error)) = events.next().await {
                warn!(path = %path.display(), %error, "the lock file is not watched any more");
                std::future::pending().await
            }
            info!(path = %path.display(), "another process wants the lock file");
        })
    }

    fn watch(&self) -> io::Result<EventStream<[u8; 1024]>> {
        let inotify = Inotify::init()?;
        inotify.watches().add(&self.path, WatchMask::OPEN)?;
        inotify.into_event_stream([0; 1024])
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn lock_file_is_held_by_one_process() {
        let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let path = directory.path().join("lock");
        let first = Lock::acquire(&path, &stop).await.unwrap().unwrap();
        let second = Lock::acquire(&path, &stop);
        tokio::pin!(second);
        assert!(timeout(POLL_INTERVAL * 2, &mut second).await.is_err());
        drop(first);
        let second = timeout(SOON, second).await.unwrap().unwrap().unwrap();
        stop.cancel();
        assert!(Lock::acquire(&path, &stop).await.unwrap().is_none(), "{second:?}");
        let error = Lock::acquire(&directory.path().join("no/lock"), &stop).await.unwrap_err();
        assert!(error.to_string().contains("no/lock: "), "{error}");
    }

    #[tokio::test]
    async fn lock_file_contention_is_detected() {
        let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let path = directory.path().join("lock");
        let lock = Lock::acquire(&path, &stop).await.unwrap().unwrap();
        let contention = lock.contention().unwrap();
        tokio::pin!(contention);
        assert!(timeout(POLL_INTERVAL, &mut contention).await.is_err());
        drop(File::open(&path).unwrap());
        timeout(SOON, contention).await.unwrap();
    }
}
