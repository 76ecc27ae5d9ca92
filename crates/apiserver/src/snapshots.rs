//! Snapshots of the embedded store, given out while it is served.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_store::backup::{SnapshotWriter, Summary};
use longshore_store::{EmbeddedStore, Error, Result, Store};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The name of the socket at which an apiserver gives out snapshots, in the directory of its store.
pub(crate) const SNAPSHOT_SOCKET: &str = "snapshot.sock";

/// How long a reader of a snapshot may not read.
const STALL: Duration = Duration::from_secs(60);
/// How long the socket is not listened on after it failed.
const RETRY: Duration = Duration::from_secs(10);

/// Snapshots of a store that is being served, for its owner and root on the same machine.
pub struct SnapshotSocket {
    /// The store.
    pub store: Arc<EmbeddedStore>,
    /// Where to listen.
    pub path: PathBuf,
}

impl SnapshotSocket {
    /// Gives out a snapshot to each connection, one at a time, until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => break,
                ended = self.listen() => ended,
            };
            if let Err(error) = ended {
                let path = self.path.display();
                tracing::warn!(%error, %path, "snapshots cannot be given out");
                // a path that is too long for a socket stays so
                if error.kind() == io::ErrorKind::InvalidInput {
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(RETRY) => {}
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }

    async fn listen(&self) -> io::Result<()> {
        // of a process that was killed: the store is ours, and so is this
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.file_type().is_socket()) {
            std::fs::remove_file(&self.path)?;
        }
        let listener = UnixListener::bind(&self.path)?;
        std::fs::set_permissions(&self.path, PermissionsExt::from_mode(0o600))?;
        loop {
            let (reader, _) = listener.accept().await?;
            let own = rustix::process::geteuid().as_raw();
            let is_allowed = reader.peer_cred().is_ok_and(|by| [0, own].contains(&by.uid()));
            if !is_allowed {
                continue;
            }
            match self.send(reader).await {
                Ok(Summary { revision, entries }) => {
                    tracing::info!(revision, entries, "a snapshot was given out");
                }
                Err(error) => tracing::warn!(%error, "a snapshot could not be given out"),
            }
        }
    }

    async fn send(&self, mut reader: UnixStream) -> Result<Summary> {
        let mut export = Export::begin(&self.store).await?;
        while let Some(bytes) = export.next().await? {
            let sent = timeout(STALL, reader.write_all(&bytes)).await;
            sent.map_err(|_| Error::Backend("its reader stalls".to_owned()))?.map_err(unwritten)?;
        }
        Ok(export.summary)
    }
}

/// The bytes of a snapshot of the newest revision, a page of the store at a time.
pub(crate) struct Export<'a> {
    store: &'a EmbeddedStore,
    /// `None` after the end.
    writer: Option<SnapshotWriter<Vec<u8>>>,
    start: String,
    pub(crate) summary: Summary,
}

impl Export<'_> {
    pub(crate) async fn begin(store: &EmbeddedStore) -> Result<Export<'_>> {
        let revision = store.revision().await?;
        let writer = Some(SnapshotWriter::begin(Vec::new(), revision).map_err(unwritten)?);
        let summary = Summary { revision, entries: 0 };
        Ok(Export { store, writer, start: String::new(), summary })
    }

    /// `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(mut writer) = self.writer.take() else { return Ok(None) };
        let page = self.store.export(&self.start, self.summary.revision).await?;
        let Some(last) = page.last() else {
            let (rest, summary) = writer.finish().map_err(unwritten)?;
            self.summary = summary;
            return Ok(Some(rest));
        };
        self.start = format!("{}\0", last.key);
        page.iter().try_for_each(|entry| writer.add(entry)).map_err(unwritten)?;
        let bytes = std::mem::take(writer.get_mut());
        self.writer = Some(writer);
        Ok(Some(bytes))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unwritten(error: io::Error) -> Error {
    Error::Backend(error.to_string())
}
