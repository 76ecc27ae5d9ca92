//! Stop and removal of containers and sandboxes, and release of a pod's resources.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::files::if_present;
use longshore_base::{panics, trees};
use longshore_cri::Runtime;
use longshore_pod::observed::{Container, ObservedPod};
use longshore_pod::{Timestamp, spec};
use tracing::warn;

use super::{Error, PodRuntime, container};

/// Concurrent removals: a pod may have thousands of containers.
const REMOVALS: usize = 32;

impl PodRuntime {
    /// Stop a container with that grace period. A missing one counts as stopped.
    pub async fn stop_container(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
        grace: Duration,
    ) -> Result<(), Error> {
        ignore_not_found(self.cri.stop_container(id, grace).await)?;
        Ok(self.observer.inspect_container(uid, id, sandbox_id).await?)
    }

    /// Stop a sandbox and release its network. A missing one counts as stopped.
    pub async fn stop_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        ignore_not_found(self.cri.stop_pod_sandbox(id).await)?;
        Ok(self.observer.inspect_sandbox(uid, id).await?)
    }

    /// Remove a container that has exited, and the link to its log.
    pub async fn remove_container(&self, pod: &Pod, name: &str, id: &str) -> Result<(), Error> {
        let link = container::legacy_log_link(spec::namespace(pod), spec::name(pod), name, id);
        discard(&self.cri, id, &link).await?;
        self.observer.removed(spec::uid(pod), id);
        Ok(())
    }

    /// Remove all containers of a pod that has terminated, and the links to their logs.
    pub async fn remove_containers(&self, pod: &ObservedPod) -> Result<(), Error> {
        let gone = Mutex::new(HashSet::new());
        let removed = stream::iter(&pod.containers)
            .map(Ok)
            .try_for_each_concurrent(REMOVALS, |run| async {
                discard_container(&self.cri, pod, run).await?;
                gone.lock().insert(run.id.as_str());
                Ok(())
            })
            .await;
        let gone = gone.into_inner();
        self.observer.all_removed(&pod.uid, &gone);
        removed
    }

    /// Remove a stopped sandbox.
    pub async fn remove_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        ignore_not_found(self.cri.remove_pod_sandbox(id).await)?;
        self.observer.removed(uid, id);
        Ok(())
    }

    /// Release what [`prepare`](Self::prepare) set up, except logs.
    pub async fn release(&self, pod: &Pod) -> Result<(), Error> {
        self.images.forget(spec::uid(pod));
        self.objects.unregister(spec::uid(pod));
        self.user_namespaces.release(spec::uid(pod));
        self.managers.release(spec::uid(pod));
        self.devices.release(spec::uid(pod));
        match self.volumes.unmount(spec::uid(pod)).await {
            // Nothing can be done about it: the pod does not wait for the end of the machine.
            Err(error @ longshore_volumes::Error::Hidden(_)) => {
                self.pod_events.pod(pod, true, "FailedUnmount", &error.to_string());
            }
            unmounted => unmounted?,
        }
        Ok(self.settings.cgroups.remove(pod).await?)
    }

    /// An image was removed at that time or later: its pull record is removed.
    pub fn image_removed(&self, id: &str, since: Timestamp) {
        self.images.removed(id, since);
    }

    /// Remove the pod's directory, with the volumes in it, and its logs.
    pub async fn remove_files(&self, pod: &Pod) -> Result<(), Error> {
        self.remove_logs(spec::uid(pod)).await?;
        // Removed last: a restarted daemon finds unfinished work by it.
        match self.volumes.remove_pod(spec::uid(pod)).await {
            // It was reported when the volumes were taken down.
            Err(longshore_volumes::Error::Hidden(_)) => {}
            removed => removed?,
        }
        self.user_namespaces.release(spec::uid(pod));
        Ok(())
    }

    async fn remove_logs(&self, uid: &str) -> Result<(), Error> {
        // By its suffix, for the UID is all that is known of some orphans.
        let suffix = format!("_{uid}");
        let logs = &self.settings.pod_logs_dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        let entries = if_present(tokio::fs::read_dir(logs).await).map_err(at(logs))?;
        let Some(mut entries) = entries else { return Ok(()) };
        while let Some(entry) = entries.next_entry().await.map_err(at(logs))? {
            if entry.file_name().to_string_lossy().ends_with(&suffix) {
                let dir = entry.path();
                let tree = dir.clone();
                panics::try_blocking(move || trees::remove(&tree)).await.map_err(at(&dir))?;
            }
        }
        Ok(())
    }
}

/// Stop an orphaned container. A missing one counts as stopped.
pub async fn stop_run(cri: &Runtime, id: &str, grace: Duration) -> Result<(), Error> {
    Ok(ignore_not_found(cri.stop_container(id, grace).await)?)
}

/// Remove an exited container, and its logs.
pub async fn remove_run(cri: &Runtime, pod: &ObservedPod, run: &Container) -> Result<(), Error> {
    let log = Path::new(&run.log_path);
    // A log outside of the pods' log directories is not the node's.
    let pod_dir = log.ancestors().nth(2).map(|dir| dir.to_string_lossy().into_owned());
    if pod_dir.is_some_and(|dir| dir.ends_with(&format!("_{}", pod.uid))) {
        remove_log(log).await?;
    }
    discard_container(cri, pod, run).await
}

/// Stop a sandbox, in case its network is still there, and remove it.
pub async fn discard_sandbox(cri: &Runtime, id: &str) -> Result<(), Error> {
    ignore_not_found(cri.stop_pod_sandbox(id).await)?;
    Ok(ignore_not_found(cri.remove_pod_sandbox(id).await)?)
}

async fn discard_container(cri: &Runtime, pod: &ObservedPod, run: &Container) -> Result<(), Error> {
    let link = container::legacy_log_link(&pod.namespace, &pod.name, &run.name, &run.id);
    discard(cri, &run.id, &link).await
}

async fn discard(cri: &Runtime, id: &str, link: &Path) -> Result<(), Error> {
    // The link is removed first: without the container, its name is not known.
    if let Err(error) = if_present(tokio::fs::remove_file(link).await) {
        warn!(link = %link.display(), %error, "cannot remove the link to a log");
    }
    Ok(ignore_not_found(cri.remove_container(id).await)?)
}

/// Remove a log and its rotated files: all with its prefix in its directory.
async fn remove_log(log: &Path) -> Result<(), Error> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name()) else { return Ok(()) };
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    let entries = if_present(tokio::fs::read_dir(dir).await).map_err(at(dir))?;
    let Some(mut entries) = entries else { return Ok(()) };
    while let Some(entry) = entries.next_entry().await.map_err(at(dir))? {
        if entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            let path = entry.path();
            if_present(tokio::fs::remove_file(&path).await).map_err(at(&path))?;
        }
    }
    Ok(())
}

fn ignore_not_found(result: longshore_cri::Result<()>) -> longshore_cri::Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn log_removal_includes_rotated_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let own = ["1.log", "1.log.20260101-000000", "1.log.20260101-000000.gz"];
        let others = ["0.log", "11.log", "1.txt"];
        own.iter()
            .chain(&others)
            .for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        remove_log(&dir.path().join("1.log")).await.unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap();
        let left: BTreeSet<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, others.map(Into::into).into());
        remove_log(&dir.path().join("none/1.log")).await.unwrap();
        remove_log(Path::new("")).await.unwrap();
    }
}
