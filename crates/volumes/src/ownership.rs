//! Ownership of volumes (`fsGroup`): all files belong to the pod's group, which may read and write
//! them, as do files created later. A walk has its own threads, one per CPU, so that it delays no
//! other pod's start.

mod modes;
mod walk;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::{panics, time};
use longshore_client::events::PodEventRecorder;
use longshore_pod::spec;
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use crate::error::Error;

pub(super) use walk::Change;
#[cfg(test)]
pub(super) use walk::change as walk;

/// When the first event about a long walk is recorded, and how often from then on.
const FIRST_EVENT_AFTER: Duration = Duration::from_secs(30);
const EVENT_INTERVAL: Duration = Duration::from_secs(60);
const IN_PROGRESS: &str = "VolumePermissionChangeInProgress";
const SET_GROUP: u32 = 0o2000;
/// Added for directories.
const ENTER: u32 = 0o110;

/// The ownership of a volume's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    group: u32,
    /// Minimum permissions of owner and group on files.
    files: u32,
    /// Whether to skip the walk if the root has the right ownership.
    on_root_mismatch: bool,
}

impl Ownership {
    /// From the pod's security context; `None` without fsGroup.
    pub(super) fn of_pod(pod: &Pod, read_only: bool) -> Option<Self> {
        let context = pod.spec.as_ref()?.security_context.as_ref()?;
        let group = u32::try_from(context.fs_group?).ok()?;
        let on_root_mismatch = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
        Some(Self::new(group, read_only, on_root_mismatch))
    }

    /// For that group; `on_root_mismatch` is the policy `OnRootMismatch`.
    pub fn new(group: u32, read_only: bool, on_root_mismatch: bool) -> Self {
        Self { group, files: if read_only { 0o440 } else { 0o660 }, on_root_mismatch }
    }

    /// Changes all files below a directory, and last the directory itself, so that an interrupted
    /// walk is repeated. Events are recorded if it takes long.
    pub(super) async fn apply(
        self,
        root: PathBuf,
        pod: &Pod,
        pod_events: &PodEventRecorder,
    ) -> Result<(), Error> {
        self.apply_within(root, pod, pod_events, FIRST_EVENT_AFTER, EVENT_INTERVAL).await
    }

    pub(super) async fn apply_within(
        self,
        root: PathBuf,
        pod: &Pod,
        pod_events: &PodEventRecorder,
        first: Duration,
        then: Duration,
    ) -> Result<(), Error> {
        let seen = Arc::new(AtomicU64::new(0));
        let name = name_of(&root, spec::uid(pod));
        let (done, mut outcome) = oneshot::channel();
        let counter = Arc::clone(&seen);
        let work = move || {
            // The receiver may be gone, such as when the daemon stops; after a panic, the sender is
            // dropped.
            if let Ok(given) = panics::contain_sync(|| self.apply_counted(&root, &counter)) {
                let _ = done.send(given);
            }
        };
        let thread = std::thread::Builder::new().name("fs-group".to_owned()).spawn(work);
        thread.map_err(|error| Error::io("start a thread for", Path::new("fsGroup"), error))?;
        let mut report = time::after(first);
        let mut reported = false;
        loop {
            tokio::select! {
                outcome = &mut outcome => return outcome.unwrap_or(Err(Error::Interrupted)),
                () = sleep_until(report) => {
                    let message = match reported {
                        false => format!("Setting volume ownership for {name} is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"),
                        true => {
                            let files = seen.load(Ordering::Relaxed);
                            format!("Setting volume ownership for {name}, processed {files} files.")
                        }
                    };
                    pod_events.pod(pod, true, IN_PROGRESS, &message);
                    reported = true;
                    report = time::later(report, then);
                }
            }
        }
    }

    /// The same, blocking.
    ///
    /// # Errors
    /// The root, or a directory below, cannot be read. What cannot be changed is no error, as
    /// upstream has it: a file system may know no owners.
    pub fn apply_blocking(self, root: &Path) -> Result<(), Error> {
        self.apply_counted(root, &AtomicU64::new(0))
    }

    fn apply_counted(self, root: &Path, seen: &AtomicU64) -> Result<(), Error> {
        if self.on_root_mismatch && self.root_matches(root) {
            return Ok(());
        }
        let change = Change {
            group: self.group,
            files: self.files,
            directories: self.files | ENTER | SET_GROUP,
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        walk::change(root, change, threads, seen)
    }

    /// Whether the root has the right ownership.
    fn root_matches(self, root: &Path) -> bool {
        let needed = self.files | ENTER | SET_GROUP;
        fs::metadata(root).is_ok_and(|root| {
            root.is_dir() && root.gid() == self.group && root.mode() & needed == needed
        })
    }
}

/// The path from the pod's UID on, as in upstream's events.
fn name_of(path: &Path, uid: &str) -> String {
    let path = path.display().to_string();
    match path.find(uid) {
        Some(at) if !uid.is_empty() => path.get(at..).unwrap_or_default().to_owned(),
        _ => path,
    }
}
