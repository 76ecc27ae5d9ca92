//! The bytes of the file, as the engine reads and writes them. Locks the file for this process,
//! and makes the engine verify every page when it opens: left to itself it trusts a file that was
//! closed in order, and panics later on a page that has gone bad since.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_base::blocking;
use redb::{Database, DatabaseError, RepairSession, StorageBackend};
use rustix::io::{ReadWriteFlags, preadv2};

use super::fault::Result;

/// The engine's cache of pages in bytes, besides the kernel's page cache.
const CACHE: usize = 4 << 20;

/// The header's first bytes, and the offset of the flags after them (redb's `docs/design.md`).
const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";
const FLAGS: u64 = MAGIC.len() as u64;
/// Set while the file is open: if it is set at opening, the last whole commit is searched for.
const RECOVERY_REQUIRED: u8 = 2;
/// Set by a commit that confirms the one before it: if it is set, no page is verified.
const TWO_PHASE_COMMIT: u8 = 4;

#[derive(Debug)]
struct Disk {
    file: File,
    opening: Arc<AtomicBool>,
}

/// Opens the database in an existing file.
pub(super) fn open(path: &Path) -> Result<Database> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(redb::Error::Io)?;
    if file.metadata().map_err(redb::Error::Io)?.len() == 0 {
        return Err(
            redb::Error::Io(io::Error::new(io::ErrorKind::InvalidData, "it is empty")).into()
        );
    }
    database(file)
}

/// Makes a database in a new file, for its owner alone: secrets are in it.
pub(super) fn create(path: &Path) -> Result<Database> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    database(file.map_err(redb::Error::Io)?)
}

fn database(file: File) -> Result<Database> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(DatabaseError::DatabaseAlreadyOpen.into()),
        Err(TryLockError::Error(error)) => return Err(redb::Error::Io(error).into()),
    }
    let mut flags = [0];
    let closed_in_order =
        file.read_exact_at(&mut flags, FLAGS).is_ok() && flags[0] & RECOVERY_REQUIRED == 0;
    let opening = Arc::new(AtomicBool::new(true));
    let database = redb::Builder::new()
        .set_cache_size(CACHE)
        .set_repair_callback(move |repair| refuse_rollback(repair, closed_in_order))
        .create_with_backend(Disk { file, opening: opening.clone() })?;
    opening.store(false, Ordering::Relaxed);
    Ok(database)
}

/// Going back to the last commit but one is right after a crash, for the last one was never
/// acknowledged. In a file that was closed in order it would lose acknowledged writes.
fn refuse_rollback(repair: &mut RepairSession, closed_in_order: bool) {
    // the engine calls at 0.3 only if the last commit does not verify
    if closed_in_order && (0.1..0.5).contains(&repair.progress()) {
        repair.abort();
    }
}

impl Disk {
    /// Reads what the kernel has in its page cache. Returns whether that is all.
    fn read_cached(&self, offset: u64, out: &mut [u8]) -> bool {
        let length = out.len();
        let out = &mut [IoSliceMut::new(out)];
        preadv2(&self.file, out, offset, ReadWriteFlags::NOWAIT) == Ok(length)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if !self.read_cached(offset, out) {
            blocking::in_place(|| self.file.read_exact_at(out, offset))?;
        }
        if self.opening.load(Ordering::Relaxed)
            && let Some(flags) =
                FLAGS.checked_sub(offset).and_then(|at| out.get_mut(usize::try_from(at).ok()?))
        {
            *flags = *flags & !TWO_PHASE_COMMIT | RECOVERY_REQUIRED;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}
