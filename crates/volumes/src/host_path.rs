//! Paths of the host, checked to be what the pod expects and made if it says so.

use std::fs::{self, FileType, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use crate::error::Error;
use crate::host::blocking;
use crate::mounted::Mounted;

/// A host path as a volume, set up as by [`set_up`].
pub(super) async fn mount(source: &HostPathVolumeSource) -> Result<Mounted, Error> {
    let path = PathBuf::from(&source.path);
    let source = source.clone();
    blocking(move || set_up(&source)).await?;
    Ok(Mounted::at(path))
}

/// Checks a host path against its type, and makes it for the `…OrCreate` types. Links are followed
/// as everywhere on the host. Blocks as long as the file system does.
pub(super) fn set_up(source: &HostPathVolumeSource) -> Result<(), Error> {
    let path = Path::new(&source.path);
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(Error::HostPathBack(source.path.clone()));
    }
    match source.type_.as_deref().unwrap_or_default() {
        "" => Ok(()),
        "DirectoryOrCreate" if absent(path)? => make_directory(path),
        "Directory" | "DirectoryOrCreate" => check(source, FileType::is_dir, "directory"),
        "FileOrCreate" if absent(path)? => make_file(path),
        "File" | "FileOrCreate" => check(source, FileType::is_file, "file"),
        "Socket" => check(source, FileType::is_socket, "socket file"),
        "CharDevice" => check(source, FileType::is_char_device, "character device"),
        "BlockDevice" => check(source, FileType::is_block_device, "block device"),
        other => Err(Error::NoHostPathType(other.to_owned())),
    }
}

fn absent(path: &Path) -> Result<bool, Error> {
    let exists = path.try_exists().map_err(|error| Error::io("look at", path, error))?;
    Ok(!exists)
}

fn check(
    source: &HostPathVolumeSource,
    is_expected: fn(&FileType) -> bool,
    expected: &'static str,
) -> Result<(), Error> {
    match fs::metadata(&source.path) {
        Ok(metadata) if is_expected(&metadata.file_type()) => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io("look at", Path::new(&source.path), error))
        }
        _ => Err(Error::HostPathType { path: source.path.clone(), expected }),
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|error| Error::io("create directory", path, error))
}

fn make_file(path: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match made {
        Ok(_) => Ok(()),
        // Another pod was quicker.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("create file", path, error)),
    }
}
