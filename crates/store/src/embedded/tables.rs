//! What is in the file: the tables, and every read over them. The same reads serve a read-only
//! snapshot and the writer's open transaction.

use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadableTable, TableDefinition};

use super::cache::RecordCache;
use super::fault::{Fault, Result};
use crate::{Error, Event, KeyValue, ListOptions, PAGE_BYTES, Page, Revision};

/// Key, create revision (0: deleted here), revision replaced (0: none), deadline in Unix seconds
/// (0: none), value.
pub(super) type Row = (&'static str, i64, i64, u64, &'static [u8]);

/// A key and one of its revisions.
pub(super) type Version = (&'static str, i64);

/// The history, one row per revision.
pub(super) const RECORDS: TableDefinition<'_, i64, Row> = TableDefinition::new("records");
/// A version, to the key's create revision (0: deleted here). Apart from the values, so that
/// finding and counting keys reads few pages.
pub(super) const INDEX: TableDefinition<'_, (&str, i64), i64> = TableDefinition::new("index");
/// Deadline in Unix seconds and revision, to the key that goes then if this is still its revision.
pub(super) const EXPIRY: TableDefinition<'_, (u64, i64), &str> = TableDefinition::new("expiry");
/// The numbers named below.
pub(super) const META: TableDefinition<'_, &str, i64> = TableDefinition::new("longshore");

/// Layout of the tables; a file with another is refused.
pub(super) const FORMAT: (&str, i64) = ("format", 1);
/// History before this revision cannot be read.
pub(super) const COMPACTED: &str = "compacted";
/// Compacted history up to this revision has been removed.
pub(super) const SWEPT: &str = "swept";

/// The revision of an empty store, as in etcd.
pub(super) const FIRST_REVISION: Revision = 1;

/// How much a call of [`Tables::history`] reads at most: its snapshot must not live long, and each of
/// thousands of watches may keep what was read for as long as its client reads nothing.
const HISTORY_ROWS: usize = 4096;
const HISTORY_BYTES: usize = 32 << 10;

/// How much a list may read: rows of the index, and bytes of values.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Effort {
    pub(super) const ANY: Effort = Effort { rows: usize::MAX, bytes: usize::MAX };
    /// Less than the change of threads costs that a long read takes.
    pub(super) const SMALL: Effort = Effort { rows: 64, bytes: 64 << 10 };
}

/// One row of the history, read.
pub(super) struct Record {
    pub(super) key: Arc<str>,
    pub(super) created: Revision,
    pub(super) previous: Revision,
    pub(super) deadline: u64,
    pub(super) value: Bytes,
}

impl Record {
    fn read((key, created, previous, deadline, value): (&str, i64, i64, u64, &[u8])) -> Self {
        Record {
            key: key.into(),
            created,
            previous,
            deadline,
            value: Bytes::copy_from_slice(value),
        }
    }

    pub(super) fn into_key_value(self, revision: Revision) -> KeyValue {
        KeyValue {
            key: self.key,
            value: self.value,
            create_revision: self.created,
            mod_revision: revision,
            is_stale: false,
        }
    }
}

/// The history and its index.
pub(super) struct Tables<R, I> {
    pub(super) records: R,
    pub(super) index: I,
}

