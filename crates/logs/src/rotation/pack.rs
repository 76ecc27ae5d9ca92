//! Compresses rotated files, except the newest, which may still be read or written.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use longshore_base::files::if_present;
use longshore_base::panics;
use rustix::process::setpriority_process;
use tokio::sync::oneshot;

use super::{Error, files};
use crate::files::{Rotated, draft};

/// Lowest CPU priority.
const NICEST: i32 = 19;

/// Compresses rotated files of a log on a thread of its own, and keeps that number of them.
pub(super) async fn in_background(log: PathBuf, keep: usize) -> Result<(), Error> {
    let (done, outcome) = oneshot::channel();
    let work = {
        let log = log.clone();
        move || {
            // of this thread only; not essential
            let _ = setpriority_process(None, NICEST);
            // files removed during compression may have reappeared
            let packed = || all(&log).and_then(|()| files::remove_excess(&log, keep));
            // a panic drops this sender, which wakes the waiter
            if let Ok(packed) = panics::contain_sync(packed) {
                let _ = done.send(packed);
            }
        }
    };
    let thread = std::thread::Builder::new().name("pack-logs".to_owned()).spawn(work);
    thread.map_err(Error::at(&log))?;
    outcome.await.unwrap_or_else(|error| Err(Error::at(&log)(io::Error::other(error))))
}

/// Compresses all rotated files but the newest, and removes leftovers of interrupted compressions.
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

/// A compressed file gets its name when it is complete; until then the plain one is kept.
fn pack(plain: &Path, packed: &Path) -> Result<(), Error> {
    let from = if_present(File::open(plain)).map_err(Error::at(plain))?;
    // removed meanwhile
    let Some(mut from) = from else { return Ok(()) };
    let draft = draft(plain);
    let mut write = || {
        let mode = from.metadata()?.permissions().mode();
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&draft)?;
        // Logs compress well: a fast level is nearly as good.
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
