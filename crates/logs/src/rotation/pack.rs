//! The packing of what was put away: all but the newest, which collectors may still be reading and
//! the runtime may still be writing the last lines of.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use longshore_base::panics;
use rustix::process::setpriority_process;
use tokio::sync::oneshot;

use super::{Error, files};
use crate::files::{Rotated, draft};

/// The least that a thread can be given of a CPU that others want.
const NICEST: i32 = 19;

/// Packs what there is to pack of a log, on a thread of its own; so many files are left of what was
/// put away.
pub(super) async fn in_background(log: PathBuf, keep: usize) -> Result<(), Error> {
    let (done, outcome) = oneshot::channel();
    let work = {
        let log = log.clone();
        move || {
            // of this thread alone; without it, packing is done all the same
            let _ = setpriority_process(None, NICEST);
            // what was removed while it was being packed has come back
            let packed = || all(&log).and_then(|()| files::remove_excess(&log, keep));
            // who waits is told of a panic by the loss of this sender
            if let Ok(packed) = panics::contain_sync(packed) {
                let _ = done.send(packed);
            }
        }
    };
    let thread = std::thread::Builder::new().name("pack-logs".to_owned()).spawn(work);
    thread.map_err(Error::at(&log))?;
    outcome.await.unwrap_or_else(|error| Err(Error::at(&log)(io::Error::other(error))))
}

/// Packs all that was put away but the newest, and removes what is left of packing that was
/// interrupted.
pub(super) fn all(log: &Path) -> Result<(), Error> {
    let files = files::list(log)?;
    for leftover in &files.leftovers {
        files::remove(leftover)?;
    }
    let Some((_, older)) = files.rotated.split_last() else { return Ok(()) };
    for rotated in older.iter().filter(|rotated| !rotated.packed) {
        let packed = Rotated { packed: true, ..rotated.clone() };
        pack(&rotated.path(log), &packed.path(log))?;
    }
    Ok(())
}

/// A packed file is whole from the moment that it has its name, whatever happens; until then the
/// plain one stays.
fn pack(plain: &Path, packed: &Path) -> Result<(), Error> {
    let mut from = match File::open(plain) {
        // removed meanwhile
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        from => from.map_err(Error::at(plain))?,
    };
    let draft = draft(plain);
    let mut write = || {
        let mode = from.metadata()?.permissions().mode();
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&draft)?;
        // Logs are much alike in themselves, and there may be a lot of them: a level that is
        // several times as quick packs nearly as well.
        let mut packer = GzEncoder::new(BufWriter::new(file), Compression::fast());
        io::copy(&mut from, &mut packer)?;
        let file = packer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_data()?;
        fs::rename(&draft, packed)
    };
    let written: io::Result<()> = write();
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(Error::at(&draft)(error));
    }
    files::remove(plain)
}
