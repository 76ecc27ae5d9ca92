//! Logs of containers, where the kubelet expects them.

use std::io;
use std::path::{Path, PathBuf};

use bollard::models::ContainerInspectResponse;

use crate::container::log_path_of;
use crate::{Error, Result};

/// The logs of all containers.
#[derive(Debug, Default)]
pub(crate) struct Logs;

impl Logs {
    /// Links a container's log to the engine's.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn begin(&self, container: &ContainerInspectResponse, root: &str) -> Result<()> {
        let Some(link) = log_path_of(container).map(Path::new) else { return Ok(()) };
        let Some(log) = source(container, root) else { return Ok(()) };
        let failed = |error| Error::file("create log", link, error);
        if let Some(folder) = link.parent() {
            tokio::fs::create_dir_all(folder).await.map_err(failed)?;
        }
        match tokio::fs::remove_file(link).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        tokio::fs::symlink(log, link).await.map_err(failed)
    }

    /// Takes up the logs of containers that run already.
    pub(crate) async fn resume(&self, _inner: &crate::service::Inner) {}

    /// A container has ended.
    pub(crate) fn ended(&self, _id: &str) {}

    /// The container has ended.
    pub(crate) async fn complete(&self, _container: &ContainerInspectResponse) {}

    /// The container is gone, and so is what a link leads to.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn end(&self, container: &ContainerInspectResponse) -> Result<()> {
        let Some(path) = log_path_of(container).map(Path::new) else { return Ok(()) };
        let is_link = tokio::fs::symlink_metadata(path).await.is_ok_and(|m| m.is_symlink());
        if !is_link {
            return Ok(());
        }
        match tokio::fs::remove_file(path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove log", path, error))
            }
            _ => Ok(()),
        }
    }

    /// A new file is to be begun.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn reopen(&self, container: &ContainerInspectResponse, root: &str) -> Result<()> {
        self.begin(container, root).await
    }
}

/// The engine's log of a container, which it names when it starts it.
fn source(container: &ContainerInspectResponse, root: &str) -> Option<PathBuf> {
    if let Some(path) = container.log_path.as_deref().filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let id = container.id.as_deref()?;
    Some(Path::new(root).join("containers").join(id).join(format!("{id}-json.log")))
}
