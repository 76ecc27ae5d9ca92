//! The mount points of block devices. The mount table has a long line for each container, so it is
//! read again only when the kernel signals a change.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::path::PathBuf;

use parking_lot::Mutex;
use procfs::FromBufRead;
use procfs::process::MountInfos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TABLE: &str = "/proc/self/mountinfo";
/// Read-only file system types, which are always full and would only raise alerts.
const READ_ONLY: [&str; 4] = ["squashfs", "iso9660", "erofs", "udf"];

/// The mounts of this mount namespace.
#[derive(Debug, Default)]
pub(super) struct Mounts(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    /// Kept open, as the kernel signals changes per open file.
    table: File,
    on_devices: BTreeMap<String, Mount>,
}

/// A mount of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The mount point.
    pub(super) point: PathBuf,
    /// The file system's type, such as `ext4`.
    pub(super) kind: String,
}

impl Mounts {
    /// The first mount of each device, by names such as `/dev/sda`. Unreadable ones are skipped.
    pub(super) fn on_devices(&self) -> BTreeMap<String, Mount> {
        let mut known = self.0.lock();
        let fresh = match known.take() {
            Some(known) => known.refreshed(),
            None => Known::open(),
        };
        let fresh = fresh.inspect_err(|error| tracing::debug!(%error, "{TABLE} cannot be read"));
        *known = fresh.ok();
        known.as_ref().map(|known| known.on_devices.clone()).unwrap_or_default()
    }
}

impl Known {
    fn open() -> io::Result<Self> {
        let mut table = File::open(TABLE)?;
        Ok(Self { on_devices: read(&mut table)?, table })
    }

    fn refreshed(mut self) -> io::Result<Self> {
        let changed = PollFlags::PRI | PollFlags::ERR;
        let mut asked = [PollFd::new(&self.table, changed)];
        poll(&mut asked, Some(&Timespec::default()))?;
        if asked[0].revents().intersects(changed) {
            self.table.rewind()?;
            self.on_devices = read(&mut self.table)?;
        }
        Ok(self)
    }
}

fn read(table: &mut File) -> io::Result<BTreeMap<String, Mount>> {
    let mounts = MountInfos::from_buf_read(BufReader::new(table)).map_err(io::Error::other)?;
    let mut on_devices = BTreeMap::new();
    for mount in mounts.0 {
        let device = mount.mount_source.filter(|name| name.starts_with("/dev/"));
        let is_written = !READ_ONLY.contains(&mount.fs_type.as_str());
        if let Some(device) = device.filter(|_| is_written) {
            let mount = Mount { point: mount.mount_point, kind: mount.fs_type };
            on_devices.entry(device).or_insert(mount);
        }
    }
    Ok(on_devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_is_reread_after_changes_as_root() {
        // This thread has its own mount namespace, so it reads its own table.
        let table = || File::open("/proc/thread-self/mountinfo").unwrap();
        let work = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
            nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let fake = || BTreeMap::from([("/dev/lie".to_owned(), mount_at("/lie"))]);
            let known = Known { table: table(), on_devices: fake() };
            let known = known.refreshed().unwrap();
            assert_eq!(known.on_devices, fake(), "nothing has changed");
            let none = None::<&str>;
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("none"), dir.path(), Some("tmpfs"), flags, none).unwrap();
            let known = known.refreshed().unwrap();
            assert_eq!(known.on_devices, read(&mut table()).unwrap());
            nix::mount::umount(dir.path()).unwrap();
        };
        std::thread::spawn(work).join().unwrap();
    }

    fn mount_at(point: &str) -> Mount {
        Mount { point: point.into(), kind: "ext4".to_owned() }
    }
}
