//! The file itself: made whole or not at all, open in one process only, checked before use, and
//! reopened after the engine failed on it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::files::if_present;
use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableHandle};

use super::cache::RecordCache;
use super::disk;
use super::fault::{Fault, Result};
use super::tables::{
    COMPACTED, EXPIRY, Effort, FORMAT, INDEX, META, RECORDS, Row, Tables, Version,
};
use crate::{Error, ListOptions, Page, Revision};

/// A file smaller than this is not worth shrinking, in bytes.
const SHRINK_FROM: u64 = 2 << 20;

/// How often, and how long each time, a read waits for a file that is opened again.
const REOPENING: (u32, Duration) = (100, Duration::from_millis(10));

/// The store's file. Closed for good by [`StoreFile::close`], for a moment while it is reopened.
pub(super) struct StoreFile {
    path: PathBuf,
    database: RwLock<Option<Open>>,
}

/// The engine, while it has the file.
struct Open {
    /// As of the newest commit, from the first read after it on. Dropped before the engine.
    newest: Mutex<Option<Arc<Snapshot>>>,
    /// Of this opening: where a commit is lost with an I/O error, its revisions are given again.
    records: Arc<RecordCache>,
    database: Database,
}

impl Open {
    fn new(database: Database) -> Self {
        Open { newest: Mutex::new(None), records: Arc::default(), database }
    }

    /// The newest commit. Opening its tables costs more than most reads, so it is done once.
    fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let mut newest = self.newest.lock();
        if let Some(snapshot) = &*newest {
            return Ok(snapshot.clone());
        }
        // under the lock: a snapshot from before a commit is not put back after it
        let snapshot = Arc::new(Snapshot::of(&self.database, self.records.clone())?);
        Ok(newest.insert(snapshot).clone())
    }
}

/// The tables as of one commit.
pub(super) struct Snapshot {
    pub(super) tables: Tables<ReadOnlyTable<i64, Row>, ReadOnlyTable<Version, i64>>,
    pub(super) newest: Revision,
    pub(super) compacted: Revision,
    records: Arc<RecordCache>,
}

impl Snapshot {
    pub(super) fn of(database: &Database, records: Arc<RecordCache>) -> Result<Self> {
        let transaction = database.begin_read()?;
        let tables = Tables {
            records: transaction.open_table(RECORDS)?,
            index: transaction.open_table(INDEX)?,
        };
        let compacted =
            transaction.open_table(META)?.get(COMPACTED)?.map_or(0, |value| value.value());
        let newest = tables.newest(compacted)?;
        Ok(Snapshot { tables, newest, compacted, records })
    }

    /// As [`Tables::list`], at the revision that is asked for, or else now.
    pub(super) fn list(
        &self,
        prefix: &str,
        options: &ListOptions,
        most: Effort,
    ) -> Result<Option<Page>> {
        let at = if options.revision == 0 { self.newest } else { options.revision };
        self.readable(at)?;
        self.tables.list(prefix, options, at, most, &self.records)
    }

    /// Refuses a revision that is compacted or yet to come.
    pub(super) fn readable(&self, revision: Revision) -> Result<()> {
        if revision < self.compacted {
            return Err(Error::Compacted { requested: revision, oldest: self.compacted }.into());
        }
        if revision > self.newest {
            return Err(Error::Future { requested: revision, newest: self.newest }.into());
        }
        Ok(())
    }
}

impl StoreFile {
    /// Opens the file, or makes it. The error names the file.
    pub(super) fn open(path: &Path) -> crate::Result<Self> {
        let failed = |why: String| Error::Backend(format!("{}: {why}", path.display()));
        if !path.try_exists().map_err(|error| failed(error.to_string()))? {
            create(path)
                .map_err(|error| failed(format!("cannot be created: {}", explain(error))))?;
        }
        let database = open_checked(path).map_err(|error| failed(explain(error)))?;
        Ok(StoreFile { path: path.to_owned(), database: RwLock::new(Some(Open::new(database))) })
    }

    /// Opens a file that is there.
    pub(super) fn open_existing(path: &Path) -> crate::Result<Self> {
        match path.try_exists() {
            Ok(true) => StoreFile::open(path),
            Ok(false) => Err(Error::Backend(format!("{}: there is no such file", path.display()))),
            Err(error) => Err(Error::Backend(format!("{}: {error}", path.display()))),
        }
    }

