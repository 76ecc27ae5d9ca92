//! Files that commands write, and their removal when the command fails.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use longshore_base::files::{self, if_present};
use longshore_base::trees;

use crate::Result;
use crate::error::At;

/// What a command has made so far. Unless it is [kept](Self::keep), dropping it removes that, the last
/// first: a command that fails leaves nothing half-made.
#[derive(Debug, Default)]
pub(crate) struct Created {
    paths: Vec<PathBuf>,
    /// Directories in which other programs make files, with what was there before.
    filled: Vec<(PathBuf, BTreeSet<PathBuf>)>,
}

fn entries(dir: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

impl Created {
    /// Makes a directory and those above it.
    pub(crate) fn directory(&mut self, path: &Path, mode: u32) -> Result<()> {
        let missing: Vec<&Path> = path
            .ancestors()
            .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
            .collect();
        for dir in missing.into_iter().rev() {
            match DirBuilder::new().mode(mode).create(dir) {
                Ok(()) => self.paths.push(dir.to_owned()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).at("create", dir),
            }
        }
        Ok(())
    }

    /// Writes a file whole, with its directory.
    pub(crate) fn file(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        if let Some(dir) = path.parent() {
            self.directory(dir, 0o755)?;
        }
        self.expect(path);
        files::replace_with_mode(path, content, mode).at("write", path)
    }

    /// A path that another program is about to make; nothing happens when it is there.
    pub(crate) fn expect(&mut self, path: &Path) {
        if !path.exists() {
            self.paths.push(path.to_owned());
        }
    }

    /// A directory in which another program is about to make files; those that are there stay.
    pub(crate) fn expect_in(&mut self, dir: &Path) {
        self.filled.push((dir.to_owned(), entries(dir)));
    }

    /// All of it stays.
    pub(crate) fn keep(mut self) {
        self.paths.clear();
        self.filled.clear();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for (dir, before) in &self.filled {
            for new in entries(dir).difference(before) {
                let _ = remove(new);
            }
        }
        for path in self.paths.iter().rev() {
            let _ = remove(path);
        }
    }
}

/// Removes a file or a tree; one that is not there is no error. A directory on which a file system is
/// mounted is emptied: that it is there is its administrator's.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => match trees::remove(path) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && entries(path).is_empty() => {
                Ok(())
            }
            done => done,
        },
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The text of a file, if there is one.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>> {
    if_present(fs::read_to_string(path)).at("read", path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_of_a_failed_command_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("old")).unwrap();
        fs::write(root.join("old/kept"), "x").unwrap();
        let make = |created: &mut Created| {
            created.file(&root.join("a/b/c"), b"1", 0o600).unwrap();
            created.file(&root.join("old/kept"), b"2", 0o600).unwrap();
            created.expect(&root.join("old/tree"));
            fs::create_dir_all(root.join("old/tree/deep")).unwrap();
            fs::write(root.join("old/tree/deep/file"), "x").unwrap();
            created.expect_in(&root.join("old"));
            fs::write(root.join("old/new"), "x").unwrap();
        };
        let mut created = Created::default();
        make(&mut created);
        drop(created);
        assert!(!root.join("a").exists() && !root.join("old/tree").exists());
        assert!(!root.join("old/new").exists());
        assert_eq!(fs::read_to_string(root.join("old/kept")).unwrap(), "2");
        let mut created = Created::default();
        make(&mut created);
        created.keep();
        let mode = fs::metadata(root.join("a/b/c")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(root.join("old/tree/deep/file").exists() && root.join("old/new").exists());
    }

    #[test]
    fn files_removal_of_what_is_not_there_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        remove(&dir.path().join("nothing")).unwrap();
        assert_eq!(read_optional(&dir.path().join("nothing")).unwrap(), None);
    }
}
