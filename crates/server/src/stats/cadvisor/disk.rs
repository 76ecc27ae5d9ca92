//! Metrics of I/O by device; for the root also file systems and device statistics.

use longshore_resources::stats::{Activity, DeviceIo, Disk, OPERATIONS};

use super::family::{Family, Subject, Values, counter, gauge};

fn by_device(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: fn(&DeviceIo) -> u64) {
    for io in &subject.reading().io {
        let device = subject.snapshot.devices.name(io.device);
        // Without a name, series would be duplicates.
        if !device.is_empty() {
            values.add_of(&[("device", device)], of(io) as f64);
        }
    }
}

fn by_disk(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: fn(&Disk) -> Option<f64>) {
    if subject.is_node {
        for (device, disk) in &subject.snapshot.devices.file_systems {
            if let Some(value) = of(disk) {
                values.add_of(&[("device", device)], value);
            }
        }
    }
}

/// An I/O statistic of a disk.
fn activity(disk: &Disk, of: fn(&Activity) -> u64) -> Option<f64> {
    disk.activity.as_ref().map(|activity| of(activity) as f64)
}

/// A time in seconds; the kernel counts milliseconds.
fn seconds(disk: &Disk, of: fn(&Activity) -> u64) -> Option<f64> {
    Some(activity(disk, of)? / 1e3)
}

pub(super) static FAMILIES: &[Family] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes", |subject, values| {
        by_disk(subject, values, |disk| Some(disk.space.inodes_free as f64));
    }),
    gauge("container_fs_inodes_total", "Number of Inodes", |subject, values| {
        by_disk(subject, values, |disk| Some(disk.space.inodes as f64));
    }),
    gauge(
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        |subject, values| by_disk(subject, values, |disk| Some(disk.space.capacity as f64)),
    ),
    gauge(
        "container_fs_usage_bytes",
        "Number of bytes that are consumed by the container on this filesystem.",
        |subject, values| by_disk(subject, values, |disk| Some(disk.space.used as f64)),
    ),
    counter(
        "container_fs_reads_bytes_total",
        "Cumulative count of bytes read",
        |subject, values| by_device(subject, values, DeviceIo::read),
    ),
    counter(
        "container_fs_reads_total",
        "Cumulative count of reads completed",
        |subject, values| by_device(subject, values, DeviceIo::reads),
    ),
    counter(
        "container_fs_sector_reads_total",
        "Cumulative count of sector reads completed",
        |subject, values| by_disk(subject, values, |disk| activity(disk, |a| a.sectors_read)),
    ),
    counter(
        "container_fs_reads_merged_total",
        "Cumulative count of reads merged",
        |subject, values| by_disk(subject, values, |disk| activity(disk, |a| a.reads_merged)),
    ),
    counter(
        "container_fs_read_seconds_total",
        "Cumulative count of seconds spent reading",
        |subject, values| by_disk(subject, values, |disk| seconds(disk, |a| a.read_time)),
    ),
    counter(
        "container_fs_writes_bytes_total",
        "Cumulative count of bytes written",
        |subject, values| by_device(subject, values, DeviceIo::written),
    ),
    counter(
        "container_fs_writes_total",
        "Cumulative count of writes completed",
        |subject, values| by_device(subject, values, DeviceIo::writes),
    ),
    counter(
        "container_fs_sector_writes_total",
        "Cumulative count of sector writes completed",
        |subject, values| by_disk(subject, values, |disk| activity(disk, |a| a.sectors_written)),
    ),
    counter(
        "container_fs_writes_merged_total",
        "Cumulative count of writes merged",
        |subject, values| by_disk(subject, values, |disk| activity(disk, |a| a.writes_merged)),
    ),
    counter(
        "container_fs_write_seconds_total",
        "Cumulative count of seconds spent writing",
        |subject, values| by_disk(subject, values, |disk| seconds(disk, |a| a.write_time)),
    ),
    gauge("container_fs_io_current", "Number of I/Os currently in progress", |subject, values| {
        by_disk(subject, values, |disk| activity(disk, |a| a.in_progress))
    }),
    counter(
        "container_fs_io_time_seconds_total",
        "Cumulative count of seconds spent doing I/Os",
        |subject, values| by_disk(subject, values, |disk| seconds(disk, |a| a.busy)),
    ),
    counter(
        "container_fs_io_time_weighted_seconds_total",
        "Cumulative weighted I/O time in seconds",
        |subject, values| by_disk(subject, values, |disk| seconds(disk, |a| a.weighted)),
    ),
    counter("container_blkio_device_usage_total", "Blkio Device bytes usage", |subject, values| {
        for io in &subject.reading().io {
            let device = subject.snapshot.devices.name(io.device);
            let (major, minor) = (io.device.0.to_string(), io.device.1.to_string());
            for (operation, bytes) in OPERATIONS.iter().zip(io.bytes) {
                let Some(bytes) = bytes else { continue };
                let labels = [
                    ("device", device),
                    ("major", &major),
                    ("minor", &minor),
                    ("operation", operation),
                ];
                values.add_of(&labels, bytes as f64);
            }
        }
    }),
];
