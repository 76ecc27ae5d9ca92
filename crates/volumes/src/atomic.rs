//! Atomic writer: a reader of a volume sees either the old set of files or the new one.
//!
//! The files are in a directory named after the time, `..data` is a link to it that is replaced by
//! one rename, and the names that users see are links through `..data`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use nix::errno::Errno;

use crate::dir::{Dir, Kind};
use crate::error::Error;
use crate::payload::Payload;
use crate::remove::{Scope, tree};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Permissions of the owner and group on read-only files.
pub(super) const READABLE: u32 = 0o440;

/// Makes the volume hold exactly the payload, readable by the group if one is given. Nothing is
/// written if it holds it already.
pub(super) fn write(volume: &Dir, payload: &Payload, group: Option<u32>) -> Result<(), Error> {
    let mut current = current_data(volume)?;
    if !current.as_ref().is_some_and(|data| holds_exactly(volume, data, payload)) {
        let made = write_data(volume, payload, group)?;
        // Left over from a crash, or put there by a container: a rename fails on a directory.
        tree(volume, NEW_DATA.as_ref(), Scope::Everything)?;
        if volume.link_target(DATA.as_ref())?.is_none() {
            tree(volume, DATA.as_ref(), Scope::Everything)?;
        }
        volume.new_link(NEW_DATA.as_ref(), &made)?;
        volume.rename(NEW_DATA.as_ref(), DATA.as_ref())?;
        current = Some(made);
    }
    let names: BTreeSet<&OsStr> =
        payload.files().filter_map(|(path, _)| path.iter().next()).collect();
    for name in &names {
        show(volume, name)?;
    }
    sweep(volume, &names, current.as_deref())
}

/// The directory that `..data` points to. `None` unless it is a directory of this volume: a
/// container could have replaced the link.
fn current_data(volume: &Dir) -> Result<Option<OsString>, Error> {
    let target = volume.link_target(DATA.as_ref())?.filter(|target| is_data_dir(target));
    Ok(target.filter(|target| volume.dir_of_same_mount(target).is_ok()))
}

fn is_data_dir(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.len() > 2 && bytes.starts_with(b"..") && !bytes.contains(&b'/')
}

fn holds_exactly(volume: &Dir, data: &OsStr, payload: &Payload) -> bool {
    let Ok(dir) = volume.dir_of_same_mount(data) else { return false };
    let paths: BTreeSet<&Path> = payload.files().map(|(path, _)| path).collect();
    payload.files().all(|(path, file)| dir.holds(path, &file.data))
        && holds_only(&dir, Path::new(""), &paths)
}

/// Whether every file below is one of the paths, and every directory leads to one.
fn holds_only(dir: &Dir, at: &Path, paths: &BTreeSet<&Path>) -> bool {
    let Ok(entries) = dir.entries(usize::MAX) else { return false };
    entries.iter().all(|entry| {
        let path = at.join(&entry.name);
        let leads_on =
            || paths.range(path.as_path()..).next().is_some_and(|p| p.starts_with(&path));
        paths.contains(path.as_path())
            || entry.kind == Kind::Directory
                && leads_on()
                && dir
                    .dir_of_same_mount(&entry.name)
                    .is_ok_and(|dir| holds_only(&dir, &path, paths))
    })
}

/// Writes the payload into a new directory and returns its name.
fn write_data(volume: &Dir, payload: &Payload, group: Option<u32>) -> Result<OsString, Error> {
    let (name, data) = loop {
        let name = OsString::from(Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string());
        match volume.new_dir(&name, 0o755) {
            Ok(dir) => break (name, dir),
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            Err(error) => return Err(error),
        }
    };
    match fill(&data, payload, group) {
        Ok(()) => Ok(name),
        Err(error) => {
            // A partial payload would take the space that the next attempt needs.
            tree(volume, &name, Scope::Everything)?;
            Err(error)
        }
    }
}

fn fill(data: &Dir, payload: &Payload, group: Option<u32>) -> Result<(), Error> {
    for (path, file) in payload.files() {
        let mut parent = None;
        for component in path.parent().into_iter().flatten() {
            let dir = parent.as_ref().unwrap_or(data).make_dir(component, 0o755)?;
            share(&dir, group)?;
            parent = Some(dir);
        }
        let mode = file.mode | if group.is_some() { READABLE } else { 0 };
        let file_name = path.file_name().unwrap_or_default();
        let ownership = (file.owner, group);
        parent.as_ref().unwrap_or(data).new_file(file_name, &file.data, mode, ownership)?;
    }
    share(data, group)
}

fn share(dir: &Dir, group: Option<u32>) -> Result<(), Error> {
    group.map_or(Ok(()), |group| dir.set_volume_ownership(group, READABLE))
}

/// Makes `name` a link through `..data`.
fn show(volume: &Dir, name: &OsStr) -> Result<(), Error> {
    let target = Path::new(DATA).join(name);
    if volume.link_target(name)?.is_some_and(|current| current != target) {
        volume.remove_file(name)?;
    }
    match volume.new_link(name, target.as_os_str()) {
        // The link itself, or a directory that another volume is mounted on.
        Err(error) if error.errno() == Some(Errno::EEXIST) => Ok(()),
        made => made,
    }
}

/// Removes the links of files that are gone, and all data directories but the current one.
fn sweep(volume: &Dir, names: &BTreeSet<&OsStr>, current: Option<&OsStr>) -> Result<(), Error> {
    for entry in volume.entries(usize::MAX)? {
        let name = entry.name.as_os_str();
        if name == DATA || Some(name) == current || names.contains(name) {
            continue;
        }
        if is_data_dir(name) {
            tree(volume, name, Scope::Everything)?;
        } else if entry.kind == Kind::Link
            && volume.link_target(name)?.is_some_and(|target| target == Path::new(DATA).join(name))
        {
            volume.remove_file(name)?;
        }
    }
    Ok(())
}
