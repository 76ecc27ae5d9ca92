//! The end of containers and sandboxes, and giving back what a pod held.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::spec;
use tracing::warn;

use super::{Error, PodRuntime, container};

impl PodRuntime {
    /// Stop a container, within `grace` if it is willing. One that is gone counts as stopped.
    pub async fn stop_container(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
        grace: Duration,
    ) -> Result<(), Error> {
        forgive_gone(self.cri.stop_container(id, grace).await)?;
        Ok(self.observer.look_at_container(uid, id, sandbox_id).await?)
    }

    /// Stop a sandbox and give its network back. One that is gone counts as stopped.
    pub async fn stop_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        forgive_gone(self.cri.stop_pod_sandbox(id).await)?;
        Ok(self.observer.look_at_sandbox(uid, id).await?)
    }

    /// Remove a container that has ended, and the link to its log.
    pub async fn remove_container(&self, pod: &Pod, name: &str, id: &str) -> Result<(), Error> {
        // The link goes first: once the container is gone, nothing tells of it.
        let link = container::legacy_log_link(pod, name, id);
        match tokio::fs::remove_file(&link).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!(link = %link.display(), %error, "link to a log stays");
            }
            _ => {}
        }
        forgive_gone(self.cri.remove_container(id).await)?;
        self.observer.removed(spec::uid(pod), id);
        Ok(())
    }

    /// Remove a stopped sandbox.
    pub async fn remove_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        forgive_gone(self.cri.remove_pod_sandbox(id).await)?;
        self.observer.removed(uid, id);
        Ok(())
    }

    /// Give back what [`prepare`](Self::prepare) made, but for the logs.
    pub async fn release(&self, pod: &Pod) -> Result<(), Error> {
        self.images.forget(spec::uid(pod));
        self.objects.unregister(spec::uid(pod));
        self.user_namespaces.release(spec::uid(pod));
        self.managers.release(spec::uid(pod));
        self.volumes.unmount(spec::uid(pod)).await?;
        Ok(self.settings.cgroups.remove(pod).await?)
    }

    /// Write the data of the pod's volumes anew where it has changed.
    pub async fn refresh_volumes(&self, pod: &Pod) -> Result<(), Error> {
        Ok(self.volumes.refresh(pod).await?)
    }

    /// Remove the pod's directory, with the volumes in it, and its logs.
    pub async fn remove_files(&self, pod: &Pod) -> Result<(), Error> {
        self.remove_logs(spec::uid(pod)).await?;
        // The last to go: by it, a daemon that comes after this one finds what is left to do.
        self.volumes.remove_pod(spec::uid(pod)).await?;
        self.user_namespaces.release(spec::uid(pod));
        Ok(())
    }

    async fn remove_logs(&self, uid: &str) -> Result<(), Error> {
        // By its end, for of some orphans the UID is all that is known.
        let suffix = format!("_{uid}");
        let logs = &self.settings.pod_logs_dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        let mut entries = match tokio::fs::read_dir(logs).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(at(logs))?,
        };
        while let Some(entry) = entries.next_entry().await.map_err(at(logs))? {
            if entry.file_name().to_string_lossy().ends_with(&suffix) {
                let dir = entry.path();
                tokio::fs::remove_dir_all(&dir).await.map_err(at(&dir))?;
            }
        }
        Ok(())
    }
}

fn forgive_gone(result: longshore_cri::Result<()>) -> longshore_cri::Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
