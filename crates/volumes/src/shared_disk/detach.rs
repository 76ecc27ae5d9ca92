//! Disks that could not be detached after their last pod, which does not wait for that. It is tried again in
//! the background, by the next daemon too, until it succeeds or the disk is used again. Until then the disk
//! stays in `volumesInUse`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::panics;
use longshore_base::retry::Delays;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tracing::warn;

use super::SharedDisk;
use crate::devices::{DeviceGuard, NODE_USER};
use crate::error::Error;
use crate::host::blocking;
use crate::layout::{self, names};
use crate::state::State;

/// Pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// The directory of notes below that of the plugin.
const NOTES: &str = "detaching";

/// A disk that is yet to be detached.
#[derive(Serialize, Deserialize)]
struct Pending<D> {
    disk: D,
    volume: String,
}

/// Detaches a disk later. Its lock is held.
pub(super) async fn later<D: SharedDisk>(
    node: &Arc<State>,
    held: &DeviceGuard,
    disk: D,
    volume: String,
    error: &Error,
) {
    let device = held.name();
    warn!(device, "failed to detach a disk, will be retried: {error}");
    if held.has_user(NODE_USER) {
        return;
    }
    held.add_user(NODE_USER);
    let pending = Pending { disk, volume };
    if let Err(error) = pending.write(&node.root).await {
        warn!(device, "a disk may stay attached if the daemon restarts: {error}");
    }
    tokio::spawn(panics::contain(pending.detach(Arc::clone(node))));
}

/// Takes up what an earlier daemon has left.
pub(super) async fn recover<D: SharedDisk>(node: &Arc<State>) {
    let notes = notes_dir::<D>(&node.root);
    let found = blocking(move || {
        let notes = names(&notes)?.into_iter().map(|name| notes.join(name));
        Ok(notes.map(|path| read::<D>(&path)).collect::<Vec<_>>())
    });
    let found = found.await.unwrap_or_else(|error| vec![Err(error)]);
    for pending in found {
        match pending {
            Ok(pending) => {
                node.devices.hold(&pending.disk.device_name()).await.add_user(NODE_USER);
                tokio::spawn(panics::contain(pending.detach(Arc::clone(node))));
            }
            Err(error) => warn!("ignoring a disk that is yet to be detached: {error}"),
        }
    }
}

impl<D: SharedDisk> Pending<D> {
    async fn detach(self, node: Arc<State>) {
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            sleep(delays.next_delay()).await;
            let held = node.devices.hold(&self.disk.device_name()).await;
            // The last pod of a disk that is used again detaches it.
            let is_last = !held.has_other_users(NODE_USER);
            let detached = self.disk.detach(&node, &self.volume, is_last).await;
            if detached.is_ok() {
                let path = self.path(&node.root);
                if let Err(error) = blocking(move || layout::remove_file(&path)).await {
                    warn!("{error}");
                }
                return held.remove_user(NODE_USER);
            }
        }
    }

    async fn write(&self, root: &Path) -> Result<(), Error> {
        let path = self.path(root);
        let note = serde_json::to_vec(self)
            .map_err(|error| Error::io("write", &path, std::io::Error::from(error)))?;
        blocking(move || layout::write_file(&path, &note)).await
    }

    fn path(&self, root: &Path) -> PathBuf {
        notes_dir::<D>(root).join(layout::digest(&[&self.disk.device_name()]))
    }
}

fn notes_dir<D: SharedDisk>(root: &Path) -> PathBuf {
    root.join(layout::PLUGINS).join(D::PLUGIN).join(NOTES)
}

fn read<D: SharedDisk>(path: &Path) -> Result<Pending<D>, Error> {
    let fail = |error: std::io::Error| Error::io("read", path, error);
    serde_json::from_slice(&fs::read(path).map_err(fail)?).map_err(|error| fail(error.into()))
}
