//! Mounts and loop devices of a driver.
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use longshore_csi::v1::VolumeUsage;
use longshore_csi::v1::volume_usage::Unit;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use tonic::Status;

use crate::command::run_split;

/// The size of a block volume.
const DEVICE_BYTES: u64 = 1 << 20;

/// Creates a directory if it does not exist.
pub(super) fn directory(path: &Path) -> Result<PathBuf, Status> {
    fs::create_dir_all(path).map_err(|error| failed("make", path, error))?;
    Ok(path.to_owned())
}

/// Creates an empty file if it does not exist.
pub(super) fn make_file(path: &Path) -> Result<(), Status> {
    let made = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    made.map(drop).map_err(|error| failed("make", path, error))
}

/// Bind-mounts `from` at `to`, once.
pub(super) fn bind(from: &Path, to: &Path) -> Result<(), Status> {
    if is_mounted(to)? {
        return Ok(());
    }
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|error| failed("bind", to, error))
}

/// Remounts a bind mount read-only.
pub(super) fn make_read_only(path: &Path) -> Result<(), Status> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
        .map_err(|error| failed("remount", path, error))
}

/// Unmounts a mount point, if it is one.
pub(super) fn unmount(path: &Path) -> Result<(), Status> {
    while is_mounted(path)? {
        umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(|error| failed("unmount", path, error))?;
    }
    Ok(())
}

/// Removes an empty directory or a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), Status> {
    let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

/// The loop device of a volume, created if it does not exist.
pub(super) fn attach(volume: &Path) -> Result<PathBuf, Status> {
    let image = image(volume);
    make_file(&image)?;
    let file = fs::File::options().write(true).open(&image);
    file.and_then(|file| file.set_len(DEVICE_BYTES))
        .map_err(|error| failed("grow", &image, error))?;
    match devices(&image)?.into_iter().next() {
        Some(device) => Ok(device),
        None => losetup(&format!("--find --show {}", image.display())).map(PathBuf::from),
    }
}

/// Frees the loop device of a volume, if it has one.
pub(super) fn detach(volume: &Path) -> Result<(), Status> {
    let image = image(volume);
    if !image.exists() {
        return Ok(());
    }
    for device in devices(&image)? {
        losetup(&format!("--detach {}", device.display()))?;
    }
    Ok(())
}

/// Frees the loop devices of all volumes of a driver.
pub(super) fn detach_all_below(dir: &Path) {
    let volumes = fs::read_dir(dir.join("volumes")).into_iter().flatten().flatten();
    let images = volumes.map(|volume| volume.path());
    for image in images.filter(|path| path.extension().is_some_and(|e| e == "img")) {
        let _ = detach(&image.with_extension(""));
    }
}

/// Usage of the file system, or size of the device.
pub(super) fn usage(path: &Path) -> Result<Vec<VolumeUsage>, Status> {
    if path.metadata().is_ok_and(|file| file.file_type().is_block_device()) {
        let total = i64::try_from(DEVICE_BYTES).unwrap_or(i64::MAX);
        return Ok(vec![VolumeUsage { unit: Unit::Bytes.into(), total, ..VolumeUsage::default() }]);
    }
    let stat = statvfs(path).map_err(|errno| match errno {
        Errno::ENOENT => Status::not_found(path.display().to_string()),
        errno => failed("look at", path, errno),
    })?;
    let usage = |unit: Unit, total: u64, free: u64, available: u64| VolumeUsage {
        unit: unit.into(),
        total: i64::try_from(total).unwrap_or(i64::MAX),
        used: i64::try_from(total.saturating_sub(free)).unwrap_or(i64::MAX),
        available: i64::try_from(available).unwrap_or(i64::MAX),
    };
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(vec![
        usage(
            Unit::Bytes,
            bytes(stat.blocks()),
            bytes(stat.blocks_free()),
            bytes(stat.blocks_available()),
        ),
        usage(Unit::Inodes, stat.files(), stat.files_free(), stat.files_available()),
    ])
}

fn image(volume: &Path) -> PathBuf {
    volume.with_added_extension("img")
}

fn devices(image: &Path) -> Result<Vec<PathBuf>, Status> {
    let listed = losetup(&format!("--noheadings --output NAME --associated {}", image.display()))?;
    Ok(listed.split_whitespace().map(PathBuf::from).collect())
}

fn losetup(args: &str) -> Result<String, Status> {
    let said = run_split("losetup", args).map_err(|error| Status::internal(error.to_string()))?;
    Ok(said.trim().to_owned())
}

fn is_mounted(path: &Path) -> Result<bool, Status> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| failed("read", Path::new("/proc/self/mountinfo"), error))?;
    // In the format of the kernel.
    let wanted = path.display().to_string().replace(' ', "\\040");
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(wanted.as_str())))
}

fn failed(action: &str, path: &Path, error: impl std::fmt::Display) -> Status {
    Status::internal(format!("{action} {}: {error}", path.display()))
}
