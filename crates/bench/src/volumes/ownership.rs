//! A volume with many files that is given to a pod's group (`fsGroup`), beside `chown -R`, in turns
//! on the same files. The node also gives the group its part of each mode, which `chown` does not.
use std::fmt;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use longshore_volumes::Ownership as Change;
use serde::Serialize;

use crate::statistics::median;

/// Files of one directory.
const FILES: usize = 500;
/// The first of the groups that the files are given to, another one each time.
const GROUP: u32 = 70_000;

/// What was found. Seconds are medians.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ownership {
    pub(crate) files: usize,
    pub(crate) cpus: usize,
    pub(crate) chown_seconds: f64,
    pub(crate) node_seconds: f64,
    /// When the root is right already, and its policy is `OnRootMismatch`.
    pub(crate) skipped_seconds: f64,
}

pub(super) fn run(files: usize, rounds: usize) -> Result<Ownership> {
    let dir = tempfile::tempdir()?;
    let root = dir.path().join("volume");
    make(&root, files)?;
    let (mut chown, mut node) = (Vec::new(), Vec::new());
    let mut group = GROUP;
    for _ in 0..rounds.max(3) {
        for (times, by_node) in [(&mut chown, false), (&mut node, true)] {
            group += 1;
            close(&root)?;
            let began = Instant::now();
            match by_node {
                true => Change::new(group, false, false).apply_blocking(&root)?,
                false => give_by_chown(&root, group)?,
            }
            times.push(began.elapsed().as_secs_f64());
            check(&root, group, by_node)?;
        }
    }
    let began = Instant::now();
    Change::new(group, false, true).apply_blocking(&root)?;
    Ok(Ownership {
        files,
        cpus: std::thread::available_parallelism()?.get(),
        chown_seconds: median(chown),
        node_seconds: median(node),
        skipped_seconds: began.elapsed().as_secs_f64(),
    })
}

fn dirs(root: &Path) -> Result<Vec<std::path::PathBuf>> {
    fs::read_dir(root)?.map(|entry| Ok(entry?.path())).collect()
}

fn make(root: &Path, files: usize) -> Result<()> {
    for number in 0..files {
        let dir = root.join((number / FILES).to_string());
        if number % FILES == 0 {
            fs::create_dir_all(&dir)?;
        }
        File::create(dir.join(number.to_string()))?;
    }
    Ok(())
}

/// Files as most programs leave them: the group has no part in them.
fn close(root: &Path) -> Result<()> {
    for dir in dirs(root)? {
        for file in dirs(&dir)? {
            fs::set_permissions(file, Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

fn give_by_chown(root: &Path, group: u32) -> Result<()> {
    let status = Command::new("chown").args(["-R", &format!(":{group}")]).arg(root).status();
    ensure!(status.context("chown")?.success(), "chown failed");
    Ok(())
}

/// Whether all is as it should be: a quick way to do nothing is none.
fn check(root: &Path, group: u32, by_node: bool) -> Result<()> {
    for dir in dirs(root)? {
        for file in dirs(&dir)? {
            let stat = fs::metadata(&file)?;
            let right = stat.gid() == group && (!by_node || stat.mode() & 0o777 == 0o660);
            ensure!(right, "{} is not the group's", file.display());
        }
    }
    Ok(())
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, cpus, chown_seconds, node_seconds, skipped_seconds } = self;
        writeln!(f, "fsGroup on {files} files, {cpus} CPUs")?;
        writeln!(f, "  chown -R        {chown_seconds:8.3} s")?;
        writeln!(f, "  node            {node_seconds:8.3} s")?;
        write!(f, "  OnRootMismatch  {:8.3} ms", skipped_seconds * 1000.0)
    }
}
