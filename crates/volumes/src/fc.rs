//! Fibre Channel volumes: the disk is found by its identifiers, through multipath if there is a device
//! for it, and is mounted once for all its pods, or mapped for each. Current limitations: no SELinux
//! mount option.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::time;
use nix::libc::O_EXCL;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::devices::DeviceGuard;
use crate::error::Error;
use crate::host::blocking;
use crate::host::kernel::Kernel;
use crate::host::multipath::{self, name_of};
use crate::host::tools::{Tool, Tools};
use crate::layout::{self, names};
use crate::mounted::Mounted;
use crate::persistent::{FibreDisk, Identifiers};
use crate::shared_disk::{self, SharedDisk};
use crate::state::State;
use crate::task::Task;

const BLOCKDEV: Tool = Tool { name: "blockdev", package: "util-linux" };
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long a disk that was just unmounted may still be in use.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

impl SharedDisk for FibreDisk {
    const PLUGIN: &'static str = layout::FC_PLUGIN;
    const DIR: &'static str = layout::FC;
    const NOTE: &'static str = "fc.json";

    fn device_name(&self) -> String {
        self.unique_name()
    }

    fn dir_name(&self, _volume: &str) -> PathBuf {
        FibreDisk::dir_name(self).into()
    }

    fn of_path(path: &Path) -> Option<Self> {
        Self::parse(path)
    }

    fn file_system(&self) -> Option<&str> {
        self.file_system.as_deref()
    }

    async fn detach(
        &self,
        node: &State,
        _volume: &str,
        is_last: bool,
    ) -> Result<Option<DeviceGuard>, Error> {
        if is_last {
            remove(&node.tools, &node.kernel, self).await?;
        }
        Ok(None)
    }
}

/// Checks the identifiers, before anything is named after them.
pub(super) fn check(disk: &FibreDisk) -> Result<(), Error> {
    disk.invalid().map_or(Ok(()), |why| Err(Error::Fc(why).unreached()))
}

pub(super) async fn set_up(task: &Task<'_>, disk: &FibreDisk) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    let volume = &persistent.spec_name;
    check(disk)?;
    let held = task.devices().hold(&disk.unique_name()).await;
    held.add_user(task.uid());
    shared_disk::write_note(task, disk).await?;
    let device = find(&node.kernel, disk).await.map_err(Error::unreached)?;
    if persistent.block {
        return shared_disk::map(&node.root, task.uid(), volume, disk).make(task, &device).await;
    }
    let target = task.make_target(layout::FC).await?;
    shared_disk::mount(task, disk, &device, target).await
}

/// The paths to a disk, and the multipath device of them, if there is one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// In the order of the names of their links.
    paths: Vec<PathBuf>,
    multipath: Option<PathBuf>,
}

/// The device of a disk. The hosts are scanned for it if there is no multipath device yet.
async fn find(kernel: &Kernel, disk: &FibreDisk) -> Result<PathBuf, Error> {
    let search = || {
        let (kernel, disk) = (kernel.clone(), disk.clone());
        blocking(move || look(&kernel, &disk))
    };
    if let Some(multipath) = search().await?.multipath {
        return Ok(multipath);
    }
    let scanned = kernel.clone();
    blocking(move || scan(&scanned)).await?;
    let until = time::after(kernel.device_timeout);
    loop {
        let Found { paths, multipath } = search().await?;
        if let Some(device) = multipath.or(paths.into_iter().next()) {
            return Ok(device);
        }
        if Instant::now() >= until {
            return Err(Error::Fc("no fc disk found".to_owned()));
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn look(kernel: &Kernel, disk: &FibreDisk) -> Result<Found, Error> {
    let links = match disk.identifiers {
        Identifiers::Targets { .. } => &kernel.disks,
        Identifiers::Disks(_) => &kernel.ids,
    };
    let mut found = Found::default();
    for name in names(links)?.iter().filter(|name| disk.is_link(name)) {
        // A link may lead nowhere, while its device is removed.
        let Ok(device) = fs::canonicalize(links.join(name)) else { continue };
        if name_of(&device).is_some_and(|name| name.starts_with("dm-")) {
            found.multipath = Some(device);
        } else if !found.paths.contains(&device) {
            found.paths.push(device);
        }
    }
    if found.multipath.is_none() {
        found.multipath = multipath::find(kernel, &found.paths)?;
    }
    Ok(found)
}

/// Has all SCSI hosts look for new disks. Errors are logged only: not every host can do it.
fn scan(kernel: &Kernel) -> Result<(), Error> {
    let hosts = kernel.sys.join("class/scsi_host");
    for host in names(&hosts)? {
        let path = hosts.join(host).join("scan");
        if let Err(error) = fs::write(&path, "- - -") {
            warn!(path = %path.display(), %error, "failed to scan a SCSI host");
        }
    }
    Ok(())
}

/// Removes a disk that is not used any more from the kernel. One that is gone is no error.
async fn remove(tools: &Tools, kernel: &Kernel, disk: &FibreDisk) -> Result<(), Error> {
    let (owned, disk) = (kernel.clone(), disk.clone());
    let (found, paths) = blocking(move || {
        let found = look(&owned, &disk)?;
        let mut paths = found.paths.clone();
        if let Some(name) = found.multipath.as_deref().and_then(name_of) {
            let slaves = names(&owned.sys.join("block").join(name).join("slaves"))?;
            paths.extend(slaves.iter().map(|slave| owned.dev.join(slave)));
        }
        paths.sort();
        paths.dedup_by(|a, b| name_of(a) == name_of(b));
        Ok((found, paths))
    })
    .await?;
    if let Some(device) = &found.multipath {
        multipath::flush(tools, device).await?;
    }
    for path in paths {
        if !is_released(&path).await? {
            // Such as a disk that a pod names, and that the node itself has mounted.
            warn!(device = %path.display(), "fc disk is used otherwise and stays");
            continue;
        }
        let flush = tools.run(BLOCKDEV, ["--flushbufs".as_ref(), path.as_os_str()]).await;
        if let Err(error) = flush.and_then(|output| output.checked()) {
            warn!(device = %path.display(), %error, "failed to flush an fc disk");
        }
        let Some(name) = name_of(&path) else { continue };
        let delete = kernel.sys.join("block").join(name).join("device/delete");
        blocking(move || {
            if delete.exists() {
                fs::write(&delete, "1").map_err(|error| Error::io("write", &delete, error))?;
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Whether a device is, or soon gets, used by nobody; also if it is gone.
async fn is_released(path: &Path) -> Result<bool, Error> {
    let until = time::after(RELEASE_TIMEOUT);
    loop {
        let device = path.to_owned();
        let is_busy = blocking(move || {
            // This is what mounts and the device mapper do.
            let opened = OpenOptions::new().read(true).custom_flags(O_EXCL).open(&device);
            let is_busy = |error: std::io::Error| error.raw_os_error() == Some(nix::libc::EBUSY);
            Ok(opened.err().is_some_and(is_busy))
        });
        if !is_busy.await? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(POLL_INTERVAL).await;
    }
}
