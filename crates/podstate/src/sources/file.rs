//! The directory of manifests of static pods (or one file), looked at when the kernel says that
//! something changed there, and from time to time all the same.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::manifest::{self, Place};
use super::{Complain, Source, Update};

/// An editor writes a file in several steps; one look after the last is enough.
const SETTLE: Duration = Duration::from_millis(50);

/// Follow the manifests until nobody listens any more.
pub async fn watch_manifests(
    path: PathBuf,
    node_name: String,
    period: Duration,
    complain: Complain,
    updates: Sender<(Source, Update)>,
) {
    let mut scanner = Scanner {
        path: path.clone(),
        node_name,
        complain,
        known: HashMap::new(),
        twins: HashSet::new(),
    };
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = changes(&path);
    let mut told: Option<Vec<Pod>> = None;
    loop {
        // A directory on a network may hang, and must not take a thread of the node along.
        let scanned = tokio::task::spawn_blocking(move || {
            let pods = scanner.scan();
            (scanner, pods)
        });
        let pods;
        (scanner, pods) = match scanned.await {
            Ok(scanned) => scanned,
            Err(_) => return, // the node stops
        };
        if let Some(pods) = pods.filter(|pods| told.as_ref() != Some(pods)) {
            told = Some(pods.clone());
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
                // A directory that was made later, or again, is watched from then on.
                if changes.is_none() || !path.exists() {
                    changes = self::changes(&path);
                }
            }
            event = changed => {
                let lost = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                match event {
                    Some(Ok(event)) if !event.mask.intersects(lost) => {}
                    _ => changes = self::changes(&path),
                }
                sleep(SETTLE).await;
            }
        }
    }
}

/// The kernel's word that something changed; `None` while there is nothing to watch.
fn changes(path: &Path) -> Option<inotify::EventStream<[u8; 1024]>> {
    // A single file is replaced by its next version, and the watch of a file does not see that.
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

/// What a file gave when it was last read, and of which content.
struct Known {
    content: Vec<u8>,
    /// Why that gave no pod.
    error: Option<manifest::Error>,
    /// The pod of the last content that gave one: an edit that went wrong stops nothing.
    pod: Option<Pod>,
}

struct Scanner {
    path: PathBuf,
    node_name: String,
    complain: Complain,
    known: HashMap<PathBuf, Known>,
    /// Files whose pod another file describes already.
    twins: HashSet<PathBuf>,
}

impl Scanner {
    /// All pods that the manifests give, in the order of their files; `None` if nobody can tell.
    fn scan(&mut self) -> Option<Vec<Pod>> {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                warn!(path = %self.path.display(), %error, "manifests cannot be read");
                return None;
            }
        };
        self.known.retain(|file, _| files.contains(file));
        let mut pods: Vec<Pod> = Vec::new();
        let mut twins = HashSet::new();
        for file in files {
            self.read(&file);
            let Some(pod) = self.known.get(&file).and_then(|known| known.pod.as_ref()) else {
                continue;
            };
            match pods.iter().find(|other| super::is_twin(other, pod)) {
                None => pods.push(pod.clone()),
                Some(_) => {
                    if !self.twins.contains(&file) {
                        (self.complain)(&file.to_string_lossy(), super::TWIN);
                    }
                    twins.insert(file);
                }
            }
        }
        self.twins = twins;
        Some(pods)
    }

    /// Read a file, unless it is as it was.
    fn read(&mut self, file: &Path) {
        let content = match content(file) {
            Ok(content) => content,
            // It went since its directory was read.
            Err(_) if !file.exists() => {
                self.known.remove(file);
                return;
            }
            Err(error) => return self.note(file, Vec::new(), Err(error)),
        };
        if self.known.get(file).is_some_and(|known| known.content == content) {
            return;
        }
        let result = manifest::pod(&content, Place::File(file), &self.node_name);
        self.note(file, content, result);
    }

    /// Keep a result. A complaint is made once for each content.
    fn note(&mut self, file: &Path, content: Vec<u8>, result: Result<Pod, manifest::Error>) {
        let (error_before, pod_before) =
            self.known.remove(file).map_or((None, None), |known| (known.error, known.pod));
        let (error, pod) = match result {
            Ok(pod) => {
                info!(file = %file.display(), pod = pod.metadata.name, "static pod");
                (None, Some(pod))
            }
            Err(error) => {
                if error_before.as_ref() != Some(&error) {
                    (self.complain)(&file.to_string_lossy(), &error.to_string());
                }
                (Some(error), pod_before)
            }
        };
        self.known.insert(file.to_owned(), Known { content, error, pod });
    }

    fn files(&self) -> std::io::Result<Vec<PathBuf>> {
        let metadata = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
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
