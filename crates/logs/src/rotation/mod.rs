//! Bounds the size of container logs: a log beyond the limit is renamed, and the runtime reopens it.
//! Rotated files but the newest are compressed, and the oldest are removed.
//!
//! Only the sizes of logs of running containers are checked, once per interval. Compression runs on
//! low-priority threads and delays no rotation.
//!
//! Current limitations: a log that is a symbolic link is not rotated, as its target belongs to
//! another program.

mod files;
mod pack;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_base::panics;
use longshore_config::Config;
use longshore_pod::qos::milli;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

/// Limits of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Size in bytes from which on a log is rotated.
    pub max_size: u64,
    /// Maximum number of files of a log, including the active one. At least 2.
    pub max_files: usize,
    /// Maximum number of parallel rotations or compressions.
    pub workers: usize,
    /// Check interval.
    pub interval: Duration,
}

impl Policy {
    /// The configured policy, validated.
    pub fn new(config: &Config) -> Self {
        let settings = &config.kubelet;
        let size = milli(&Quantity(settings.container_log_max_size.clone())).unwrap_or(i128::MAX);
        let at_least = |number: i32, least: usize| usize::try_from(number).unwrap_or(0).max(least);
        Self {
            max_size: u64::try_from(size / 1000).unwrap_or(u64::MAX),
            max_files: at_least(settings.container_log_max_files, 2),
            workers: at_least(settings.container_log_max_workers, 1),
            interval: settings.container_log_monitor_interval.get(),
        }
    }
}

/// Errors of rotation.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A file cannot be read, written, renamed or removed.
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The runtime still writes to the old file.
    #[error("the log cannot be opened anew: {0}")]
    Reopen(String),
}

impl Error {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// The runtime, as rotation needs it.
pub trait Containers: Send + Sync + 'static {
    /// The running containers.
    fn running(&self) -> Vec<Subject>;

    /// Lets the runtime reopen the log of a container. The error is its text.
    fn reopen<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), String>>;
}

/// A running container and its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The container id.
    pub id: String,
    /// The file that the runtime writes.
    pub log: PathBuf,
}

/// Rotates the logs of all running containers. Never ends.
pub async fn run(containers: impl Containers, policy: Policy) {
    let rotation = Rotation::new(containers, policy);
    rotation.recover().await;
    let mut ticks = interval(policy.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        rotation.round().await;
    }
}

struct Rotation<C> {
    containers: Arc<C>,
    policy: Policy,
    packers: Arc<Semaphore>,
    /// Logs with files being compressed.
    packing: Arc<Mutex<HashSet<PathBuf>>>,
    /// Containers whose last rotation failed, which is logged once.
    failing: Mutex<HashSet<String>>,
}

/// Required action for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// It is too large.
    Rotate,
    /// It does not exist, as after an interrupted rotation.
    Reopen,
}

impl<C: Containers> Rotation<C> {
    fn new(containers: C, policy: Policy) -> Self {
        Self {
            containers: Arc::new(containers),
            policy,
            packers: Arc::new(Semaphore::new(policy.workers)),
            packing: Arc::default(),
            failing: Mutex::default(),
        }
    }

    /// Finishes rotations of an earlier daemon.
    async fn recover(&self) {
        for subject in self.containers.running() {
            self.pack(subject.log);
        }
    }

    /// Checks all logs once, and rotates those that are due.
    async fn round(&self) {
        let subjects = self.containers.running();
        self.failing().retain(|id| subjects.iter().any(|subject| subject.id == *id));
        let max_size = self.policy.max_size;
        let look = move || -> Vec<(Subject, Result<Due, Error>)> {
            let due = |subject: Subject| Some((due(&subject.log, max_size)?, subject));
            subjects.into_iter().filter_map(due).map(|(due, subject)| (subject, due)).collect()
        };
        let Ok(due) = panics::blocking(look).await else { return };
        let rotations = futures::stream::iter(due);
        rotations
            .for_each_concurrent(self.policy.workers, |(subject, due)| async move {
                let done = match due {
                    Ok(Due::Rotate) => self.rotate(&subject).await,
                    Ok(Due::Reopen) => self.reopen(&subject).await,
                    Err(error) => Err(error),
                };
                self.report(subject, done);
            })
            .await;
    }

    fn report(&self, subject: Subject, done: Result<(), Error>) {
        let Subject { id, log } = subject;
        let mut failing = self.failing();
        match done {
            Ok(()) => drop(failing.remove(&id)),
            Err(error) if failing.insert(id.clone()) => {
                warn!(id, log = %log.display(), %error, "a log is not rotated");
            }
            Err(error) => debug!(id, log = %log.display(), %error, "a log is still not rotated"),
        }
    }

    async fn rotate(&self, subject: &Subject) -> Result<(), Error> {
        let log = &subject.log;
        let (path, keep) = (log.clone(), self.policy.max_files.saturating_sub(2));
        let rotate = move || {
            files::remove_excess(&path, keep)?;
            files::rotate_file(&path)
        };
        let done = panics::blocking(rotate).await;
        let rotated = done.map_err(|error| Error::at(log)(io::Error::other(error)))??;
        if let Err(error) = self.reopen(subject).await {
            // Retried at the next check. If the runtime has reopened the log all the same, both files
            // are kept.
            files::take_back(&rotated, log)?;
            return Err(error);
        }
        debug!(log = %log.display(), rotated = %rotated.display(), "a log is rotated");
        self.pack(log.clone());
        Ok(())
    }

    async fn reopen(&self, subject: &Subject) -> Result<(), Error> {
        self.containers.reopen(&subject.id).await.map_err(Error::Reopen)
    }

    /// Compresses rotated files of a log in the background, unless that is in progress.
    fn pack(&self, log: PathBuf) {
        if !self.packing.lock().insert(log.clone()) {
            return;
        }
        let (packers, packing) = (self.packers.clone(), self.packing.clone());
        let keep = self.policy.max_files.saturating_sub(1);
        tokio::spawn(async move {
            let place = packers.acquire().await;
            let packed = pack::in_background(log.clone(), keep).await;
            packing.lock().remove(&log);
            drop(place);
            if let Err(error) = packed {
                warn!(%error, "rotated logs are not packed");
            }
        });
    }

    fn failing(&self) -> MutexGuard<'_, HashSet<String>> {
        self.failing.lock()
    }
}

/// Required action for a log; `None`: nothing.
fn due(log: &Path, max_size: u64) -> Option<Result<Due, Error>> {
    match fs::symlink_metadata(log) {
        Ok(log) if log.is_file() && log.len() >= max_size => Some(Ok(Due::Rotate)),
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Ok(Due::Reopen)),
        Err(error) => Some(Err(Error::at(log)(error))),
    }
}

/// The steps of a rotation, for tests of those who read meanwhile.
#[cfg(test)]
pub(super) mod testing {
    use super::{Path, PathBuf, files, pack};

    pub(crate) fn rotate_file(log: &Path) -> PathBuf {
        files::rotate_file(log).unwrap()
    }

    pub(crate) fn remove_excess(log: &Path, keep: usize) {
        files::remove_excess(log, keep).unwrap();
    }

    pub(crate) fn pack(log: &Path) {
        pack::all(log).unwrap();
    }
}
