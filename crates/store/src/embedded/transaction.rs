//! One write transaction: what a batch of requests, the clock and compaction change in the tables.
//! Nothing here is seen by anybody before the writer has committed it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use redb::{ReadableTable, Table, WriteTransaction};

use super::fault::Result;
use super::tables::{COMPACTED, EXPIRY, INDEX, META, RECORDS, Record, Row, SWEPT, Tables, Version};
use crate::{Error, Event, Expect, KeyValue, Revision};

/// How many keys expire, and how many revisions are swept, in one transaction: others wait for it.
const EXPIRE_AT_ONCE: usize = 256;
const SWEEP_AT_ONCE: usize = 128;

/// What is to become of a key.
pub(super) enum Change {
    Put { value: Bytes, ttl: Option<Duration> },
    Delete,
}

/// The tables, open for writing.
pub(super) struct Transaction<'t> {
    tables: Tables<Table<'t, i64, Row>, Table<'t, Version, i64>>,
    expiry: Table<'t, (u64, i64), &'static str>,
    meta: Table<'t, &'static str, i64>,
    newest: Revision,
    now: Duration,
    /// The changes so far, one for each new revision.
    pub(super) events: Vec<Arc<Event>>,
    /// Whether there is anything to commit.
    pub(super) dirty: bool,
}

