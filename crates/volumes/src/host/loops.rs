//! Loop devices: each keeps its backing file open, so that the device's name cannot be reused while
//! a container uses it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::mounts::real;
use super::tools::{Tool, Tools};
use crate::error::Error;
use longshore_base::files::if_present;

const LOSETUP: Tool = Tool { name: "losetup", package: "util-linux" };
const BLOCK_DEVICES: &str = "/sys/block";

/// The loop device of a file, attached if there is none.
pub(crate) async fn attach(tools: &Tools, file: &Path) -> Result<PathBuf, Error> {
    if let Some(device) = find(file)? {
        return Ok(device);
    }
    let args = ["-f".as_ref(), "--show".as_ref(), file.as_os_str()];
    let output = tools.run(LOSETUP, args).await?.checked()?;
    Ok(PathBuf::from(output.text.trim()))
}

/// Detaches the loop device of a file. A file without one is no error.
pub(crate) async fn detach(tools: &Tools, file: &Path) -> Result<(), Error> {
    let Some(device) = find(file)? else { return Ok(()) };
    tools.run(LOSETUP, ["-d".as_ref(), device.as_os_str()]).await?.checked().map(drop)
}

/// The loop device of a file, if it has one.
pub(crate) fn find(file: &Path) -> Result<Option<PathBuf>, Error> {
    let fail = |error| Error::io("list", Path::new(BLOCK_DEVICES), error);
    let file = real(file);
    // There may be a machine without block devices.
    let devices = if_present(fs::read_dir(BLOCK_DEVICES)).map_err(fail)?;
    for device in devices.into_iter().flatten() {
        let device = device.map_err(fail)?;
        // It was removed meanwhile, or is no loop device.
        let Ok(backing) = fs::read(device.path().join("loop/backing_file")) else { continue };
        if backing.strip_suffix(b"\n").unwrap_or(&backing) == file.as_os_str().as_bytes() {
            return Ok(Some(Path::new("/dev").join(device.file_name())));
        }
    }
    Ok(None)
}
