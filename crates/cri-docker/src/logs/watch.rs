//! One inotify instance for the logs of all containers.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use inotify::{Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// Bytes for events that are read at once.
const BUFFER: usize = 4096;

/// Watches files.
pub(super) struct Watcher {
    watches: Mutex<Watches>,
    waiting: Arc<Mutex<HashMap<WatchDescriptor, Weak<Notify>>>>,
    _events: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Watcher {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let waiting: Arc<Mutex<HashMap<WatchDescriptor, Weak<Notify>>>> = Arc::default();
        let mut events = inotify.into_event_stream(vec![0; BUFFER])?;
        let woken = Arc::clone(&waiting);
        let events = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Ok(event) = event else { continue };
                let mut waiting = woken.lock();
                if let Some(notify) = waiting.get(&event.wd).and_then(Weak::upgrade) {
                    notify.notify_one();
                }
                if event.mask.contains(inotify::EventMask::IGNORED) {
                    waiting.remove(&event.wd);
                } else if event.mask.contains(inotify::EventMask::Q_OVERFLOW) {
                    waiting
                        .values()
                        .filter_map(Weak::upgrade)
                        .for_each(|notify| notify.notify_one());
                }
            }
        });
        Ok(Arc::new(Self {
            watches: Mutex::new(watches),
            waiting,
            _events: AbortOnDropHandle::new(events),
        }))
    }

    /// Wakes `notify` when the file is written to, renamed or removed; `None` when it is not there.
    pub(super) fn add(&self, file: &Path, notify: &Arc<Notify>) -> Option<()> {
        let mask =
            WatchMask::MODIFY | WatchMask::MOVE_SELF | WatchMask::DELETE_SELF | WatchMask::ATTRIB;
        // Locked first: an event comes after its receiver is known.
        let mut waiting = self.waiting.lock();
        let watch = self.watches.lock().add(file, mask).ok()?;
        waiting.insert(watch, Arc::downgrade(notify));
        Some(())
    }
}