    /// Gives all free space back to the filesystem.
    pub(super) fn pack(&self) -> Result<()> {
        let mut guard = self.database.write();
        let open = guard.as_mut().ok_or(redb::Error::DatabaseClosed)?;
        *open.newest.get_mut() = None;
        open.database.compact()?;
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `read` on the newest commit. Blocks on the disk.
    pub(super) fn snapshot<T>(&self, read: impl Fn(&Snapshot) -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match self.with_open(|open| read(&*open.snapshot()?)) {
                // a write has just failed, and the writer is about to open the file again
                Err(Fault::Engine(redb::Error::PreviousIo)) if tries < REOPENING.0 => {
                    tries += 1;
                    std::thread::sleep(REOPENING.1);
                }
                result => return result,
            }
        }
    }

    /// As [`StoreFile::snapshot`], if it does not have to wait for the file.
    pub(super) fn try_snapshot<T>(
        &self,
        read: impl FnOnce(&Snapshot) -> Result<T>,
    ) -> Option<Result<T>> {
        let guard = self.database.try_read()?;
        match guard.as_ref()?.snapshot().and_then(|snapshot| read(&snapshot)) {
            Err(Fault::Engine(redb::Error::PreviousIo)) => None,
            result => Some(result),
        }
    }

    /// Has reads see what has been committed. The writer calls it before it answers.
    pub(super) fn committed(&self) {
        if let Some(open) = &*self.database.read() {
            *open.newest.lock() = None;
        }
    }

    /// Runs `run` on the engine, which stays open for as long.
    pub(super) fn with<T>(&self, run: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        self.with_open(|open| run(&open.database))
    }

    fn with_open<T>(&self, run: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        run(self.database.read().as_ref().ok_or(redb::Error::DatabaseClosed)?)
    }

    /// Gives free space back to the filesystem when more than half of the file is free. Reads and
    /// writes wait meanwhile, so it must be worth it.
    pub(super) fn shrink(&self) -> Result<()> {
        let length = std::fs::metadata(&self.path).map_err(redb::Error::Io)?.len();
        let used = self.with(|database| {
            let transaction = database.begin_write()?;
            let stats = transaction.stats()?;
            transaction.abort()?;
            Ok(stats.allocated_pages().saturating_mul(stats.page_size() as u64))
        })?;
        if length < SHRINK_FROM || used > length / 2 {
            return Ok(());
        }
        self.pack()
    }

    /// Opens the file again: after an I/O error the engine takes no more writes until then.
    pub(super) fn reopen(&self) -> Result<()> {
        let mut guard = self.database.write();
        *guard = None;
        *guard = Some(Open::new(open_checked(&self.path)?));
        Ok(())
    }

    /// Releases the file, even while `self` is still referenced.
    pub(super) fn close(&self) {
        *self.database.write() = None;
    }
}

/// Creates the file under a temporary name and renames it, so that a crash leaves no partial file.
fn create(path: &Path) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let draft = path.with_file_name(name);
    if_present(std::fs::remove_file(&draft)).map_err(redb::Error::Io)?;
    create_tables(&disk::create(&draft)?)?;
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::rename(&draft, path)
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(|error| redb::Error::Io(error).into())
}

/// Makes the tables of a new database.
pub(super) fn create_tables(database: &Database) -> Result<()> {
    let transaction = database.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(INDEX)?;
    transaction.open_table(EXPIRY)?;
    transaction.open_table(META)?.insert(FORMAT.0, FORMAT.1)?;
    transaction.commit()?;
    Ok(())
}

/// Opens the database and makes sure that it is one of this store's.
fn open_checked(path: &Path) -> Result<Database> {
    let database = disk::open(path)?;
    let transaction = database.begin_read()?;
    if !transaction.list_tables()?.any(|table| table.name() == META.name()) {
        return Err(redb::Error::Corrupted("another program's database".to_owned()).into());
    }
    let format = transaction.open_table(META)?.get(FORMAT.0)?.map(|value| value.value());
    if format != Some(FORMAT.1) {
        let found = format.map_or("none".to_owned(), |format| format.to_string());
        return Err(redb::Error::Corrupted(format!(
            "format {found}, this version reads {}",
            FORMAT.1
        ))
        .into());
    }
    drop(transaction);
    Ok(database)
}

/// Says what is wrong with a file that does not open.
pub(super) fn explain(fault: Fault) -> String {
    match fault {
        Fault::Engine(redb::Error::DatabaseAlreadyOpen) => "is open in another process".to_owned(),
        Fault::Engine(redb::Error::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            format!("is not a store: {error}")
        }
        Fault::Engine(redb::Error::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("is damaged: {error}")
        }
        Fault::Engine(redb::Error::RepairAborted) => {
            "is damaged: its last commit does not verify".to_owned()
        }
        Fault::Engine(redb::Error::Corrupted(why)) => format!("is damaged or not a store: {why}"),
        fault => fault.to_string(),
    }
}
