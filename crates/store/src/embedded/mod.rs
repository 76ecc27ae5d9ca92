//! The store in a single file: MVCC over redb's copy-on-write B-trees. One thread writes
//! ([`writer`]), readers work on snapshots and never wait for fsync, watchers pull from a small
//! tail in memory ([`feed`]) or from the file. The choice of engine: `docs/store-engine.md`.
//!
//! Current limitations: giving space back (after compaction, when more than half of the file is
//! free) makes reads and writes wait while the engine moves pages. `ttl` goes by the wall clock.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use longshore_base::panics;
use tokio::sync::{Semaphore, oneshot};

use crate::backup::Entry;
use crate::pull::Pull;
use crate::{
    Error, Event, Expect, KeyValue, ListOptions, Page, Result, Revision, Store, WatchItem,
};
use feed::Feed;
use file::{Snapshot, StoreFile};
use tables::Effort;
use transaction::Change;
use watcher::Watcher;
use writer::{Answer, Command, REQUESTS, Request, Writer};

mod cache;
mod disk;
mod export;
mod fault;
mod feed;
mod file;
mod tables;
mod transaction;
mod watcher;
mod writer;

#[cfg(test)]
mod tests;

pub use export::{Checked, NewFile, check_file, defragment_file};

/// Reads that may be on the disk at a time: each takes a thread of the runtime's blocking pool.
const READS: usize = 4;

/// The largest key and value that are taken, in bytes.
const MAX_KEY: usize = 4 << 10;
const MAX_VALUE: usize = 16 << 20;

/// A store in a single file, which one process at a time may have open. Dropping it waits for
/// the writes under way and closes the file; its watches end.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    requests: Option<mpsc::Sender<Request>>,
    turns: Arc<Semaphore>,
    writer: Option<JoinHandle<()>>,
}

/// What the writer, the readers and the watchers share.
struct Shared {
    file: StoreFile,
    feed: Feed,
    reads: Arc<Semaphore>,
}

impl EmbeddedStore {
    /// Opens the file at `path`, or makes it in a folder that exists. The error names the file:
    /// open elsewhere, damaged, not a store, or what the system says.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        blocking(move || {
            let file = StoreFile::open(&path)?;
            let newest =
                file.snapshot(|now| Ok(now.newest)).map_err(|fault| fault.into_error(&path))?;
            Self::start(file, newest)
        })
        .await
    }

    fn start(file: StoreFile, newest: Revision) -> Result<Self> {
        let shared = Arc::new(Shared {
            file,
            feed: Feed::new(newest),
            reads: Arc::new(Semaphore::new(READS)),
        });
        // not bounded itself: a request carries one of the `turns`
        let (requests, received) = mpsc::channel();
        let writer = Writer::new(shared.clone(), received);
        let writer = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| Error::Backend(format!("writer thread: {error}")))?;
        let turns = Arc::new(Semaphore::new(REQUESTS));
        Ok(EmbeddedStore { shared, requests: Some(requests), turns, writer: Some(writer) })
    }

    /// What is there at a revision, from a key on, by keys. Empty: there is nothing more.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] for a revision that is not kept any more.
    pub async fn export(&self, start: &str, at: Revision) -> Result<Vec<Entry>> {
        let start = start.to_owned();
        self.shared.read(move |snapshot| export::page(snapshot, &start, at)).await
    }

    /// Hands a command to the writer and waits for its answer.
    async fn submit<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T> {
        let stopped = || Error::Backend("the store's writer has stopped".to_owned());
        let permit = self.turns.clone().acquire_owned().await.map_err(|_| stopped())?;
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(stopped)?;
        requests.send(Request { command: command(answer), permit }).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    async fn write(&self, key: &str, expect: Expect, change: Change) -> Result<Arc<Event>> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(Error::Backend(format!(
                "a key of {} bytes, allowed are 1 to {MAX_KEY}",
                key.len()
            )));
        }
        let key = key.to_owned();
        self.submit(|answer| Command::Write { key, expect, change, answer }).await
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.shared.file.path().display(), "the store's writer panicked");
        }
    }
}

