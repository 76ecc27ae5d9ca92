//! A socket of the daemon, which is there again soon after someone has removed it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use longshore_base::files::if_present;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::Server;

/// Delay before a failed socket is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Serves on a socket, forever.
pub async fn keep(path: PathBuf, serve: impl Fn(UnixListener) -> Server) {
    let mut last = String::new();
    loop {
        if let Err(error) = serve_until_gone(&path, &serve).await {
            let error = error.to_string();
            if error != last {
                warn!(path = %path.display(), error, "cannot serve on the socket");
            }
            last = error;
            sleep(RETRY).await;
        }
    }
}

async fn serve_until_gone(path: &Path, serve: impl Fn(UnixListener) -> Server) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_folder(folder)?;
    // Watched before the socket is there, so that no change is missed.
    let inotify = Inotify::init()?;
    let mask = WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::CREATE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    inotify.watches().add(folder, mask)?;
    let mut events = inotify.into_event_stream([0; 4096])?;
    if_present(std::fs::remove_file(path))?;
    let listener = UnixListener::bind(path)?;
    let inode = std::fs::symlink_metadata(path)?.ino();
    let server = serve(listener);
    let is_there = || std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == inode);
    while is_there() {
        match events.next().await {
            Some(event) => drop(event?),
            None => return Err(io::Error::other("inotify has ended")),
        }
    }
    info!(path = %path.display(), "the socket was removed, and is made again");
    server.stop().await;
    Ok(())
}

/// Creates a folder of sockets, which only root may enter.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)
}

/// Removes the sockets that an earlier daemon and its plugins have left.
pub fn remove_sockets(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if std::fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket())
            && let Err(error) = std::fs::remove_file(&path)
        {
            warn!(path = %path.display(), %error, "cannot remove the socket");
        }
    }
    Ok(())
}
