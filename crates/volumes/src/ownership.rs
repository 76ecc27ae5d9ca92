//! Gives a volume to the group of a pod (`fsGroup`): everything in it belongs to the group, which
//! may read and write it, and what is made in it later belongs to the group too. A walk has threads
//! of its own, as many as there are CPUs, so that no other pod's start waits for it.

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

use super::error::Error;

pub(super) use walk::Change;
#[cfg(test)]
pub(super) use walk::change as walk;

/// After how long a walk is worth an event, and how often there is one from then on.
const FIRST_REPORT: Duration = Duration::from_secs(30);
const REPORTS: Duration = Duration::from_secs(60);
const IN_PROGRESS: &str = "VolumePermissionChangeInProgress";
const SET_GROUP: u32 = 0o2000;
/// Beside what files get, so that directories can be entered.
const ENTER: u32 = 0o110;

/// What the files of a volume are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    group: u32,
    /// What owner and group may do with files at least.
    files: u32,
    /// Whether a volume whose root is right is taken to be right.
    by_root: bool,
}

impl Ownership {
    /// As the pod asks for it; `None` if it asks for nothing.
    pub(super) fn of_pod(pod: &Pod, read_only: bool) -> Option<Self> {
        let context = pod.spec.as_ref()?.security_context.as_ref()?;
        let group = u32::try_from(context.fs_group?).ok()?;
        let by_root = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
        Some(Self::new(group, read_only, by_root))
    }

    /// For that group; `by_root` is upstream's policy `OnRootMismatch`.
    pub fn new(group: u32, read_only: bool, by_root: bool) -> Self {
        Self { group, files: if read_only { 0o440 } else { 0o660 }, by_root }
    }

    /// Changes what lies below a directory, and last that directory itself: a walk that was broken
    /// off is begun anew by the next. The pod is told of one that takes long.
    pub(super) async fn apply(
        self,
        root: PathBuf,
        pod: &Pod,
        pod_events: &PodEventRecorder,
    ) -> Result<(), Error> {
        self.apply_within(root, pod, pod_events, FIRST_REPORT, REPORTS).await
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
            // Nobody may wait for it any more, as when the daemon stops; who waits is told of a panic
            // by the loss of this sender.
            if let Ok(given) = panics::contain_sync(|| self.give_counted(&root, &counter)) {
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

    /// The same at once, on the threads of the walk and this one.
    ///
    /// # Errors
    /// The root, or a directory below, cannot be read. What cannot be changed is no error, as
    /// upstream has it: a file system may know no owners.
    pub fn give(self, root: &Path) -> Result<(), Error> {
        self.give_counted(root, &AtomicU64::new(0))
    }

    fn give_counted(self, root: &Path, seen: &AtomicU64) -> Result<(), Error> {
        if self.by_root && self.is_right(root) {
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

    /// Whether the root is as a walk leaves it.
    fn is_right(self, root: &Path) -> bool {
        let needed = self.files | ENTER | SET_GROUP;
        fs::metadata(root).is_ok_and(|root| {
            root.is_dir() && root.gid() == self.group && root.mode() & needed == needed
        })
    }
}

/// The path from the pod's UID on, as upstream tells it.
fn name_of(path: &Path, uid: &str) -> String {
    let path = path.display().to_string();
    match path.find(uid) {
        Some(at) if !uid.is_empty() => path.get(at..).unwrap_or_default().to_owned(),
        _ => path,
    }
}
