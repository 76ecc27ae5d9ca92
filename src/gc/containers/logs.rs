//! Removal of log directories of deleted pods, and of dangling links.

use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::path::Path;

use longshore_base::trees;
use tracing::{debug, warn};

use crate::gc::Error;

/// Legacy directory of links to container logs.
pub(super) const LINKS: &str = "/var/log/containers";

/// Removes the log directories of pods that are not wanted. Other files are kept.
pub(super) fn remove_dirs(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
    for entry in entries(dir)? {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(uid) = name.to_str().and_then(pod_uid) else { continue };
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || is_wanted(uid) {
            continue;
        }
        debug!(path = %path.display(), "removing logs of a deleted pod");
        if let Err(error) = trees::remove(&path) {
            warn!(path = %path.display(), %error, "cannot remove logs of a deleted pod");
        }
    }
    Ok(())
}

/// Removes dangling links into `logs`, except those of running containers.
pub(super) fn remove_links(links: &Path, logs: &Path, is_alive: impl Fn(&str) -> bool) {
    // The directory may not exist.
    for entry in entries(links).into_iter().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(id) = name.to_str().and_then(container_id) else { continue };
        let dangles = fs::read_link(&path).is_ok_and(|target| {
            let gone = fs::metadata(&target);
            target.starts_with(logs) && gone.is_err_and(|e| e.kind() == ErrorKind::NotFound)
        });
        if !dangles || is_alive(id) {
            continue;
        }
        if let Err(error) = fs::remove_file(&path) {
            warn!(path = %path.display(), %error, "cannot remove a dangling log link");
        }
    }
}

fn entries(dir: &Path) -> Result<impl Iterator<Item = DirEntry>, Error> {
    let entries = fs::read_dir(dir).map_err(|source| Error::Io { path: dir.to_owned(), source })?;
    Ok(entries.flatten())
}

/// The UID in `<namespace>_<name>_<uid>`.
fn pod_uid(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('_').collect();
    match parts[..] {
        [namespace, name, uid] if ![namespace, name, uid].contains(&"") => Some(uid),
        _ => None,
    }
}

/// The id in `<pod>_<namespace>_<container>-<id>.log`.
fn container_id(link: &str) -> Option<&str> {
    let (_, id) = link.strip_suffix(".log")?.rsplit_once('-')?;
    (!id.is_empty()).then_some(id)
}
