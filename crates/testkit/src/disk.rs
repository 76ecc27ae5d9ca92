//! A small file system of a host's own, in a file. It goes with the host: the loop device frees itself
//! when it is unmounted.
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::command::run;
use crate::error::{AtPath, Result};

/// Makes an ext4 of that size in `file` and mounts it at `point`. All of it is for everybody.
pub(crate) fn mount(file: &Path, bytes: u64, point: &Path) -> Result<()> {
    File::create(file).and_then(|file| file.set_len(bytes)).at(file)?;
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-m", "0"]).arg(file);
    run(make)?;
    fs::create_dir_all(point).at(point)?;
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop"]).arg(file).arg(point);
    run(mount).map(|_| ())
}
