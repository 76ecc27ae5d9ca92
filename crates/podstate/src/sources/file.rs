//! Static pods from a directory of manifests (or one file), which is read after inotify events and
//! periodically.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;
use longshore_base::files::if_present;
use longshore_base::panics;
use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::manifest::{self, Origin};
use super::{Invalid, ReportInvalid, Source, Update};

/// An editor writes a file in several steps; it is read once after the last.
const SETTLE: Duration = Duration::from_millis(50);

/// Watch the manifests until the receiver is closed.
pub async fn watch_manifests(
    path: PathBuf,
    node_name: String,
    period: Duration,
    report: ReportInvalid,
    updates: Sender<(Source, Update)>,
) {
    let mut scanner = Scanner {
        path: path.clone(),
        node_name,
        report,
        known: HashMap::new(),
        duplicates: HashSet::new(),
    };
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = changes(&path);
    let mut last_pods: Option<Vec<Pod>> = None;
    // Names of files that were removed since the last scan.
    let mut removed: HashSet<OsString> = HashSet::new();
    loop {
        // A directory on a network may hang, and must not block a thread of the runtime.
        let names = std::mem::take(&mut removed);
        let scanned = panics::blocking(move || {
            // A file that is there again is another file, even if it says the same.
            let without = scanner.forget(&names);
            let pods = scanner.scan();
            (scanner, [without, pods])
        });
        let snapshots;
        (scanner, snapshots) = match scanned.await {
            Ok(scanned) => scanned,
            Err(_) => return, // shutdown, or a panic, with which the scanner is lost
        };
        for pods in snapshots.into_iter().flatten() {
            if last_pods.as_ref() == Some(&pods) {
                continue;
            }
            last_pods = Some(pods.clone());
            if updates.send((Source::File, Update::Snapshot(pods))).await.is_err() {
                return;
            }
        }
        let changed = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ticks.tick() => {
                // A directory that was created later, or again, is watched from then on.
                if changes.is_none() || !path.exists() {
                    changes = self::changes(&path);
                }
            }
            event = changed => {
                sleep(SETTLE).await;
                let mut next = Some(event);
                while let Some(event) = next {
                    let lost = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                    match event {
                        Some(Ok(event)) if !event.mask.intersects(lost) => {
                            if event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
                                removed.extend(event.name);
                            }
                        }
                        _ => {
                            changes = self::changes(&path);
                            break;
                        }
                    }
                    next = changes.as_mut().and_then(|changes| changes.next().now_or_never());
                }
            }
        }
    }
}

/// Inotify events of the path; `None` while it does not exist.
fn changes(path: &Path) -> Option<inotify::EventStream<[u8; 1024]>> {
    // A single file is usually replaced by a new one, which a watch of the file does not see.
    let dir = if path.is_file() { path.parent()? } else { path };
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::ATTRIB
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::MOVE_SELF
        | WatchMask::DELETE_SELF;
    inotify.watches().add(dir, mask).ok()?;
    inotify.into_event_stream([0; 1024]).ok()
}

/// The result of reading a file.
struct Known {
    content: Vec<u8>,
    /// The error, if it is invalid.
    error: Option<manifest::Error>,
    /// The last valid pod: it is kept when the file becomes invalid.
    pod: Option<Pod>,
}

struct Scanner {
    path: PathBuf,
    node_name: String,
    report: ReportInvalid,
    known: HashMap<PathBuf, Known>,
    /// Files whose pod is in another file already.
    duplicates: HashSet<PathBuf>,
}

impl Scanner {
    /// Files of these names were removed. Returns the pods of the others if one was known.
    fn forget(&mut self, names: &HashSet<OsString>) -> Option<Vec<Pod>> {
        let before = self.known.len();
        self.known.retain(|file, _| !file.file_name().is_some_and(|name| names.contains(name)));
        if self.known.len() == before {
            return None;
        }
        let mut files: Vec<PathBuf> = self.known.keys().cloned().collect();
        files.sort();
        Some(self.pods_of(files))
    }

