//! Logs of containers, where and as the kubelet expects them: in CRI's form, rotated by the kubelet.
//!
//! The engine cannot write to a file of our choice, nor begin a new one when it is told to. A link to its own log, as
//! cri-dockerd makes it, therefore cannot be rotated by the kubelet: renaming the link leaves the engine's file
//! as it was. So a follower of each running container copies what the engine writes, line by line, into the
//! kubelet's file; [`Logs::reopen`] has it begin a new one between two lines. Where it has to go on after a
//! restart it finds in the kubelet's file: the time of the last line. The engine's own files are bounded
//! ([`config`]) to what the kubelet keeps too, and rotated ones are read to their end.
//!
//! Current limitations: the engine's logs are JSON, so bytes that are not UTF-8 have been replaced by it.

mod copy;
mod watch;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{
    ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, HostConfigLogConfig,
};
use longshore_base::files::if_present;
use longshore_base::panics;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::labels;
use crate::{Error, Result};
use copy::Copier;
use watch::Watcher;

/// A follower sleeps for so long after each turn, so that a container that writes much causes few turns.
const REST: Duration = Duration::from_millis(20);
/// After a failure it tries again: there may be space on the disk then.
const RETRY: Duration = Duration::from_secs(1);
/// How long the status of a container that has ended may wait for the rest of its log.
const COMPLETION: Duration = Duration::from_secs(5);

/// The logs of all containers.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    followers: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Order>>>>,
    watcher: Mutex<Option<Arc<Watcher>>>,
}

/// What a follower is to do.
enum Order {
    /// Begin a new file.
    Reopen(oneshot::Sender<io::Result<()>>),
    /// Copy what is there, and end.
    Finish(oneshot::Sender<()>),
}

/// The log of one container, which its follower is to copy.
pub(crate) struct Log {
    copier: Copier,
    watcher: Arc<Watcher>,
    source: PathBuf,
}

impl Logs {
    /// Makes the log of a container where the kubelet expects it. `None` for one that has no `target`, and where it
    /// is followed already.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn open(
        &self,
        id: &str,
        target: Option<&str>,
        root: &str,
    ) -> Result<Option<Log>> {
        let Some(target) = target.filter(|_| !self.followers.lock().contains_key(id)) else {
            return Ok(None);
        };
        let failed = |error| Error::file("create log", target, error);
        let source = source(root, id);
        let (path, from) = (PathBuf::from(target), source.clone());
        let copier = panics::try_blocking(move || Copier::new(from, path)).await.map_err(failed)?;
        Ok(Some(Log { copier, watcher: self.watcher().map_err(failed)?, source }))
    }

    /// Follows the log of a container that was started, unless another call has just begun to.
    pub(crate) fn follow(&self, id: &str, log: Log) {
        let (orders, received) = mpsc::unbounded_channel();
        match self.followers.lock().entry(id.to_owned()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => _ = place.insert(orders),
        }
        let (followers, id) = (Arc::clone(&self.followers), id.to_owned());
        tokio::spawn(async move {
            panics::contained(Follower::new(log, received).run(), || ()).await;
            followers.lock().remove(&id);
        });
    }

    /// One for all: the kernel gives a user few of them.
    fn watcher(&self) -> io::Result<Arc<Watcher>> {
        let mut watcher = self.watcher.lock();
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        Ok(Arc::clone(watcher.insert(Watcher::new()?)))
    }

    /// Takes up the logs of containers that were started before this program: what runs is followed, and of
    /// what has ended meanwhile the rest is copied.
    pub(crate) async fn resume(&self, containers: Vec<ContainerSummary>, root: &str) {
        for container in containers {
            let target = target(container.labels.as_ref());
            let (Some(id), Some(target)) = (container.id, target) else { continue };
            let source = source(root, &id);
            let running = container.state == Some(ContainerSummaryStateEnum::RUNNING);
            // One that never ran has no log, and that of one which cri-dockerd ran to its end is linked.
            if !running && (!source.exists() || Path::new(target).is_symlink()) {
                continue;
            }
            match self.open(&id, Some(target), root).await {
                Ok(Some(log)) => self.follow(&id, log),
                Ok(None) => {}
                Err(error) => tracing::warn!("log of container {id}: {error}"),
            }
            if !running {
                self.finish(&id);
            }
        }
    }

    /// A container has ended: its follower ends when it has copied the rest.
    pub(crate) fn ended(&self, id: &str) {
        self.finish(id);
    }

    fn finish(&self, id: &str) -> Option<oneshot::Receiver<()>> {
        let (done, finished) = oneshot::channel();
        let followers = self.followers.lock();
        followers.get(id)?.send(Order::Finish(done)).ok()?;
        Some(finished)
    }

    /// Waits until the log of a container that has ended is complete.
    pub(crate) async fn complete(&self, container: &ContainerInspectResponse) {
        let finished = container.id.as_deref().and_then(|id| self.finish(id));
        if let Some(finished) = finished {
            // An error is a follower that has ended already.
            let _ = tokio::time::timeout(COMPLETION, finished).await;
        }
    }

    /// A container is gone. Its log stays, as with other runtimes, but for a link that leads nowhere now.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn end(&self, container: &ContainerInspectResponse) -> Result<()> {
        let Some(path) = target_of(container).map(PathBuf::from) else { return Ok(()) };
        let link = path.clone();
        let remove = move || match link.is_symlink() {
            true => if_present(fs::remove_file(link)),
            false => Ok(None),
        };
        let removed = panics::try_blocking(remove).await;
        removed.map(drop).map_err(|error| Error::file("remove log", path, error))
    }

    /// Begins a new file where the kubelet has renamed the old one.
    ///
    /// # Errors
    /// FailedPrecondition when the container does not run, and of the file system.
    pub(crate) async fn reopen(
        &self,
        container: &ContainerInspectResponse,
        root: &str,
    ) -> Result<()> {
        let id = container.id.as_deref().unwrap_or_default();
        if container.state.as_ref().and_then(|state| state.running) != Some(true) {
            return Err(Error::Precondition(format!("container {id} is not running")));
        }
        let (done, reopened) = oneshot::channel();
        let order = self.followers.lock().get(id).map(|orders| orders.send(Order::Reopen(done)));
        match order {
            Some(Ok(())) => {
                let reopened =
                    reopened.await.map_err(io::Error::other).and_then(|reopened| reopened);
                reopened.map_err(|error| Error::file("reopen log of container", id, error))
            }
            _ => {
                if let Some(log) = self.open(id, target_of(container), root).await? {
                    self.follow(id, log);
                }
                Ok(())
            }
        }
    }
}

