//! File systems that are made as large as their devices, while they are mounted.

use std::path::Path;

use crate::error::Error;
use crate::host::format;
use crate::host::tools::{Tool, Tools};

const RESIZE2FS: Tool = Tool { name: "resize2fs", package: "e2fsprogs" };
const XFS_GROWFS: Tool = Tool { name: "xfs_growfs", package: "xfsprogs" };
const BTRFS: Tool = Tool { name: "btrfs", package: "btrfs-progs" };

/// Makes the file system of a device that is mounted at a path as large as the device. One that is as large
/// already is no error.
pub(crate) async fn expand(tools: &Tools, device: &Path, mounted: &Path) -> Result<(), Error> {
    let kind = format::probe(tools, device).await?;
    let (device, mounted) = (device.as_os_str(), mounted.as_os_str());
    let output = match kind.as_deref() {
        Some("ext2" | "ext3" | "ext4") => tools.run_unlimited(RESIZE2FS, [device]).await?,
        Some("xfs") => tools.run_unlimited(XFS_GROWFS, ["-d".as_ref(), mounted]).await?,
        Some("btrfs") => {
            let args = ["filesystem".as_ref(), "resize".as_ref(), "max".as_ref(), mounted];
            tools.run_unlimited(BTRFS, args).await?
        }
        other => {
            let (device, mounted) = (Path::new(device).display(), Path::new(mounted).display());
            return Err(Error::UnsupportedPart(format!(
                "resize of format {} for device {device} mounted at {mounted}",
                other.unwrap_or_default()
            )));
        }
    };
    output.checked().map(drop)
}
