//! Watches the sockets below a directory: the directory is listed after inotify events, which also
//! show recreated sockets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use tokio::time::sleep;
use tracing::warn;

/// Maximum depth of directories.
const DEEPEST: usize = 4;
/// Debounce time, as plugins remove and recreate sockets.
const SETTLE: Duration = Duration::from_millis(20);
/// Retry interval of a failed watch.
const RETRY: Duration = Duration::from_secs(5);

/// What happened to a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Added or recreated.
    Added(PathBuf),
    /// Removed.
    Removed(PathBuf),
}

/// A watch on the sockets below a directory.
pub(crate) struct Sockets {
    root: PathBuf,
    watch: Option<Watch>,
    /// The inodes of known sockets.
    known: HashMap<PathBuf, u64>,
    pending: VecDeque<Change>,
}

struct Watch {
    events: inotify::EventStream<[u8; 4096]>,
    directories: HashMap<WatchDescriptor, PathBuf>,
}

impl Sockets {
    /// The directory is created with the first scan.
    pub(crate) fn open(root: PathBuf) -> Self {
        Self { root, watch: None, known: HashMap::new(), pending: VecDeque::new() }
    }

    /// The next change; existing sockets are added first.
    pub(crate) async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return change;
            }
            let made = match &mut self.watch {
                Some(watch) => watch.next().await,
                None => Ok(HashSet::new()),
            };
            let scanned = match made {
                Ok(made) => self.scan(&made),
                Err(error) => Err(error),
            };
            if let Err(error) = scanned {
                warn!(path = %self.root.display(), %error, "failed to watch the plugin directory");
                self.watch = None;
                sleep(RETRY).await;
            }
        }
    }

    /// Compares the sockets with the known ones; `made` were created since the last scan.
    fn scan(&mut self, made: &HashSet<PathBuf>) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        // Watched before it is listed, so that no change is missed.
        let watch = match &mut self.watch {
            Some(watch) => watch,
            None => self.watch.insert(Watch::new()?),
        };
        let mut found = HashMap::new();
        watch.directories.retain(|_, path| path.is_dir());
        find(&self.root, 0, watch, &mut found)?;
        for path in self.known.keys().filter(|path| !found.contains_key(*path)) {
            self.pending.push_back(Change::Removed(path.clone()));
        }
        for (path, inode) in &found {
            if self.known.get(path) != Some(inode) || made.contains(path) {
                self.pending.push_back(Change::Added(path.clone()));
            }
        }
        self.known = found;
        Ok(())
    }
}

impl Watch {
    fn new() -> io::Result<Self> {
        let events = Inotify::init()?.into_event_stream([0; 4096])?;
        Ok(Self { events, directories: HashMap::new() })
    }

    /// Waits for events, until they settle. Returns created paths.
    async fn next(&mut self) -> io::Result<HashSet<PathBuf>> {
        let mut made = HashSet::new();
        let event = self.events.next().await;
        self.note(event, &mut made)?;
        loop {
            tokio::select! {
                event = self.events.next() => self.note(event, &mut made)?,
                () = sleep(SETTLE) => return Ok(made),
            }
        }
    }

    fn note(
        &self,
        event: Option<io::Result<inotify::EventOwned>>,
        made: &mut HashSet<PathBuf>,
    ) -> io::Result<()> {
        let event = event.ok_or_else(|| io::Error::other("inotify has ended"))??;
        let makes = event.mask.intersects(EventMask::CREATE | EventMask::MOVED_TO);
        if let (true, Some(name), Some(directory)) =
            (makes, event.name, self.directories.get(&event.wd))
        {
            made.insert(directory.join(name));
        }
        Ok(())
    }
}

/// Lists the sockets of a directory tree, and watches all directories. Hidden names are ignored.
fn find(
    directory: &Path,
    depth: usize,
    watch: &mut Watch,
    found: &mut HashMap<PathBuf, u64>,
) -> io::Result<()> {
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    // Adding it again changes nothing.
    let descriptor = watch.events.watches().add(directory, mask)?;
    watch.directories.insert(descriptor, directory.to_owned());
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        // Entries may be removed meanwhile.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.file_type().is_socket() {
            found.insert(path, metadata.ino());
        } else if metadata.is_dir()
            && depth < DEEPEST
            && let Err(error) = find(&path, depth + 1, watch, found)
            && path.exists()
        {
            warn!(path = %path.display(), %error, "failed to watch a plugin directory");
        }
    }
    Ok(())
}
