//! The file of the checkpoint, and the task that writes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::files::{self, if_present};
use longshore_base::panics;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::checkpoint::Content;
use crate::error::Error;

/// The file in the plugins' folder.
pub(crate) const FILE: &str = "kubelet_internal_checkpoint";
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Which version of the state is on disk.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    /// The version of the state.
    wanted: watch::Sender<u64>,
    /// The version on disk, and why a newer one is not.
    written: watch::Sender<(u64, Option<String>)>,
}

impl Store {
    pub(crate) fn new(folder: &Path) -> Self {
        let written = watch::Sender::new((0, None));
        Self { path: folder.join(FILE), wanted: watch::Sender::new(0), written }
    }

    /// The content of the file; `None`: there is no file. One that cannot be read is as if it were
    /// empty, as upstream has it.
    pub(crate) fn load(&self) -> Option<Content> {
        let text = match if_present(std::fs::read_to_string(&self.path)) {
            Ok(Some(text)) => text,
            Ok(None) => return None,
            Err(error) => {
                self.unreadable(&error);
                return Some(Content::default());
            }
        };
        match Content::read(&text) {
            Ok(content) => {
                info!(pods = content.pods.len(), "allocated devices restored");
                Some(content)
            }
            Err(error) => {
                self.unreadable(&error);
                Some(Content::default())
            }
        }
    }

    fn unreadable(&self, error: &dyn std::fmt::Display) {
        let path = self.path.display();
        warn!(%path, %error, "cannot read the checkpoint: allocated devices are not known");
    }

    /// The state has changed.
    pub(crate) fn changed(&self) {
        self.wanted.send_modify(|version| *version = version.saturating_add(1));
    }

    /// Waits until the current state is on disk.
    pub(crate) async fn written(&self) -> Result<(), Error> {
        let version = *self.wanted.borrow();
        let mut written = self.written.subscribe();
        let done = written.wait_for(|(own, error)| *own >= version || error.is_some()).await;
        match done.as_deref() {
            Ok((own, Some(why))) if *own < version => {
                Err(Error::NotPersisted { path: self.path.clone(), why: why.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Writes whenever the state has changed.
    pub(crate) async fn run(&self, content: impl Fn() -> Content) {
        let mut wanted = self.wanted.subscribe();
        let mut stored = String::new();
        loop {
            let version = *wanted.borrow_and_update();
            let text = content().write();
            let outcome = match version == 0 || text == stored {
                true => Ok(()),
                false => self.write(text.clone()).await,
            };
            let failed = outcome.is_err();
            self.written.send_modify(|(own, error)| match outcome {
                Ok(()) => (*own, *error) = (version, None),
                Err(why) => {
                    if error.as_ref() != Some(&why) {
                        warn!(path = %self.path.display(), why, "failed to write the checkpoint");
                    }
                    *error = Some(why);
                }
            });
            if failed {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            stored = text;
            if wanted.changed().await.is_err() {
                return;
            }
        }
    }

    async fn write(&self, text: String) -> Result<(), String> {
        let path = self.path.clone();
        let writing = panics::blocking(move || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            files::replace(&path, text.as_bytes())
        });
        match writing.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panicked) => Err(panicked.to_string()),
        }
    }
}
