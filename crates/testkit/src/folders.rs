//! Machine-wide directories that the shims of containerd and libcni always use. They also have files of
//! other runtimes, so a directory is only removed if a host caused its creation.
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{AtPath, Result};
use crate::slot::{BASE, Names, others_than};

pub(crate) const SHIM_SOCKETS: &str = "/run/containerd/s";
pub(crate) const CNI_RESULTS: &str = "/var/lib/cni/results";
pub(crate) const CONTAINER_LOGS: &str = "/var/log/containers";

/// Parents before children.
const FOLDERS: [&str; 5] =
    ["/run/containerd", SHIM_SOCKETS, "/var/lib/cni", CNI_RESULTS, CONTAINER_LOGS];

/// Notes which directories a new host will cause to be created.
pub(crate) fn note() -> Result<()> {
    let missing = FOLDERS.iter().filter(|folder| !Path::new(folder).exists());
    let lines: String = missing.map(|folder| format!("{folder}\n")).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let mut file = fs::File::options().create(true).append(true).open(record()).at(record())?;
    file.write_all(lines.as_bytes()).at(record())
}

/// Removes those directories, if empty, with the last host.
pub(crate) fn remove(last: Names) {
    if others_than(last) {
        return;
    }
    let made = fs::read_to_string(record()).unwrap_or_default();
    for folder in FOLDERS.iter().rev().filter(|folder| made.lines().any(|line| line == **folder)) {
        let _ = fs::remove_dir(folder);
    }
    let _ = fs::remove_file(record());
}

fn record() -> PathBuf {
    Path::new(BASE).join("folders")
}