    /// All pods of the manifests, in the order of their files; `None` if they cannot be listed.
    fn scan(&mut self) -> Option<Vec<Pod>> {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                warn!(path = %self.path.display(), %error, "cannot read manifests");
                return None;
            }
        };
        self.known.retain(|file, _| files.contains(file));
        files.iter().for_each(|file| self.read(file));
        Some(self.pods_of(files))
    }

    /// The pods of these files, each only once.
    fn pods_of(&mut self, files: Vec<PathBuf>) -> Vec<Pod> {
        let mut pods: Vec<Pod> = Vec::new();
        let mut duplicates = HashSet::new();
        for file in files {
            let Some(pod) = self.known.get(&file).and_then(|known| known.pod.as_ref()) else {
                continue;
            };
            match pods.iter().find(|other| super::is_duplicate(other, pod)) {
                None => pods.push(pod.clone()),
                Some(_) => {
                    if !self.duplicates.contains(&file) {
                        (self.report)(&Invalid {
                            location: &file.to_string_lossy(),
                            reason: super::DUPLICATE,
                            duplicate: Some((pod, Source::File)),
                        });
                    }
                    duplicates.insert(file);
                }
            }
        }
        self.duplicates = duplicates;
        pods
    }

    /// Read a file, unless it is unchanged.
    fn read(&mut self, file: &Path) {
        let content = match content(file) {
            Ok(content) => content,
            // It was removed after the directory was listed.
            Err(_) if !file.exists() => {
                self.known.remove(file);
                return;
            }
            Err(error) => return self.store(file, Vec::new(), Err(error)),
        };
        if self.known.get(file).is_some_and(|known| known.content == content) {
            return;
        }
        let result = manifest::pod(&content, Origin::File(file), &self.node_name);
        self.store(file, content, result);
    }

    /// Store a result. An error is reported once for each content.
    fn store(&mut self, file: &Path, content: Vec<u8>, result: Result<Pod, manifest::Error>) {
        let (error_before, pod_before) =
            self.known.remove(file).map_or((None, None), |known| (known.error, known.pod));
        let (error, pod) = match result {
            Ok(pod) => {
                info!(file = %file.display(), pod = pod.metadata.name, "static pod");
                (None, Some(pod))
            }
            Err(error) => {
                if error_before.as_ref() != Some(&error) {
                    (self.report)(&Invalid::at(&file.to_string_lossy(), &error.to_string()));
                }
                (Some(error), pod_before)
            }
        };
        self.known.insert(file.to_owned(), Known { content, error, pod });
    }

    fn files(&self) -> std::io::Result<Vec<PathBuf>> {
        let Some(metadata) = if_present(std::fs::metadata(&self.path))? else {
            return Ok(Vec::new());
        };
        if metadata.is_file() {
            return Ok(vec![self.path.clone()]);
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            let hidden =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden && path.is_file() {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

fn content(file: &Path) -> Result<Vec<u8>, manifest::Error> {
    let read = |error: std::io::Error| manifest::Error::Read(error.to_string());
    let size = std::fs::metadata(file).map_err(read)?.len();
    if size > manifest::MAX_BYTES {
        return Err(manifest::Error::TooLarge);
    }
    std::fs::read(file).map_err(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn static_pod_whose_file_is_replaced_by_the_same_is_removed_and_added() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let manifest = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;
        let file = dir.path().join("p.json");
        let place = || {
            let written = elsewhere.path().join("p.json");
            std::fs::write(&written, manifest).unwrap();
            std::fs::rename(written, &file).unwrap();
        };
        place();
        let (updates, mut received) = tokio::sync::mpsc::channel(8);
        let period = Duration::from_secs(3600);
        let path = dir.path().to_owned();
        let report: ReportInvalid = Arc::new(|_: &Invalid| {});
        tokio::spawn(watch_manifests(path, "n".to_owned(), period, report, updates));
        let mut counts = async || match received.recv().await {
            Some((Source::File, Update::Snapshot(pods))) => pods.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(counts().await, 1);
        // Changed in place it stays: an editor may write it several times.
        std::fs::write(&file, manifest).unwrap();
        std::fs::remove_file(&file).unwrap();
        place();
        assert_eq!([counts().await, counts().await], [0, 1]);
    }
}
