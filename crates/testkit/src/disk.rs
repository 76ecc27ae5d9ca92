//! Small file systems of a host's own, each in a file. The loop device frees itself when it is unmounted.
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Host;
use crate::command::run;
use crate::error::{AtPath, Result};

/// An ext4 file system in a file of a host, unmounted when it is dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one of that size at `point`, which is made.
    ///
    /// # Errors
    /// It cannot be made or mounted.
    pub fn mount(host: &Host, bytes: u64, point: PathBuf) -> Result<Self> {
        mount(&host.dir().join("disk.img"), bytes, &point)?;
        Ok(Self(point))
    }

    /// Like [`Disk::mount`], with project quotas.
    ///
    /// # Errors
    /// It cannot be made or mounted; the kernel may have no quotas.
    pub fn mount_with_project_quotas(host: &Host, bytes: u64, point: PathBuf) -> Result<Self> {
        let make = ["-O", "quota,project", "-E", "quotatype=prjquota"];
        mount_with(&host.dir().join("disk.img"), bytes, &point, &make, "loop,prjquota")?;
        Ok(Self(point))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Makes an ext4 of that size in `file` and mounts it at `point`. All of it is for everybody.
pub(crate) fn mount(file: &Path, bytes: u64, point: &Path) -> Result<()> {
    mount_with(file, bytes, point, &[], "loop")
}

fn mount_with(file: &Path, bytes: u64, point: &Path, make: &[&str], options: &str) -> Result<()> {
    File::create(file).and_then(|file| file.set_len(bytes)).at(file)?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-m", "0"]).args(make).arg(file);
    run(mkfs)?;
    fs::create_dir_all(point).at(point)?;
    let mut mount = Command::new("mount");
    mount.args(["-o", options]).arg(file).arg(point);
    run(mount).map(|_| ())
}