impl<R, I> Tables<R, I>
where
    R: ReadableTable<i64, Row>,
    I: ReadableTable<Version, i64>,
{
    /// The newest revision, given what has been compacted (which may have taken the last row).
    pub(super) fn newest(&self, compacted: Revision) -> Result<Revision> {
        let last = self.records.last()?.map_or(0, |(revision, _)| revision.value());
        Ok(last.max(compacted).max(FIRST_REVISION))
    }

    pub(super) fn record(&self, revision: Revision) -> Result<Option<Record>> {
        Ok(self.records.get(revision)?.map(|row| Record::read(row.value())))
    }

    /// As [`Tables::record`], kept in the cache.
    fn key_value(&self, revision: Revision, cache: &RecordCache) -> Result<Option<KeyValue>> {
        if let Some(cached) = cache.get(revision) {
            return Ok(Some(cached));
        }
        let read = self.record(revision)?.map(|record| record.into_key_value(revision));
        if let Some(read) = &read {
            cache.insert(read);
        }
        Ok(read)
    }

    /// The key's newest revision and record, unless it is deleted or never was.
    pub(super) fn current(&self, key: &str) -> Result<Option<(Revision, Record)>> {
        let Some(last) = self.index.range((key, 0)..=(key, i64::MAX))?.next_back() else {
            return Ok(None);
        };
        let (position, created) = last?;
        if created.value() == 0 {
            return Ok(None);
        }
        let revision = position.value().1;
        Ok(self.record(revision)?.map(|record| (revision, record)))
    }

    /// A page of what is there at a revision. None: it takes more than that effort.
    pub(super) fn list(
        &self,
        prefix: &str,
        options: &ListOptions,
        at: Revision,
        most: Effort,
        cache: &RecordCache,
    ) -> Result<Option<Page>> {
        let from = options.start.as_deref().map_or(prefix, |start| start.max(prefix));
        let mut page = Page { items: Vec::new(), revision: at, remaining: 0 };
        let mut bytes = 0;
        let mut is_whole = true;
        let within = self.each_live(from, prefix, at, most.rows, |revision| {
            if bytes >= PAGE_BYTES || (options.limit != 0 && page.items.len() >= options.limit) {
                page.remaining = page.remaining.saturating_add(1);
                return Ok(!options.uncounted);
            } else if let Some(stored) = self.key_value(revision, cache)? {
                bytes = stored.value.len().saturating_add(bytes);
                page.items.push(stored);
                is_whole = bytes <= most.bytes;
            }
            Ok(is_whole)
        })?;
        Ok((within && is_whole).then_some(page))
    }

    /// Has `emit` take the revision, at `at`, of each key with `prefix` from a key on, until it says
    /// that this is enough. Returns whether that took no more than so many rows of the index.
    pub(super) fn each_live(
        &self,
        from: &str,
        prefix: &str,
        at: Revision,
        most_rows: usize,
        mut emit: impl FnMut(Revision) -> Result<bool>,
    ) -> Result<bool> {
        // the newest version so far, not after `at`, of the key that the scan stands on
        let (mut key, mut revision, mut live) = (String::new(), 0, false);
        for (seen, entry) in self.index.range((from, 0)..)?.enumerate() {
            if seen >= most_rows {
                return Ok(false);
            }
            let (position, created) = entry?;
            let (name, version) = position.value();
            if !name.starts_with(prefix) {
                break;
            }
            if name != key {
                if live && !emit(revision)? {
                    return Ok(true);
                }
                key.clear();
                key.push_str(name);
                live = false;
            }
            if version <= at {
                (revision, live) = (version, created.value() != 0);
            }
        }
        if live {
            emit(revision)?;
        }
        Ok(true)
    }

    /// Where history and index say different things.
    pub(super) fn disagreements(&self) -> Result<Vec<String>> {
        const NAMED: usize = 100;
        let mut found = Vec::new();
        for entry in self.records.range(0..)? {
            let (revision, row) = entry?;
            let (revision, (key, created, ..)) = (revision.value(), row.value());
            let indexed = self.index.get((key, revision))?.map(|created| created.value());
            if indexed != Some(created) && found.len() < NAMED {
                found.push(format!("{key}: revision {revision} is not in the index as it is"));
            }
        }
        for entry in self.index.range(("", 0)..)? {
            let position = entry?.0;
            let (key, revision) = position.value();
            if self.records.get(revision)?.is_none_or(|row| row.value().0 != key)
                && found.len() < NAMED
            {
                found.push(format!("{key}: revision {revision} is in the index alone"));
            }
        }
        Ok(found)
    }

    /// Changes to keys with `prefix` after a revision, and up to which revision they are complete:
    /// `newest`, unless that would be too much at once.
    pub(super) fn history(
        &self,
        prefix: &str,
        after: Revision,
        newest: Revision,
    ) -> Result<(Vec<Event>, Revision)> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        for (seen, entry) in self.records.range(after.saturating_add(1)..=newest)?.enumerate() {
            let (revision, row) = entry?;
            let (revision, row) = (revision.value(), row.value());
            if seen == HISTORY_ROWS || bytes > HISTORY_BYTES {
                return Ok((events, revision.saturating_sub(1)));
            }
            if row.0.starts_with(prefix) {
                bytes += row.4.len();
                events.push(self.event(revision, Record::read(row))?);
            }
        }
        Ok((events, newest))
    }

    fn event(&self, revision: Revision, record: Record) -> Result<Event> {
        let previous = match record.previous {
            0 => None,
            at => Some(
                self.record(at)?
                    .ok_or(Fault::Refused(Error::Compacted { requested: at, oldest: revision }))?,
            ),
        };
        let previous = previous.map(|before| before.into_key_value(record.previous));
        match previous {
            Some(previous) if record.created == 0 => Ok(Event::Delete { previous, revision }),
            previous => Ok(Event::Put { current: record.into_key_value(revision), previous }),
        }
    }
}
