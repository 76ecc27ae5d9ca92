//! The one thread that writes: takes all requests that wait, carries them out in one transaction,
//! syncs the file once, notifies the watchers and then replies. It also does expiry and compaction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use redb::Database;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Shared;
use super::fault::{Fault, Result};
use super::transaction::{Change, Transaction};
use crate::{Error, Event, Expect, Revision};

/// The most queued requests; further callers wait.
pub(super) const REQUESTS: usize = 256;

/// Values in one transaction, in bytes, after which the next request waits for the next one.
const BATCH_BYTES: usize = 4 << 20;

/// The longest sleep, after which a wall clock that was set forward is noticed.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Backoff after the engine failed.
const RETRY: Duration = Duration::from_millis(200);

pub(super) type Answer<T> = oneshot::Sender<crate::Result<T>>;

/// Something for the writer to do.
pub(super) struct Request {
    pub(super) command: Command,
    /// Given back when the request is answered.
    pub(super) permit: OwnedSemaphorePermit,
}

pub(super) enum Command {
    Write { key: String, expect: Expect, change: Change, answer: Answer<Arc<Event>> },
    Compact { revision: Revision, answer: Answer<()> },
}

/// What became of a command in the transaction.
enum Outcome {
    Written(crate::Result<Arc<Event>>),
    Compacted(crate::Result<()>),
}

/// The results of a batch once it is committed.
struct Committed {
    outcomes: Vec<Outcome>,
    events: Vec<Arc<Event>>,
    swept: bool,
    next_expiry: Option<Duration>,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    requests: Receiver<Request>,
    newest: Revision,
    /// Compacted history is still to be removed.
    sweeping: bool,
    /// The waiters for that.
    compactions: Vec<(Answer<()>, OwnedSemaphorePermit)>,
    next_expiry: Option<Duration>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, requests: Receiver<Request>) -> Self {
        let newest = shared.feed.tip().newest;
        // the first batch finds what an earlier process left to sweep and to expire
        Writer {
            shared,
            requests,
            newest,
            sweeping: true,
            compactions: Vec::new(),
            next_expiry: None,
        }
    }

    /// Runs until all senders of requests are dropped.
    pub(super) fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            self.commit_batch(batch);
        }
        self.shared.feed.close();
        self.shared.file.close();
    }

    /// The requests that wait, or none when it is time to sweep or expire.
    pub(super) fn next_batch(&self) -> Option<VecDeque<Request>> {
        let (mut batch, mut bytes) = (VecDeque::new(), 0);
        let wait = if self.sweeping {
            Duration::ZERO
        } else {
            self.next_expiry.unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
        };
        match self.requests.recv_timeout(wait) {
            Ok(request) => batch.push_back(request),
            Err(RecvTimeoutError::Timeout) => return Some(batch),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        while batch.len() < REQUESTS && bytes < BATCH_BYTES {
            match self.requests.try_recv() {
                Ok(request) => {
                    if let Command::Write { change: Change::Put { value, .. }, .. } =
                        &request.command
                    {
                        bytes += value.len();
                    }
                    batch.push_back(request);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    pub(super) fn commit_batch(&mut self, batch: VecDeque<Request>) {
        match self.shared.file.with(|database| self.transact(database, &batch)) {
            Ok(done) => self.finish_batch(batch, done),
            Err(fault) => self.fail(batch, fault),
        }
    }

    /// Carries out a batch and makes it durable.
    fn transact(&self, database: &Database, batch: &VecDeque<Request>) -> Result<Committed> {
        let transaction = database.begin_write()?;
        let mut tables = Transaction::open(&transaction, self.newest)?;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut sweeping = self.sweeping;
        for request in batch {
            outcomes.push(match &request.command {
                Command::Write { key, expect, change, .. } => {
                    Outcome::Written(refusal(tables.write(key, *expect, change))?)
                }
                Command::Compact { revision, .. } => {
                    sweeping = true;
                    Outcome::Compacted(refusal(tables.compact(*revision))?)
                }
            });
        }
        tables.expire()?;
        let swept = !sweeping || tables.sweep()?;
        let next_expiry = tables.next_expiry()?;
        let (events, dirty) = (std::mem::take(&mut tables.events), tables.dirty);
        drop(tables);
        if dirty {
            transaction.commit()?;
        } else {
            transaction.abort()?;
        }
        Ok(Committed { outcomes, events, swept, next_expiry })
    }

    fn finish_batch(&mut self, batch: VecDeque<Request>, done: Committed) {
        let added = Revision::try_from(done.events.len()).unwrap_or(0);
        self.newest = self.newest.saturating_add(added);
        self.next_expiry = done.next_expiry;
        self.shared.file.committed();
        if !done.events.is_empty() {
            self.shared.feed.publish(done.events);
        }
        // the reply to a caller that is gone is dropped
        for (Request { command, permit }, outcome) in batch.into_iter().zip(done.outcomes) {
            match (command, outcome) {
                (Command::Write { answer, .. }, Outcome::Written(result)) => {
                    drop(answer.send(result))
                }
                (Command::Compact { answer, .. }, Outcome::Compacted(Ok(()))) => {
                    self.sweeping = true;
                    self.compactions.push((answer, permit));
                }
                (Command::Compact { answer, .. }, Outcome::Compacted(result)) => {
                    drop(answer.send(result))
                }
                _ => {}
            }
        }
        if done.swept && self.sweeping {
            self.sweeping = false;
            self.finish_compactions();
        }
    }

    /// Frees space and replies to requests for compaction.
    fn finish_compactions(&mut self) {
        if self.compactions.is_empty() {
            return;
        }
        match self.shared.file.shrink() {
            Ok(()) => {
                self.compactions.drain(..).for_each(|(answer, _permit)| drop(answer.send(Ok(()))))
            }
            Err(fault) => self.fail(VecDeque::new(), fault),
        }
    }

    /// The engine failed: whether the batch is in the file is unknown until it is read again.
    fn fail(&mut self, batch: VecDeque<Request>, fault: Fault) {
        let path = self.shared.file.path();
        let mut pause = batch.is_empty();
        let why = fault.into_error(path);
        tracing::error!(error = %why, "write failed, reopening the store");
        let again = || match &why {
            Error::Backend(text) => Error::Backend(text.clone()),
            other => Error::Backend(other.to_string()),
        };
        for Request { command, .. } in batch {
            match command {
                Command::Write { answer, .. } => drop(answer.send(Err(again()))),
                Command::Compact { answer, .. } => drop(answer.send(Err(again()))),
            }
        }
        self.compactions.drain(..).for_each(|(answer, _permit)| drop(answer.send(Err(again()))));
        let reopened = self
            .shared
            .file
            .reopen()
            .and_then(|()| self.shared.file.snapshot(|now| Ok(now.newest)));
        match reopened {
            Ok(newest) => {
                self.newest = newest;
                self.sweeping = true;
                self.shared.feed.reset(newest);
            }
            Err(fault) => {
                tracing::error!(error = %fault.into_error(path), "cannot reopen the store yet");
                pause = true;
            }
        }
        // background work would fail again and again without a backoff
        if pause {
            std::thread::sleep(RETRY);
        }
    }
}

/// Separates an error for the caller from a failure of the engine, which aborts the transaction.
fn refusal<T>(result: Result<T>) -> Result<crate::Result<T>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Refused(error)) => Ok(Err(error)),
        Err(fault) => Err(fault),
    }
}
