//! Files of the certificate directory: private, whole or absent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use longshore_base::files::if_present;
use rcgen::KeyPair;

use super::{Error, Result};

pub(super) fn create_private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| Error::Io {
        action: "create directory",
        path: dir.to_owned(),
        source,
    })
}

/// Writes a file so that a reader, or a machine that crashes, sees the old or the new content
/// and nothing between.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let write = || -> io::Result<()> {
        // A left-over of a crash may have other permissions.
        let _ = fs::remove_file(temporary);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(|source| {
        let _ = fs::remove_file(temporary);
        Error::Io { action: "write", path: path.to_owned(), source }
    })
}

pub(super) fn read_optional(path: &Path) -> Result<Option<String>> {
    if_present(fs::read_to_string(path)).map_err(|source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn load_key(path: &Path) -> Result<Option<KeyPair>> {
    let Some(pem) = read_optional(path)? else {
        return Ok(None);
    };
    KeyPair::from_pem(&pem).map(Some).map_err(|error| Error::Invalid {
        path: path.to_owned(),
        reason: format!("is not a private key: {error}"),
    })
}
