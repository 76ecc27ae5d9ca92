//! The content of the store at one revision: read from it page by page, and written into a new file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::files::if_present;
use redb::{Database, Durability, ReadableTable};

use super::disk;
use super::fault::{Fault, Result};
use super::file::{Snapshot, StoreFile, create_tables, explain};
use super::tables::{COMPACTED, EXPIRY, FIRST_REVISION, INDEX, META, RECORDS, SWEPT};
use crate::backup::{Entry, Summary};
use crate::{Error, PAGE_BYTES, Revision};

/// How many entries are written in one transaction at most.
const BATCH: usize = 4096;

/// How many entries may have a revision that another one has: apiservers write no two keys at one.
const SHARED: usize = 4096;

fn too_many_shared(entry: &Entry) -> Error {
    let Entry { key, mod_revision, .. } = entry;
    Error::Backend(format!(
        "key {key:?}: too many keys were written at revisions such as {mod_revision}"
    ))
}

/// A page of what is there at a revision, from a key on. Empty: there is nothing more.
pub(super) fn page(snapshot: &Snapshot, start: &str, at: Revision) -> Result<Vec<Entry>> {
    snapshot.readable(at)?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    snapshot.tables.each_live(start, "", at, usize::MAX, |revision| {
        if bytes >= PAGE_BYTES {
            return Ok(false);
        }
        if let Some(record) = snapshot.tables.record(revision)? {
            bytes = record.value.len().saturating_add(record.key.len()).saturating_add(bytes);
            entries.push(Entry {
                key: record.key.to_string(),
                value: record.value,
                create_revision: record.created,
                mod_revision: revision,
                deadline: Some(record.deadline)
                    .filter(|deadline| *deadline > 0)
                    .map(Duration::from_secs),
            });
        }
        Ok(true)
    })?;
    Ok(entries)
}

/// A new file that is being filled. It has its name only when it is finished; one that is there
/// already is never replaced.
pub struct NewFile {
    path: PathBuf,
    draft: PathBuf,
    database: Option<Database>,
    batch: BTreeMap<Revision, Entry>,
    bytes: usize,
    newest: Revision,
    /// Entries whose revision another one has: etcd can write several keys at one.
    shared: Vec<Entry>,
    entries: u64,
}

impl NewFile {
    /// Begins the file at `path`. The error names it.
    ///
    /// # Errors
    ///
    /// There is such a file, or it cannot be made.
    pub fn create(path: &Path) -> crate::Result<NewFile> {
        let failed = |why: String| Error::Backend(format!("{}: {why}", path.display()));
        if path.try_exists().map_err(|error| failed(error.to_string()))? {
            return Err(failed("is there already, and is not replaced".to_owned()));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".draft");
        let draft = path.with_file_name(name);
        if_present(std::fs::remove_file(&draft)).map_err(|error| failed(error.to_string()))?;
        let database = disk::create(&draft)
            .and_then(|database| create_tables(&database).map(|()| database))
            .map_err(|fault| failed(format!("cannot be created: {}", explain(fault))))?;
        Ok(NewFile {
            path: path.to_owned(),
            draft,
            database: Some(database),
            batch: BTreeMap::new(),
            bytes: 0,
            newest: FIRST_REVISION,
            shared: Vec::new(),
            entries: 0,
        })
    }

    /// Adds an entry, with the revisions that it has.
    ///
    /// # Errors
    ///
    /// The entry makes no sense, or the file cannot be written.
    pub fn add(&mut self, entry: Entry) -> crate::Result<()> {
        entry.check()?;
        self.entries = self.entries.saturating_add(1);
        self.newest = self.newest.max(entry.mod_revision);
        self.bytes = self.bytes.saturating_add(entry.value.len()).saturating_add(entry.key.len());
        match self.batch.get(&entry.mod_revision) {
            Some(_) if self.shared.len() >= SHARED => return Err(too_many_shared(&entry)),
            Some(_) => self.shared.push(entry),
            None => drop(self.batch.insert(entry.mod_revision, entry)),
        }
        if self.batch.len() >= BATCH || self.bytes >= PAGE_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn failed(&self, fault: Fault) -> Error {
        fault.into_error(&self.path)
    }

    fn write(&mut self) -> crate::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        let shared = self.insert(batch.into_values(), Durability::None);
        self.shared.extend(shared.map_err(|fault| self.failed(fault))?);
        match self.shared.get(SHARED) {
            Some(entry) => Err(too_many_shared(entry)),
            None => Ok(()),
        }
    }