impl<'t> Transaction<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction, newest: Revision) -> Result<Self> {
        Ok(Transaction {
            tables: Tables {
                records: transaction.open_table(RECORDS)?,
                index: transaction.open_table(INDEX)?,
            },
            expiry: transaction.open_table(EXPIRY)?,
            meta: transaction.open_table(META)?,
            newest,
            now: unix_time(),
            events: Vec::new(),
            dirty: false,
        })
    }

    /// Changes a key if `expect` holds.
    pub(super) fn write(
        &mut self,
        key: &str,
        expect: Expect,
        change: &Change,
    ) -> Result<Arc<Event>> {
        let current = self.tables.current(key)?;
        let holds = match expect {
            Expect::Absent => current.is_none(),
            Expect::Revision(expected) => {
                current.as_ref().is_some_and(|(revision, _)| *revision == expected)
            }
        };
        match (change, current) {
            (Change::Put { value, ttl }, current) if holds => self.put(key, value, *ttl, current),
            (Change::Delete, Some(current)) if holds => self.delete(current),
            (_, current) => {
                let current = current.map(|(revision, record)| record.into_key_value(revision));
                Err(Error::Conflict { key: key.to_owned(), current }.into())
            }
        }
    }

    fn put(
        &mut self,
        key: &str,
        value: &Bytes,
        ttl: Option<Duration>,
        current: Option<(Revision, Record)>,
    ) -> Result<Arc<Event>> {
        let revision = self.newest.saturating_add(1);
        let created = current.as_ref().map_or(revision, |(_, record)| record.created);
        // whole seconds, upwards: what expires together goes in one transaction
        let deadline =
            ttl.map_or(0, |ttl| self.now.saturating_add(ttl).as_secs().saturating_add(1));
        let previous = self.supersede(current)?;
        let replaced = previous.as_ref().map_or(0, |before| before.mod_revision);
        self.tables.records.insert(revision, (key, created, replaced, deadline, &value[..]))?;
        self.tables.index.insert((key, revision), created)?;
        if deadline != 0 {
            self.expiry.insert((deadline, revision), key)?;
        }
        let current = KeyValue {
            key: key.into(),
            value: value.clone(),
            create_revision: created,
            mod_revision: revision,
            is_stale: false,
        };
        Ok(self.happened(Event::Put { current, previous }))
    }

    fn delete(&mut self, (replaced, record): (Revision, Record)) -> Result<Arc<Event>> {
        let revision = self.newest.saturating_add(1);
        self.tables.records.insert(revision, (&*record.key, 0, replaced, 0, &[][..]))?;
        self.tables.index.insert((&*record.key, revision), 0)?;
        self.forget_deadline(replaced, &record)?;
        Ok(self.happened(Event::Delete { previous: record.into_key_value(replaced), revision }))
    }

    fn supersede(&mut self, current: Option<(Revision, Record)>) -> Result<Option<KeyValue>> {
        let Some((revision, record)) = current else { return Ok(None) };
        self.forget_deadline(revision, &record)?;
        Ok(Some(record.into_key_value(revision)))
    }

    fn forget_deadline(&mut self, revision: Revision, record: &Record) -> Result<()> {
        if record.deadline != 0 {
            self.expiry.remove((record.deadline, revision))?;
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) -> Arc<Event> {
        let event = Arc::new(event);
        self.newest = self.newest.saturating_add(1);
        self.dirty = true;
        self.events.push(event.clone());
        event
    }

    /// Deletes keys whose time has come, not too many at once.
    pub(super) fn expire(&mut self) -> Result<()> {
        let mut due = Vec::new();
        for entry in self.expiry.range(..=(self.now.as_secs(), i64::MAX))?.take(EXPIRE_AT_ONCE) {
            let (position, key) = entry?;
            due.push((position.value(), key.value().to_owned()));
        }
        for ((deadline, revision), key) in due {
            self.dirty = true;
            match self.tables.current(&key)? {
                Some(current) if current.0 == revision => drop(self.delete(current)?),
                _ => drop(self.expiry.remove((deadline, revision))?),
            }
        }
        Ok(())
    }

    /// Time until the next key expires; `None` if no key will.
    pub(super) fn next_expiry(&self) -> Result<Option<Duration>> {
        let first = self.expiry.first()?;
        Ok(first
            .map(|(position, _)| Duration::from_secs(position.value().0).saturating_sub(self.now)))
    }

    /// Marks history before `revision` (0: the newest) as gone. [`Transaction::sweep`] removes it.
    pub(super) fn compact(&mut self, revision: Revision) -> Result<()> {
        let revision = if revision == 0 { self.newest } else { revision };
        let compacted = self.number(COMPACTED)?;
        if revision > self.newest {
            return Err(Error::Future { requested: revision, newest: self.newest }.into());
        }
        if revision < compacted {
            return Err(Error::Compacted { requested: revision, oldest: compacted }.into());
        }
        if revision > compacted {
            self.meta.insert(COMPACTED, revision)?;
            self.dirty = true;
        }
        Ok(())
    }

    /// Removes some of the history that is marked as gone. True when none is left.
    pub(super) fn sweep(&mut self) -> Result<bool> {
        let (swept, compacted) = (self.number(SWEPT)?, self.number(COMPACTED)?);
        if swept >= compacted {
            return Ok(true);
        }
        let mut rows = Vec::new();
        for entry in
            self.tables.records.range(swept.saturating_add(1)..=compacted)?.take(SWEEP_AT_ONCE)
        {
            let (revision, row) = entry?;
            let (key, created, ..) = row.value();
            rows.push((revision.value(), key.to_owned(), created == 0));
        }
        // a row that is not among these is either newer than the compaction, or was the key's
        // newest at an earlier one: then a row here may supersede it
        for (revision, key, deletion) in &rows {
            let up_to = if *deletion { *revision } else { revision.saturating_sub(1) };
            self.drop_versions(key, up_to)?;
        }
        let done = rows.len() < SWEEP_AT_ONCE;
        let swept = rows.last().filter(|_| !done).map_or(compacted, |(revision, ..)| *revision);
        self.meta.insert(SWEPT, swept)?;
        self.dirty = true;
        Ok(done)
    }

    fn drop_versions(&mut self, key: &str, up_to: Revision) -> Result<()> {
        let mut versions = Vec::new();
        for entry in self.tables.index.range((key, 0)..=(key, up_to))? {
            versions.push(entry?.0.value().1);
        }
        for version in versions {
            self.tables.index.remove((key, version))?;
            self.tables.records.remove(version)?;
        }
        Ok(())
    }

    fn number(&self, name: &'static str) -> Result<Revision> {
        Ok(self.meta.get(name)?.map_or(0, |value| value.value()))
    }
}

/// Since 1970. The wall clock, for deadlines must outlive the process.
fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