impl Shared {
    /// Runs a read on the newest commit, off the async threads.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl Fn(&Snapshot) -> fault::Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.clone();
        // held by the read itself: it goes on when its caller has gone
        let permit = self.reads.clone().acquire_owned().await;
        blocking(move || {
            let _permit = permit;
            shared.file.snapshot(read).map_err(|fault| fault.into_error(shared.file.path()))
        })
        .await
    }

    /// Runs a short read on the newest commit, on this thread, if it does not have to wait for the
    /// file: two changes of threads cost several times what it does itself. Where a page has to come
    /// from the disk, other threads take over the tasks of this one ([`disk`]).
    fn read_here<T>(&self, read: impl FnOnce(&Snapshot) -> fault::Result<T>) -> Option<Result<T>> {
        let result = panics::contain_sync(|| self.file.try_snapshot(read));
        match result.map_err(|error| Error::Backend(error.to_string())) {
            Ok(result) => result.map(|it| it.map_err(|fault| fault.into_error(self.file.path()))),
            Err(error) => Some(Err(error)),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    panics::blocking(work).await.map_err(|error| Error::Backend(error.to_string()))?
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let read = |snapshot: &Snapshot| snapshot.tables.current(key);
        let current = match self.shared.read_here(read) {
            Some(current) => current?,
            None => {
                let key = key.to_owned();
                self.shared.read(move |snapshot| snapshot.tables.current(&key)).await?
            }
        };
        Ok(current.map(|(revision, record)| record.into_key_value(revision)))
    }

    async fn list(&self, prefix: &str, options: ListOptions) -> Result<Page> {
        // a list that goes on is a long one
        if options.start.is_none() {
            let small = |snapshot: &Snapshot| snapshot.list(prefix, &options, Effort::SMALL);
            if let Some(page) = self.shared.read_here(small)
                && let Some(page) = page?
            {
                return Ok(page);
            }
        }
        let prefix = prefix.to_owned();
        let any = move |snapshot: &Snapshot| snapshot.list(&prefix, &options, Effort::ANY);
        let page = self.shared.read(any).await?;
        page.ok_or_else(|| Error::Backend("a list without end".to_owned()))
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<KeyValue> {
        if value.len() > MAX_VALUE {
            return Err(Error::Backend(format!(
                "a value of {} bytes, the limit is {MAX_VALUE}",
                value.len()
            )));
        }
        match &*self.write(key, expect, Change::Put { value, ttl }).await? {
            Event::Put { current, .. } => Ok(current.clone()),
            Event::Delete { .. } => Err(Error::Backend("a put became a deletion".to_owned())),
        }
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        match &*self.write(key, Expect::Revision(expect), Change::Delete).await? {
            Event::Delete { previous, revision } => Ok((previous.clone(), *revision)),
            Event::Put { .. } => Err(Error::Backend("a deletion became a put".to_owned())),
        }
    }

    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchItem>>> {
        let newest = self
            .shared
            .read(move |snapshot| {
                snapshot.readable(if after == 0 { snapshot.newest } else { after })?;
                Ok(snapshot.newest)
            })
            .await?;
        let watcher = Watcher::new(self.shared.clone(), prefix);
        Ok(if after == 0 { watcher.now(newest) } else { watcher.after(after) }.into_stream())
    }

    async fn revision(&self) -> Result<Revision> {
        // not the feed's: a reader may have seen a commit that the feed is only about to learn of
        match self.shared.read_here(|snapshot| Ok(snapshot.newest)) {
            Some(newest) => newest,
            None => self.shared.read(|snapshot| Ok(snapshot.newest)).await,
        }
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.submit(|answer| Command::Compact { revision, answer }).await
    }
}