    /// Writes entries; those whose revision is taken come back.
    fn insert(
        &self,
        entries: impl Iterator<Item = Entry>,
        durability: Durability,
    ) -> Result<Vec<Entry>> {
        let database = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let mut transaction = database.begin_write()?;
        transaction
            .set_durability(durability)
            .map_err(|error| redb::Error::Io(io::Error::other(error.to_string())))?;
        let mut taken = Vec::new();
        {
            let mut records = transaction.open_table(RECORDS)?;
            let mut index = transaction.open_table(INDEX)?;
            let mut expiry = transaction.open_table(EXPIRY)?;
            for entry in entries {
                let Entry { key, value, create_revision, mod_revision, deadline } = &entry;
                if records.get(*mod_revision)?.is_some() {
                    taken.push(entry);
                    continue;
                }
                let last = index.range((key.as_str(), 0)..=(key.as_str(), i64::MAX))?.next_back();
                if last.transpose()?.is_some() {
                    let why = format!("the key {key:?} is there twice");
                    return Err(Error::Backend(why).into());
                }
                let deadline = deadline.map_or(0, |deadline| deadline.as_secs());
                let row = (key.as_str(), *create_revision, 0, deadline, &value[..]);
                records.insert(*mod_revision, row)?;
                index.insert((key.as_str(), *mod_revision), *create_revision)?;
                if deadline != 0 {
                    expiry.insert((deadline, *mod_revision), key.as_str())?;
                }
            }
        }
        transaction.commit()?;
        Ok(taken)
    }

    /// Finishes the file: its newest revision is at least `revision`, and nothing before that can be
    /// read or watched from.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or there is one of its name by now.
    pub fn finish(mut self, revision: Revision) -> crate::Result<Summary> {
        self.write()?;
        let mut newest = self.newest.max(revision);
        let shared = std::mem::take(&mut self.shared);
        let mut moved = Vec::with_capacity(shared.len());
        for mut entry in shared {
            newest = newest.saturating_add(1);
            entry.mod_revision = newest;
            moved.push(entry);
        }
        let left = self.insert(moved.into_iter(), Durability::Immediate);
        let seal = || -> Result<()> {
            left?;
            let database = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
            let transaction = database.begin_write()?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert(COMPACTED, newest)?;
                meta.insert(SWEPT, newest)?;
            }
            transaction.commit()?;
            Ok(())
        };
        seal().map_err(|fault| self.failed(fault))?;
        self.database = None;
        let named = std::fs::hard_link(&self.draft, &self.path).and_then(|()| {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        });
        named.map_err(|error| Error::Backend(format!("{}: {error}", self.path.display())))?;
        Ok(Summary { revision: newest, entries: self.entries })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        self.database = None;
        // its other name stays, if it has got that
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// What a check has found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The newest revision.
    pub revision: Revision,
    /// Keys that are there.
    pub keys: u64,
    /// What is wrong, the first hundred of it.
    pub faults: Vec<String>,
    /// How much is wrong.
    pub total_faults: u64,
}

impl Checked {
    /// Notes a fault.
    pub fn fault(&mut self, what: String) {
        const NAMED: usize = 100;
        self.total_faults = self.total_faults.saturating_add(1);
        if self.faults.len() < NAMED {
            self.faults.push(what);
        }
    }
}

/// Verifies a file that no other process has open: every page, that its tables agree, and by `value`
/// every value that is there.
///
/// # Errors
///
/// The file cannot be opened or read.
pub fn check_file(
    path: &Path,
    mut value: impl FnMut(&str, &[u8]) -> std::result::Result<(), String>,
) -> crate::Result<Checked> {
    let file = StoreFile::open_existing(path)?;
    let checked = file.with(|database| {
        let now = Snapshot::of(database, Arc::default())?;
        let mut checked = Checked { revision: now.newest, ..Checked::default() };
        for fault in now.tables.disagreements()? {
            checked.fault(fault);
        }
        now.tables.each_live("", "", now.newest, usize::MAX, |revision| {
            checked.keys = checked.keys.saturating_add(1);
            match now.tables.record(revision)? {
                Some(record) => {
                    if let Err(why) = value(&record.key, &record.value) {
                        checked.fault(format!("{}: {why}", record.key));
                    }
                }
                None => checked.fault(format!("revision {revision} has no value")),
            }
            Ok(true)
        })?;
        Ok(checked)
    });
    file.close();
    checked.map_err(|fault| fault.into_error(path))
}

/// Makes a file that no other process has open as small as it can be. Returns its length before and
/// after, in bytes.
///
/// # Errors
///
/// The file cannot be opened or written.
pub fn defragment_file(path: &Path) -> crate::Result<(u64, u64)> {
    let length = || {
        let metadata = std::fs::metadata(path);
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| Error::Backend(format!("{}: {error}", path.display())))
    };
    let before = length()?;
    let file = StoreFile::open_existing(path)?;
    let packed = file.pack();
    file.close();
    packed.map_err(|fault| fault.into_error(path))?;
    Ok((before, length()?))
}
