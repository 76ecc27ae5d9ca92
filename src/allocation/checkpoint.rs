//! Checkpoint of the resources of pods. Changes are batched and written by one task.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::files::{self, if_present};
use longshore_base::panics;
use longshore_pod::resize::{self, PodResources};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

/// Delay of writes, to batch changes.
const WRITE_DELAY: Duration = Duration::from_millis(20);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(5);

/// The checkpoint cannot be restored.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {source}, please drain this node and delete pod \
     resource information checkpoint file {path:?} before restarting"
)]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: Damage,
}

/// Damage of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not hold what was written.
    #[error(transparent)]
    Content(#[from] resize::CheckpointError),
}

/// Resources of pods, by UID.
pub(super) struct Checkpoint {
    path: PathBuf,
    entries: Mutex<BTreeMap<String, Arc<PodResources>>>,
    /// Counts changes.
    changes: watch::Sender<u64>,
    /// Changes for which a write was attempted.
    settled: watch::Sender<u64>,
    /// Changes on disk. Held during writes.
    on_disk: Arc<Mutex<u64>>,
}

impl Checkpoint {
    /// Read the file, if there is one.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let entries = match if_present(std::fs::read(&path)) {
            Ok(Some(content)) => resize::decode(&content).map_err(Damage::from),
            Ok(None) => Ok(BTreeMap::new()),
            Err(error) => Err(error.into()),
        };
        let entries = match entries {
            Ok(entries) => Mutex::new(entries),
            Err(source) => return Err(Error { path, source }),
        };
        let (changes, settled) = (watch::Sender::new(0), watch::Sender::new(0));
        Ok(Self { path, entries, changes, settled, on_disk: Arc::default() })
    }

    pub(super) fn get(&self, uid: &str) -> Option<Arc<PodResources>> {
        self.entries().get(uid).cloned()
    }

    pub(super) fn set(&self, uid: &str, resources: PodResources) {
        self.entries().insert(uid.to_owned(), Arc::new(resources));
        self.changes.send_modify(|changes| *changes = changes.saturating_add(1));
    }

    /// Removes a pod from memory; the file follows with the next change.
    pub(super) fn remove(&self, uid: &str) {
        self.entries().remove(uid);
    }

    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.entries().retain(|uid, _| keep(uid));
    }

    /// Waits until a write of all changes so far was attempted.
    pub(super) async fn written(&self) {
        let changes = *self.changes.borrow();
        let mut settled = self.settled.subscribe();
        // Nobody writes any more when the daemon stops.
        let _ = settled.wait_for(|settled| *settled >= changes).await;
    }

    /// Writes changes. Never ends.
    pub(super) async fn keep(&self) {
        let mut changes = self.changes.subscribe();
        let mut failing = false;
        loop {
            if changes.wait_for(|changes| *changes > *self.settled.borrow()).await.is_err() {
                return;
            }
            sleep(WRITE_DELAY).await;
            while !self.write().await {
                if !failing {
                    failing = true;
                    warn!(path = %self.path.display(), "cannot write checkpoint of pod resources, retrying");
                }
                sleep(RETRY).await;
            }
            failing = false;
        }
    }

    /// Writes the checkpoint; returns whether that succeeded.
    pub(super) async fn write(&self) -> bool {
        let changes = *self.changes.borrow();
        let content = resize::encode(&self.entries()).map_err(io::Error::other);
        let (path, on_disk) = (self.path.clone(), self.on_disk.clone());
        let write = move || {
            // A cancelled write still completes.
            let mut on_disk = on_disk.lock();
            if *on_disk < changes {
                files::replace(&path, &content?)?;
                *on_disk = changes;
            }
            Ok(())
        };
        let written: io::Result<()> = panics::try_blocking(write).await;
        self.settled.send_if_modified(|settled| std::mem::replace(settled, changes) != changes);
        if let Err(error) = &written {
            debug!(path = %self.path.display(), %error, "checkpoint not written");
        }
        written.is_ok()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Arc<PodResources>>> {
        self.entries.lock()
    }
}
