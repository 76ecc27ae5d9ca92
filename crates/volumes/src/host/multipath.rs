//! Devices of multipath: those of the device mapper over the paths to a disk.

use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use super::tools::{Tool, Tools};
use crate::error::Error;
use crate::layout::names;

pub(crate) const MULTIPATH: Tool = Tool { name: "multipath", package: "multipath-tools" };

/// The file name of a device.
pub(crate) fn name_of(device: &Path) -> Option<&str> {
    device.file_name()?.to_str()
}

/// The device mapper's device that has one of these as a path.
pub(crate) fn find(kernel: &Kernel, paths: &[PathBuf]) -> Result<Option<PathBuf>, Error> {
    let block = kernel.sys.join("block");
    let blocks = names(&block)?;
    let mappers = blocks.iter().filter(|name| name.starts_with("dm-"));
    let has = |mapper: &&String| {
        let slaves = block.join(mapper).join("slaves");
        paths.iter().filter_map(|path| name_of(path)).any(|name| slaves.join(name).exists())
    };
    Ok(mappers.clone().find(has).map(|name| kernel.dev.join(name)))
}

/// Removes such a device. It is refused while the device is used.
pub(crate) async fn flush(tools: &Tools, device: &Path) -> Result<(), Error> {
    tools.run(MULTIPATH, ["-f".as_ref(), device.as_os_str()]).await?.checked().map(drop)
}
