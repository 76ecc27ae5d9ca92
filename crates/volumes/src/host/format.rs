//! File systems on block devices: detected, created if there is none, checked, mounted.

use std::path::Path;

use super::tools::{Tool, Tools};
use crate::error::Error;
use crate::host::blocking;
use crate::host::mounts::Table;
use crate::{layout, remove};

const BLKID: Tool = Tool { name: "blkid", package: "util-linux" };
const FSCK: Tool = Tool { name: "fsck", package: "util-linux" };
pub(crate) const MOUNT: Tool = Tool { name: "mount", package: "util-linux" };
/// The default file system.
pub(crate) const DEFAULT: &str = "ext4";

/// The tools that create file systems.
const MAKERS: [(&str, Tool, &[&str]); 4] = [
    ("ext4", Tool { name: "mkfs.ext4", package: "e2fsprogs" }, &["-F", "-m0"]),
    ("ext3", Tool { name: "mkfs.ext3", package: "e2fsprogs" }, &["-F", "-m0"]),
    ("xfs", Tool { name: "mkfs.xfs", package: "xfsprogs" }, &["-f"]),
    ("btrfs", Tool { name: "mkfs.btrfs", package: "btrfs-progs" }, &[]),
];

/// The file system to mount from a device.
pub(crate) struct Wanted<'a> {
    pub(crate) device: &'a Path,
    pub(crate) kind: &'a str,
    pub(crate) options: &'a [String],
    pub(crate) read_only: bool,
}

/// Mounts a device at a directory, which is made if it is absent. An existing mount is kept.
pub(crate) async fn stage(tools: &Tools, wanted: &Wanted<'_>, at: &Path) -> Result<(), Error> {
    let path = at.to_owned();
    let mounted = blocking(move || {
        layout::make_dirs(&path)?;
        Ok(Table::read()?.has(&path))
    });
    if mounted.await? {
        return Ok(());
    }
    let outcome = mount(tools, wanted, at).await;
    if outcome.is_err() {
        // A killed tool may have mounted it nevertheless.
        let path = at.to_owned();
        blocking(move || remove::unmount(&path).and(layout::remove_empty_dir(&path))).await?;
    }
    outcome.map_err(|error| Error::Unstaged(Box::new(error)))
}

/// Mounts a device at an existing directory. An empty one is formatted first; one with other data
/// is left as it is.
async fn mount(tools: &Tools, wanted: &Wanted<'_>, to: &Path) -> Result<(), Error> {
    let Wanted { device, kind, read_only, .. } = *wanted;
    let found = probe(tools, device).await?;
    match &found {
        None if read_only => return Err(Error::Unformatted(device.to_owned())),
        None => make(tools, device, kind).await?,
        Some(_) if read_only => {}
        Some(_) => check(tools, device).await?,
    }
    let access = if read_only { "ro" } else { "rw" };
    let options = std::iter::once(access).chain(wanted.options.iter().map(String::as_str));
    let options = options.collect::<Vec<_>>().join(",");
    let args = ["-t".as_ref(), kind.as_ref(), "-o".as_ref(), options.as_ref()];
    let mounted = tools.run(MOUNT, [&args[..], &[device.as_os_str(), to.as_os_str()]].concat());
    let mounted = mounted.await?.checked();
    mounted.map(drop).map_err(|error| match found {
        Some(found) if found != kind => {
            Error::OtherFormat { wanted: kind.to_owned(), found, source: Box::new(error) }
        }
        _ => error,
    })
}

/// The content of a device; `None` if it is empty.
pub(crate) async fn probe(tools: &Tools, device: &Path) -> Result<Option<String>, Error> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"].map(AsRef::as_ref);
    let output = tools.run(BLKID, [&args[..], &[device.as_os_str()]].concat()).await?;
    match output.code() {
        Some(0) => {}
        // Its exit code for "nothing found".
        Some(2) => return Ok(None),
        _ => return Err(output.into_error()),
    }
    let value = |key: &str| output.text.lines().find_map(|line| line.strip_prefix(key));
    match (value("TYPE="), value("PTTYPE=")) {
        (_, Some(_)) => Ok(Some("unknown data, probably partitions".to_owned())),
        (Some(kind), None) => Ok(Some(kind.to_owned())),
        (None, None) => Ok(None),
    }
}

async fn make(tools: &Tools, device: &Path, kind: &str) -> Result<(), Error> {
    let maker = MAKERS.iter().find(|(known, ..)| *known == kind);
    let Some((_, tool, args)) = maker else {
        return Err(Error::UnsupportedPart(format!("file system {kind}")));
    };
    let args = args.iter().map(AsRef::as_ref).chain([device.as_os_str()]);
    tools.run_unlimited(*tool, args).await?.checked().map(drop)
}

/// Runs a safe automatic repair. Skipped if the tool is not installed.
async fn check(tools: &Tools, device: &Path) -> Result<(), Error> {
    let output = match tools.run_unlimited(FSCK, ["-a".as_ref(), device.as_os_str()]).await {
        Err(Error::NoTool { .. }) => return Ok(()),
        output => output?,
    };
    match output.code() {
        // Its exit code for uncorrected errors.
        Some(code) if code & 4 != 0 => Err(output.into_error()),
        _ => Ok(()),
    }
}
