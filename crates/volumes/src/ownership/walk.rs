//! Recursively changes group and mode of a volume. Names are resolved relative to open directories
//! without following links, so that it never leaves the volume, whatever a container does
//! meanwhile.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_base::panics;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, chownat, fchmod, fchown, fstat, openat, statat,
};
use rustix::io::Errno;
use tracing::warn;

use super::modes::Modes;
use crate::error::Error;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const SET_IDS: u32 = 0o6000;
const PERMISSIONS: u32 = 0o7777;

/// The change to apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) group: u32,
    /// Permissions that are added to files and directories.
    pub(crate) files: u32,
    pub(crate) directories: u32,
}

/// A directory to process: its name in an open directory.
struct Job {
    parent: Arc<OwnedFd>,
    name: CString,
}

/// The work queue of the threads. Last in, first out, so that the number of open directories is
/// bounded by the depth of the tree.
struct Queue {
    state: Mutex<State>,
    work_available: Condvar,
    modes: Modes,
}

struct State {
    jobs: Vec<Job>,
    /// Jobs that are queued or in progress.
    open: usize,
    error: Option<Errno>,
}

/// Changes all files below `root`, then `root` itself, and counts them. Errors are logged, as
/// upstream, since a file system may not support owners.
pub(crate) fn change(
    root: &Path,
    change: Change,
    threads: usize,
    seen: &AtomicU64,
) -> Result<(), Error> {
    let fail = |errno: Errno| Error::io("change the group of", root, errno);
    let fd = openat(CWD, root, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    let stat = fstat(&fd).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let fd = Arc::new(fd.try_clone().map_err(|error| Error::io("open", root, error))?);
        let queue = Queue::new(Job { parent: fd, name: c".".to_owned() }).map_err(fail)?;
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                // It also works with fewer threads.
                let builder = std::thread::Builder::new();
                let _ = builder.spawn_scoped(scope, || queue.work(change, seen));
            }
            queue.work(change, seen);
        });
        if let Some(errno) = queue.state().error {
            return Err(fail(errno));
        }
    }
    // The root comes last: its ownership marks the whole volume as done.
    let (mode, extra) = (stat.st_mode & PERMISSIONS, change.of(stat.st_mode));
    let group = (stat.st_gid != change.group).then(|| Gid::from_raw(change.group));
    fchown(&fd, None, group).unwrap_or_else(|errno| log_failure("group", root, errno));
    if mode | extra != mode || group.is_some() && mode & SET_IDS != 0 {
        fchmod(&fd, Mode::from_raw_mode(mode | extra))
            .unwrap_or_else(|errno| log_failure("mode", root, errno));
    }
    seen.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

impl Change {
    /// The permissions to add to a file of that type; none for links.
    fn of(self, mode: u32) -> u32 {
        match FileType::from_raw_mode(mode) {
            FileType::Directory => self.directories,
            FileType::Symlink => 0,
            _ => self.files,
        }
    }

    /// Changes one file of an open directory.
    fn apply(
        self,
        (dir, name): (&OwnedFd, &CStr),
        mode: u32,
        group: u32,
        modes: &Modes,
    ) -> Result<(), Errno> {
        let group_differs = group != self.group;
        if group_differs {
            let group = Some(Gid::from_raw(self.group));
            chownat(dir, name, None, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let (own, extra) = (mode & PERMISSIONS, self.of(mode));
        // A change of owner clears the set-id bits, which are restored.
        if extra == 0 || own | extra == own && !(group_differs && own & SET_IDS != 0) {
            return Ok(());
        }
        modes.change(dir, name, own | extra)
    }
}

impl Queue {
    fn new(first: Job) -> Result<Self, Errno> {
        let state = State { jobs: vec![first], open: 1, error: None };
        Ok(Self { state: Mutex::new(state), work_available: Condvar::new(), modes: Modes::new()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Processes jobs until all are done.
    fn work(&self, change: Change, seen: &AtomicU64) {
        while let Some(job) = self.next() {
            let work = || self.process(&job, change, seen);
            let done = panics::contain_sync(work).unwrap_or(Err(Errno::IO));
            let mut state = self.state();
            state.open -= 1;
            if let Err(errno) = done {
                state.error.get_or_insert(errno);
            }
            if state.open == 0 || state.error.is_some() {
                self.work_available.notify_all();
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.open == 0 || state.error.is_some() {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                return Some(job);
            }
            self.work_available.wait(&mut state);
        }
    }

    fn add(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        state.open += jobs.len();
        state.jobs.extend(jobs);
        self.work_available.notify_all();
    }

    /// Processes a directory; its subdirectories become jobs.
    fn process(&self, job: &Job, change: Change, seen: &AtomicU64) -> Result<(), Errno> {
        let dir = match openat(&*job.parent, &*job.name, DIRECTORY, Mode::empty()) {
            // It was removed or replaced meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            dir => Arc::new(dir?),
        };
        let mut found = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            match change.apply((&dir, name), stat.st_mode, stat.st_gid, &self.modes) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => log_failure("group", Path::new(&*name.to_string_lossy()), errno),
            }
            seen.fetch_add(1, Ordering::Relaxed);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                found.push(Job { parent: Arc::clone(&dir), name: name.to_owned() });
            }
        }
        if !found.is_empty() {
            self.add(found);
        }
        Ok(())
    }
}

fn log_failure(what: &'static str, path: &Path, errno: Errno) {
    warn!(path = %path.display(), %errno, "failed to change the {what} of a file in a volume");
}
