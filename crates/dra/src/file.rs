//! A file of state, which is replaced whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_base::files;
use tokio::sync::Mutex;

pub(crate) struct StateFile {
    path: PathBuf,
    /// Held during writes.
    writing: Arc<Mutex<()>>,
}

impl StateFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, writing: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what this function returns when the write begins. Returns when it is on disk; an error is a text.
    pub(crate) async fn write(
        &self,
        content: impl FnOnce() -> Result<Vec<u8>, serde_json::Error>,
    ) -> Result<(), String> {
        // It is held by the write itself, which goes on when this future is dropped.
        let guard = self.writing.clone().lock_owned().await;
        let content = content().map_err(|error| error.to_string())?;
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            files::replace(&path, &content)
        });
        match written.await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}
