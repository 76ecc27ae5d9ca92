//! The newest changes, kept in memory so that watchers that keep up never touch the disk. The
//! writer publishes, watchers come and fetch: none of them can hold up the writer or make it
//! keep more than [`KEPT`].

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::{Event, KeyValue, Revision};

/// What the changes kept may weigh together, in bytes.
const KEPT: usize = 2 << 20;

/// How far the store has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tip {
    pub(super) newest: Revision,
    pub(super) open: bool,
}

/// The tail of the history.
pub(super) struct Feed {
    recent: Mutex<Recent>,
    tip: watch::Sender<Tip>,
}

/// Changes of every revision after `floor`, oldest first.
struct Recent {
    floor: Revision,
    events: VecDeque<Arc<Event>>,
    weight: usize,
}

impl Feed {
    pub(super) fn new(newest: Revision) -> Self {
        let recent = Recent { floor: newest, events: VecDeque::new(), weight: 0 };
        Feed { recent: Mutex::new(recent), tip: watch::Sender::new(Tip { newest, open: true }) }
    }

    /// Adds the changes of one commit, in order and without a gap to what was there.
    pub(super) fn publish(&self, events: impl IntoIterator<Item = Arc<Event>>) {
        let mut recent = self.recent();
        recent.extend(events);
        let newest = recent.newest();
        drop(recent);
        self.tip.send_modify(|tip| tip.newest = newest);
    }

    /// Restarts at a revision: what was committed up to it must be read from the file.
    pub(super) fn reset(&self, newest: Revision) {
        *self.recent() = Recent { floor: newest, events: VecDeque::new(), weight: 0 };
        self.tip.send_modify(|tip| tip.newest = newest);
    }

    /// Ends every watch.
    pub(super) fn close(&self) {
        self.tip.send_modify(|tip| tip.open = false);
    }

    pub(super) fn tip(&self) -> Tip {
        *self.tip.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Tip> {
        self.tip.subscribe()
    }

    /// Changes to keys with `prefix` after a revision, and up to which revision they are complete.
    /// `None` if the feed does not reach back so far.
    pub(super) fn since(&self, prefix: &str, after: Revision) -> Option<(Vec<Event>, Revision)> {
        let recent = self.recent();
        let skip = usize::try_from(after.checked_sub(recent.floor)?).ok()?;
        let matching =
            recent.events.iter().skip(skip).filter(|event| event.key().starts_with(prefix));
        Some((matching.map(|event| Event::clone(event)).collect(), recent.newest().max(after)))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock()
    }
}

impl Recent {
    fn newest(&self) -> Revision {
        self.floor.saturating_add(Revision::try_from(self.events.len()).unwrap_or(0))
    }

    fn extend(&mut self, events: impl IntoIterator<Item = Arc<Event>>) {
        for event in events {
            self.weight += weight(&event);
            self.events.push_back(event);
        }
        while self.weight > KEPT {
            let Some(oldest) = self.events.pop_front() else { break };
            self.weight -= weight(&oldest);
            self.floor = self.floor.saturating_add(1);
        }
    }
}

fn weight(event: &Event) -> usize {
    let of = |kv: &KeyValue| kv.key.len() + kv.value.len();
    let versions = match event {
        Event::Put { current, previous } => of(current) + previous.as_ref().map_or(0, of),
        Event::Delete { previous, .. } => of(previous),
    };
    versions + size_of::<Event>()
}
