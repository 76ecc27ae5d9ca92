//! Watches a log with inotify, without polling.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tracing::debug;

use super::files::{Name, Rotated};

/// Poll interval without inotify watches.
const LOOK: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Data and rotations.
    Lines,
    /// Only rotations, while the reader is slow.
    Rotations,
}

/// What has happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The log may have been rotated.
    pub(super) rotated: bool,
    /// Timestamps of files that the runtime has closed.
    pub(super) closed: Vec<String>,
}

pub(super) struct Watch {
    directory: PathBuf,
    name: OsString,
    /// `None`: only polling.
    events: Option<EventStream<[u8; 1024]>>,
    awaited: Option<Awaited>,
}

impl Watch {
    /// Watches the log from now on: nothing before [`Watch::next`] is missed.
    pub(super) fn new(log: &Path) -> Self {
        let events = Inotify::init().and_then(|inotify| inotify.into_event_stream([0; 1024]));
        let mut watch = Self {
            directory: log.parent().unwrap_or(Path::new("/")).to_owned(),
            name: log.file_name().unwrap_or_default().to_owned(),
            events: events.inspect_err(|error| debug!(%error, "no watch")).ok(),
            awaited: None,
        };
        watch.expect(Awaited::Lines);
        watch
    }

    /// Sets what is waited for. Earlier events may be lost.
    pub(super) fn expect(&mut self, awaited: Awaited) {
        let Some(events) = self.events.as_ref().filter(|_| self.awaited != Some(awaited)) else {
            return;
        };
        // Of the directory, as a rotated log is another file in it. A file that is closed after its
        // renaming is complete.
        let rotations = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE;
        let mask = match awaited {
            Awaited::Lines => rotations | WatchMask::MODIFY,
            Awaited::Rotations => rotations,
        };
        match events.watches().add(&self.directory, mask) {
            Ok(_) => self.awaited = Some(awaited),
            Err(error) => self.give_up(&error),
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        debug!(directory = %self.directory.display(), %error, "a log cannot be watched");
        self.events = None;
    }

    /// Waits for the next change; returns all changes so far.
    pub(super) async fn next(&mut self) -> Seen {
        let mut seen = Seen::default();
        let mut notified = false;
        while let Some(events) = &mut self.events {
            let event = match notified {
                false => events.next().await,
                true => match events.next().now_or_never() {
                    None => return seen,
                    Some(event) => event,
                },
            };
            match event {
                Some(Ok(event)) => {
                    let name = event.name.as_deref().unwrap_or_default();
                    let name = Name::parse(name.as_encoded_bytes(), self.name.as_encoded_bytes());
                    notified |= seen.take(event.mask, name);
                }
                Some(Err(error)) => self.give_up(&error),
                None => self.give_up(&io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if !notified {
            tokio::time::sleep(LOOK).await;
        }
        Seen { rotated: true, ..seen }
    }
}

impl Seen {
    /// Whether an event is relevant.
    fn take(&mut self, mask: EventMask, name: Option<Name>) -> bool {
        if mask.contains(EventMask::Q_OVERFLOW) {
            self.rotated = true;
            return true;
        }
        match name {
            Some(Name::Log) if mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) => {
                self.rotated = true;
                true
            }
            Some(Name::Rotated(Rotated { stamp, packed: false }))
                if mask.contains(EventMask::CLOSE_WRITE) =>
            {
                self.closed.push(stamp);
                self.rotated = true;
                true
            }
            Some(Name::Log | Name::Rotated(_)) => mask.contains(EventMask::MODIFY),
            Some(Name::Draft) | None => false,
        }
    }
}