/// Logs in files, whatever the engine does with those of others: the kubelet's are made of them. They are bounded as
/// the kubelet's are by default, so that what is rotated away here would not be kept there either.
pub(crate) fn config() -> HostConfigLogConfig {
    let bounds = [("max-size", "10m"), ("max-file", "5")];
    let bounds = bounds.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(bounds.into()) }
}

/// The path of a log for the kubelet, by the labels of its container.
pub(crate) fn target(labels: Option<&HashMap<String, String>>) -> Option<&str> {
    labels?.get(labels::LOG_PATH).map(String::as_str).filter(|path| !path.is_empty())
}

pub(crate) fn target_of(container: &ContainerInspectResponse) -> Option<&str> {
    target(container.config.as_ref()?.labels.as_ref())
}

/// The engine's log of a container.
fn source(root: &str, id: &str) -> PathBuf {
    Path::new(root).join("containers").join(id).join(format!("{id}-json.log"))
}

/// Copies the log of one container.
struct Follower {
    log: Log,
    received: mpsc::UnboundedReceiver<Order>,
    /// Whether the container has ended, and nothing more is written.
    ended: bool,
    /// Whether the last turn has failed.
    failing: bool,
}

impl Follower {
    fn new(log: Log, received: mpsc::UnboundedReceiver<Order>) -> Self {
        Self { log, received, ended: false, failing: false }
    }

    async fn run(mut self) {
        let changed = Arc::new(Notify::new());
        // Before the first turn: what is written after it is not missed.
        let mut watch = self.log.watcher.add(&self.log.source, &changed);
        loop {
            let copied = self.turn().await;
            if self.is_done() {
                return;
            }
            if self.log.copier.has_moved_on() {
                watch = self.log.watcher.add(&self.log.source, &changed);
                // It may have been written to before it was watched.
                changed.notify_one();
            }
            let pause = if copied.is_err() || watch.is_none() { RETRY } else { REST };
            let next = async {
                tokio::time::sleep(pause).await;
                if copied.is_ok() && watch.is_some() {
                    changed.notified().await;
                }
            };
            tokio::select! {
                () = next => {
                    if watch.is_none() {
                        watch = self.log.watcher.add(&self.log.source, &changed);
                    }
                }
                order = self.received.recv() => match order {
                    Some(Order::Reopen(done)) => {
                        let copied = self.turn().await;
                        let _ = done.send(copied.and_then(|()| self.log.copier.reopen()));
                    }
                    Some(Order::Finish(done)) => {
                        self.ended = true;
                        let _ = self.turn().await;
                        let _ = done.send(());
                        if self.is_done() {
                            return;
                        }
                    }
                    None => return,
                },
            }
        }
    }

    /// Copies what there is.
    async fn turn(&mut self) -> io::Result<()> {
        let (copier, copied) = turn(std::mem::take(&mut self.log.copier)).await;
        self.log.copier = copier;
        match &copied {
            Err(error) if !self.failing => {
                tracing::warn!("log {:?}: {error}; it is tried again", self.log.source);
            }
            _ => {}
        }
        self.failing = copied.is_err();
        copied
    }

    /// Whether all is copied that there will be, or what is not is gone with the container.
    fn is_done(&self) -> bool {
        if self.ended && self.failing && !self.log.source.exists() {
            tracing::warn!("the end of log {:?} is lost", self.log.source);
            return true;
        }
        self.ended && !self.failing
    }
}

/// Copies what there is, on a thread that may wait.
async fn turn(mut copier: Copier) -> (Copier, io::Result<()>) {
    let done = tokio::task::spawn_blocking(move || {
        let copied = copier.copy();
        (copier, copied)
    });
    match done.await {
        Ok(done) => done,
        // The runtime shuts down, or a panic that was reported.
        Err(error) => (Copier::default(), Err(io::Error::other(error))),
    }
}
