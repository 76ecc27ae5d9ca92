//! emptyDir volumes, on disk or in memory; also the directories of all volumes that the node
//! writes.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_machine::projects::{self, ProjectFiles};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use crate::dir::Dir;
use crate::error::{Error, if_exists};
use crate::layout;
use crate::medium::Medium;

/// The root of a volume is open to all users; access is controlled by mounts.
const MODE: u32 = 0o777;
/// Permissions of the owner and group on files of the pod's own.
const WRITABLE: u32 = 0o660;
const READY: &str = "ready";

/// Sets up an emptyDir volume; a volume that is ready is left as it is.
pub(super) fn set_up(
    pod: &Dir,
    volume: &str,
    medium: Medium,
    group: Option<u32>,
    projects: Option<&ProjectFiles>,
) -> Result<(), Error> {
    let parent = layout::volumes_dir(pod, layout::EMPTY_DIR)?;
    let notes = layout::notes_dir(pod, layout::EMPTY_DIR, volume)?;
    let ready = notes.entries(usize::MAX)?.iter().any(|entry| entry.name == READY);
    let stands = match medium {
        Medium::Disk => if_exists(parent.dir(volume))?.is_some(),
        // After a reboot the ready file exists, but not the tmpfs.
        Medium::Memory { .. } | Medium::HugePages { .. } => {
            parent.is_mount_point(volume.as_ref())?
        }
    };
    if ready && stands {
        return Ok(());
    }
    let dir = make(&parent, volume, medium)?;
    if medium == Medium::Disk {
        // A killed daemon may have left it with another mode.
        dir.set_mode(MODE)?;
    }
    if let Some(group) = group {
        dir.set_volume_ownership(group, WRITABLE)?;
    }
    if let Some(projects) = projects.filter(|_| !ready && medium == Medium::Disk) {
        projects::assign(&dir, dir.path(), projects)
            .map_err(|error| Error::io("make a project of", dir.path(), error))?;
    }
    if ready { Ok(()) } else { notes.new_file(READY.as_ref(), &[], 0o640, (None, None)) }
}

/// The root directory of a volume on that medium, made and mounted if it is not there.
pub(super) fn make(parent: &Dir, volume: &str, medium: Medium) -> Result<Dir, Error> {
    let dir = parent.make_dir(volume, MODE)?;
    if medium == Medium::Disk {
        return Ok(dir);
    }
    if !parent.is_mount_point(volume.as_ref())? {
        drop(dir);
        match medium {
            Medium::HugePages { page, size } => {
                mount_huge_pages(parent, volume.as_ref(), page, size)?;
            }
            Medium::Memory { size } => mount_tmpfs(parent, volume.as_ref(), size)?,
            Medium::Disk => {}
        }
    }
    let dir = parent.dir(volume)?;
    if matches!(medium, Medium::HugePages { .. }) {
        dir.set_mode(MODE)?; // a new hugetlbfs is accessible to root alone
    }
    Ok(dir)
}

fn mount_huge_pages(parent: &Dir, name: &OsStr, page: u64, size: Option<u64>) -> Result<(), Error> {
    let path = parent.path().join(name);
    let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let options = format!("pagesize={page}{size}");
    mount(Some("nodev"), &path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|errno| Error::io("mount hugetlbfs at", &path, errno))
}

fn mount_tmpfs(parent: &Dir, name: &OsStr, size: Option<u64>) -> Result<(), Error> {
    // Secrets must not reach a swap device, but kernels before 6.4 do not know the option.
    static NOSWAP_UNKNOWN: AtomicBool = AtomicBool::new(false);
    let path = parent.path().join(name);
    let attempt = |noswap: bool| {
        let size = size.map(|bytes| format!("size={bytes}"));
        let options: Vec<_> = size.into_iter().chain(noswap.then(|| "noswap".to_owned())).collect();
        let options = options.join(",");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
    };
    let noswap = !NOSWAP_UNKNOWN.load(Ordering::Relaxed);
    let mounted = match attempt(noswap) {
        Err(Errno::EINVAL) if noswap => {
            let mounted = attempt(false);
            NOSWAP_UNKNOWN.fetch_or(mounted.is_ok(), Ordering::Relaxed);
            mounted
        }
        mounted => mounted,
    };
    mounted.map_err(|errno| Error::io("mount tmpfs at", &path, errno))
}
