//! One watch: its position in the history, without a task. The consumer's polling drives it:
//! it fetches from the feed while it keeps up, and from the file when it has fallen behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::time;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Shared;
use super::feed::Tip;
use crate::pull::Pull;
use crate::{Error, Event, Result, Revision, WatchItem};

/// The interval of progress notifications.
const PROGRESS: Duration = Duration::from_secs(5);

pub(super) struct Watcher {
    shared: Arc<Shared>,
    tip: watch::Receiver<Tip>,
    prefix: Arc<str>,
    /// Everything up to here is yielded or in `ready`.
    after: Revision,
    /// The last revision reported to the consumer.
    reported: Revision,
    ready: VecDeque<WatchItem>,
    next_progress: Instant,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, prefix: &str) -> Self {
        let (tip, next_progress) = (shared.feed.subscribe(), time::after(PROGRESS));
        let (prefix, ready) = (prefix.into(), VecDeque::new());
        Watcher { shared, tip, prefix, after: 0, reported: 0, ready, next_progress }
    }

    /// Yields what comes after a revision that can be read.
    pub(super) fn after(mut self, after: Revision) -> Self {
        (self.after, self.reported) = (after, after);
        self
    }

    /// Yields what comes after `newest`, and first says so: only the store knows where "now" is.
    pub(super) fn now(mut self, newest: Revision) -> Self {
        self.ready.push_back(WatchItem::Progress(newest));
        self.after(newest)
    }
}

impl Pull for Watcher {
    async fn pull(&mut self) -> Result<WatchItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            let tip = *self.tip.borrow_and_update();
            if tip.newest > self.after {
                self.fetch().await?;
            } else if !tip.open {
                return Err(Error::Closed);
            } else if let Some(progress) = self.wait().await {
                return Ok(progress);
            }
        }
    }
}

impl Watcher {
    async fn fetch(&mut self) -> Result<()> {
        let (events, after) = match self.shared.feed.since(&self.prefix, self.after) {
            Some(found) => found,
            None => self.read_history().await?,
        };
        self.after = after;
        if let Some(last) = events.last() {
            self.reported = last.revision();
            self.next_progress = time::after(PROGRESS);
        }
        self.ready.extend(events.into_iter().map(WatchItem::Event));
        Ok(())
    }

    async fn read_history(&self) -> Result<(Vec<Event>, Revision)> {
        let (prefix, after) = (self.prefix.clone(), self.after);
        self.shared
            .read(move |snapshot| {
                snapshot.readable(after)?;
                snapshot.tables.history(&prefix, after, snapshot.newest)
            })
            .await
    }

    /// Waits for something new; yields progress when it is time for that.
    async fn wait(&mut self) -> Option<WatchItem> {
        let unreported = self.after > self.reported;
        tokio::select! {
            // the sender lives in `shared`, so this is a change
            _ = self.tip.changed() => None,
            () = tokio::time::sleep_until(self.next_progress), if unreported => {
                self.reported = self.after;
                self.next_progress = time::after(PROGRESS);
                Some(WatchItem::Progress(self.after))
            }
        }
    }
}
