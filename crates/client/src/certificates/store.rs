//! The files of one kind of pair, as upstream has them: a pair of each renewal in a file named by
//! its date, and a link to the current one. A daemon killed at any time leaves a link that
//! leads to a whole pair, or none.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use longshore_base::files::{self, if_present};

use super::pair::{self, Leaf};

/// Why a pair cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file holds no usable pair.
    #[error("{}: {reason}", path.display())]
    Pair {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is a file in place of the link.
    #[error("{}: expected a symbolic link, found a file; move it away", path.display())]
    NoLink {
        /// The file.
        path: PathBuf,
    },
}

/// The pairs of one name in a directory.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    name: &'static str,
}

impl Store {
    /// The pairs `name-….pem` in `dir`, which need not be there yet. A link that an update could
    /// not put in its place any more is put there.
    pub fn open(dir: &Path, name: &'static str) -> Result<Self, StoreError> {
        // the link must lead to the same file from wherever it is read
        let dir = std::path::absolute(dir).map_err(at(dir))?;
        let store = Self { dir, name };
        let (current, updated) = (store.current_path(), store.file("updated"));
        if !current.exists() && is_link(&updated)? == Some(true) && updated.exists() {
            fs::rename(&updated, &current).map_err(at(&current))?;
        }
        Ok(store)
    }

    /// The link to the pair that counts.
    pub fn current_path(&self) -> PathBuf {
        self.file("current")
    }

    /// The directory of the pairs.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the pair that counts says; `None`: there is none.
    pub(super) fn current(&self) -> Result<Option<Leaf>, StoreError> {
        let path = self.current_path();
        let text = if_present(fs::read(&path)).map_err(at(&path))?;
        let Some(text) = text else { return Ok(None) };
        pair::pair(&text).map(Some).map_err(|reason| StoreError::Pair { path, reason })
    }

    /// Keeps a new pair, and makes it the one that counts. Blocks until it is on the disk.
    pub(super) fn update(
        &self,
        certificate: &str,
        key: &str,
        now: Timestamp,
    ) -> Result<Leaf, StoreError> {
        fs::create_dir_all(&self.dir).map_err(at(&self.dir))?;
        let path = self.file(&now.strftime("%Y-%m-%d-%H-%M-%S").to_string());
        let text = format!("{}\n{}", certificate.trim_end(), key);
        let leaf = pair::pair(text.as_bytes())
            .map_err(|reason| StoreError::Pair { path: path.clone(), reason })?;
        files::replace(&path, text.as_bytes()).map_err(at(&path))?;
        self.link(&path)?;
        Ok(leaf)
    }

    fn link(&self, target: &Path) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.file("updated"));
        for path in [&current, &updated] {
            if is_link(path)? == Some(false) {
                return Err(StoreError::NoLink { path: path.clone() });
            }
        }
        if is_link(&updated)?.is_some() {
            fs::remove_file(&updated).map_err(at(&updated))?;
        }
        symlink(target, &updated).map_err(at(&updated))?;
        fs::rename(&updated, &current).map_err(at(&current))?;
        fs::File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(at(&self.dir))
    }

    fn file(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{}-{what}.pem", self.name))
    }
}

/// Whether a path is a link; `None`: there is nothing.
fn is_link(path: &Path) -> Result<Option<bool>, StoreError> {
    let found = if_present(path.symlink_metadata()).map_err(at(path))?;
    Ok(found.map(|found| found.is_symlink()))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    move |source| StoreError::File { path: path.to_owned(), source }
}
