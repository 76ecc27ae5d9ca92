//! Changes of a directory of sockets.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use crate::sockets::{Change, Sockets};

const SOON: Duration = Duration::from_secs(10);
const NOTHING: Duration = Duration::from_millis(300);

async fn next(sockets: &mut Sockets) -> Change {
    timeout(SOON, sockets.next()).await.unwrap()
}

async fn nothing(sockets: &mut Sockets) {
    let change = timeout(NOTHING, sockets.next()).await;
    assert!(change.is_err(), "{change:?}");
}

fn listen(path: &Path) -> UnixListener {
    UnixListener::bind(path).unwrap()
}

#[tokio::test]
async fn plugin_sockets_added_removed_and_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("plugins_registry");
    fs::create_dir(&root).unwrap();
    let (old, new) = (root.join("old.sock"), root.join("new.sock"));
    let _old = listen(&old);
    let mut sockets = Sockets::open(root.clone());
    assert_eq!(next(&mut sockets).await, Change::Added(old.clone()));
    nothing(&mut sockets).await;

    let _new = listen(&new);
    assert_eq!(next(&mut sockets).await, Change::Added(new.clone()));
    fs::remove_file(&old).unwrap();
    assert_eq!(next(&mut sockets).await, Change::Removed(old));
    // Recreated between two scans.
    fs::remove_file(&new).unwrap();
    let _again = listen(&new);
    assert_eq!(next(&mut sockets).await, Change::Added(new));
    nothing(&mut sockets).await;
}

#[tokio::test]
async fn plugin_sockets_in_subdirectories() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("plugins_registry");
    let mut sockets = Sockets::open(root.clone());
    nothing(&mut sockets).await;
    assert!(root.is_dir(), "drivers need it before they can announce themselves");

    fs::write(root.join("file.sock"), "").unwrap();
    let _hidden = listen(&root.join(".hidden.sock"));
    let deep = root.join("driver/deep");
    fs::create_dir_all(&deep).unwrap();
    let socket = deep.join("reg.sock");
    let _deep = listen(&socket);
    assert_eq!(next(&mut sockets).await, Change::Added(socket.clone()));
    nothing(&mut sockets).await;
    fs::remove_dir_all(root.join("driver")).unwrap();
    assert_eq!(next(&mut sockets).await, Change::Removed(socket));
    nothing(&mut sockets).await;
}

#[tokio::test]
async fn plugin_directory_recreated_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("plugins_registry");
    let mut sockets = Sockets::open(root.clone());
    nothing(&mut sockets).await;
    fs::remove_dir(&root).unwrap();
    nothing(&mut sockets).await;
    assert!(root.is_dir());
    let socket = root.join("reg.sock");
    let _listener = listen(&socket);
    assert_eq!(next(&mut sockets).await, Change::Added(socket));
}
