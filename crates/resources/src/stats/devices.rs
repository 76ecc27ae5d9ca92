//! Block devices: their names, I/O statistics and file systems.

use std::collections::BTreeMap;

use longshore_machine::FileSystem;
use procfs::Current;

use super::mounts::Mounts;

/// Block devices.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// Names such as `/dev/sda`, by major and minor number.
    pub names: BTreeMap<(u32, u32), String>,
    /// The file systems on devices, by the device's name.
    pub file_systems: BTreeMap<String, Disk>,
}

/// A file system on a device.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its capacity and usage.
    pub space: FileSystem,
    /// Its type, such as `ext4`.
    pub kind: String,
    /// I/O statistics of the device, if available.
    pub activity: Option<Activity>,
}

/// I/O statistics of a device. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Merged reads.
    pub reads_merged: u64,
    /// Sectors read.
    pub sectors_read: u64,
    /// Time spent reading.
    pub read_time: u64,
    /// Merged writes.
    pub writes_merged: u64,
    /// Sectors written.
    pub sectors_written: u64,
    /// Time spent writing.
    pub write_time: u64,
    /// I/O requests in progress.
    pub in_progress: u64,
    /// Time spent doing I/O.
    pub busy: u64,
    /// Weighted time spent doing I/O.
    pub weighted: u64,
}

impl Devices {
    /// The names of all devices, and the file systems of this mount namespace. Unreadable ones are
    /// skipped.
    pub(super) fn read(mounts: &Mounts) -> Self {
        let mut devices = Self::default();
        let mut activities = BTreeMap::new();
        for stat in procfs::DiskStats::current().map(|stats| stats.0).unwrap_or_default() {
            let (Ok(major), Ok(minor)) = (u32::try_from(stat.major), u32::try_from(stat.minor))
            else {
                continue;
            };
            let name = format!("/dev/{}", stat.name);
            let activity = Activity {
                reads_merged: stat.merged,
                sectors_read: stat.sectors_read,
                read_time: stat.time_reading,
                writes_merged: stat.writes_merged,
                sectors_written: stat.sectors_written,
                write_time: stat.time_writing,
                in_progress: stat.in_progress,
                busy: stat.time_in_progress,
                weighted: stat.weighted_time_in_progress,
            };
            activities.insert(name.clone(), activity);
            devices.names.insert((major, minor), name);
        }
        for (device, on) in mounts.on_devices() {
            let Ok(space) = FileSystem::of(&on.point) else { continue };
            let activity = activities.get(&device).copied();
            devices.file_systems.insert(device, Disk { space, kind: on.kind, activity });
        }
        devices
    }

    /// The name of a device; empty if it was removed.
    pub fn name(&self, device: (u32, u32)) -> &str {
        self.names.get(&device).map(String::as_str).unwrap_or_default()
    }
}
