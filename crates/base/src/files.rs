//! Files that a program keeps for itself.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts content in the place of a file, whole and for good: readers see the old or the new one,
/// whatever happens, and only root reads. The file's directory must be there. Blocks until it is on
/// the disk.
///
/// # Errors
/// What the kernel says; the file is then as it was.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_no_draft_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for content in ["a long one", "short"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, "old").unwrap();
        fs::create_dir(dir.path().join("state.tmp")).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
