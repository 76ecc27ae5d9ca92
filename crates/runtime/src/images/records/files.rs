//! Files of records: their names are digests of their subject.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use longshore_base::files::{self, if_present};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::images::credentials::hex;

/// The name of the file for a subject.
pub(super) fn file_name(text: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(text)))
}

/// A file that exists and contains no valid record.
pub(super) struct Unreadable;

pub(super) fn read<T: DeserializeOwned>(dir: &Path, text: &str) -> Result<Option<T>, Unreadable> {
    parse(&dir.join(file_name(text)))
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Unreadable> {
    let unreadable = |error: &dyn std::fmt::Display| {
        warn!(path = %path.display(), %error, "cannot read image pull record");
        Unreadable
    };
    match if_present(std::fs::read(path)).map_err(|error| unreadable(&error))? {
        Some(text) => serde_json::from_slice(&text).map(Some).map_err(|error| unreadable(&error)),
        None => Ok(None),
    }
}

/// The files with records in a directory.
fn records(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sha256-") && !name.ends_with(".tmp")
    })
}

/// How many records a directory has.
pub(super) fn count(dir: &Path) -> usize {
    records(dir).count()
}

pub(super) fn all<T: DeserializeOwned>(dir: &Path) -> Vec<T> {
    records(dir).filter_map(|path| parse(&path).ok().flatten()).collect()
}

pub(super) fn write(dir: &Path, text: &str, record: &impl Serialize) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut content = serde_json::to_vec(record)?;
    content.push(b'\n');
    files::replace(&dir.join(file_name(text)), &content)
}

pub(super) fn remove(dir: &Path, text: &str) {
    let path = dir.join(file_name(text));
    if let Err(error) = if_present(std::fs::remove_file(&path)) {
        warn!(path = %path.display(), %error, "cannot remove image pull record");
    }
}
