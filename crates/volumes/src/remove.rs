//! Removes a pod's volumes: first mounts, then directories. Links are removed and never followed,
//! and foreign mounts are kept.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::dir::{Dir, Entry, Kind};
use crate::error::{Error, FirstError, if_exists};
use crate::layout;

/// Entries per listing, to bound the memory for huge directories.
const BATCH: usize = 1024;
/// Maximum depth of directories that are open at the same time.
const DEEPEST: usize = 32;
/// Maximum number of stacked mounts on a volume.
const MOST_STACKED: usize = 64;

/// What may be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everything: the volume is ephemeral.
    Everything,
    /// Only empty directories: the data may be persistent.
    EmptyDirectories,
}

/// Unmounts and removes all volumes of a pod. Persistent ones are torn down already; data that is
/// left in them is an error. Attempts all of it and returns the first error. A pod without
/// directory is no error.
pub(super) fn volumes(pods: &Dir, uid: &OsStr) -> Result<(), Error> {
    let Some(pod) = if_exists(same_mount(pods, uid))? else { return Ok(()) };
    let mut errors = FirstError::default();
    errors.note(sub_paths(pods, uid));
    errors.note(each_name(&pod, layout::DEVICES.as_ref(), &mut |devices, plugin| {
        tree(devices, plugin, Scope::EmptyDirectories)
    }));
    errors.note(each_name(&pod, layout::VOLUMES.as_ref(), &mut |volumes, plugin| {
        each_name(volumes, plugin, &mut |plugin_dir, volume| {
            let scope = if layout::is_own_plugin(plugin) {
                unmount(&plugin_dir.path().join(volume))?;
                Scope::Everything
            } else {
                Scope::EmptyDirectories
            };
            tree(plugin_dir, volume, scope)
        })
    }));
    errors.result()?;
    tree(&pod, layout::PLUGINS.as_ref(), Scope::Everything)
}

/// Removes the whole directory of a pod, its volumes first.
pub(super) fn pod(pods: &Dir, uid: &OsStr) -> Result<(), Error> {
    volumes(pods, uid)?;
    tree(pods, uid, Scope::Everything)
}

/// Unmounts and removes the sub-paths of a pod: `volume-subpaths/<volume>/<container>/<index>`,
/// each a bind mount on a file or directory. They are bind mounts from volumes, so they go first.
pub(super) fn sub_paths(pods: &Dir, uid: &OsStr) -> Result<(), Error> {
    let Some(pod) = if_exists(same_mount(pods, uid))? else { return Ok(()) };
    each_name(&pod, layout::SUB_PATHS.as_ref(), &mut |volumes, volume| {
        each_name(volumes, volume, &mut |containers, container| {
            each_name(containers, container, &mut |container, index| {
                unmount(&container.path().join(index))?;
                mount_target(container, index)
            })
        })
    })
}

type Visit<'a> = &'a mut dyn FnMut(&Dir, &OsStr) -> Result<(), Error>;

/// Visits every name in a subdirectory, if it exists, and then removes it.
fn each_name(parent: &Dir, name: &OsStr, visit: Visit<'_>) -> Result<(), Error> {
    let Some(dir) = if_exists(same_mount(parent, name))? else { return Ok(()) };
    let mut errors = FirstError::default();
    for entry in dir.entries(usize::MAX)? {
        errors.note(visit(&dir, &entry.name));
    }
    errors.result()?;
    parent.remove_dir(name)
}

/// Opens a subdirectory, which must not be a mount point.
fn same_mount(parent: &Dir, name: &OsStr) -> Result<Dir, Error> {
    parent.dir_of_same_mount(name).map_err(|error| match error.errno() {
        Some(Errno::EXDEV) => mounted(parent, name),
        _ => error,
    })
}

fn mounted(parent: &Dir, name: &OsStr) -> Error {
    Error::Foreign { path: parent.path().join(name), what: "is a mount of something else" }
}

/// Removes the empty file or directory that something was mounted on.
pub(super) fn mount_target(parent: &Dir, name: &OsStr) -> Result<(), Error> {
    parent.remove_file(name).or_else(|error| match error.errno() {
        Some(Errno::EISDIR) => parent.remove_dir(name),
        _ => Err(error),
    })
}

/// Unmounts all mounts at a path, which containers must not be able to change.
pub(super) fn unmount(path: &Path) -> Result<(), Error> {
    for _ in 0..MOST_STACKED {
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point.
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(Error::io("unmount", path, errno)),
        }
    }
    Err(Error::io("unmount", path, Errno::EBUSY))
}

/// Removes a name and all below it on the same mount. Attempts all of it and returns the first
/// error.
pub(super) fn tree(parent: &Dir, name: &OsStr, scope: Scope) -> Result<(), Error> {
    let dir = match same_mount(parent, name) {
        Ok(dir) => dir,
        Err(error) => {
            return match error.errno() {
                Some(Errno::ENOENT) => Ok(()),
                Some(Errno::ENOTDIR | Errno::ELOOP) => remove_file(parent, name, scope),
                _ => Err(error),
            };
        }
    };
    let mut removal = Removal { top: &dir, scope, moved: 0, errors: FirstError::default() };
    removal.clear(&dir, 0);
    removal.errors.result()?;
    parent.remove_dir(name)
}

fn remove_file(parent: &Dir, name: &OsStr, scope: Scope) -> Result<(), Error> {
    match scope {
        Scope::Everything => parent.remove_file(name),
        Scope::EmptyDirectories => {
            Err(Error::Foreign { path: parent.path().join(name), what: "holds data" })
        }
    }
}

struct Removal<'a> {
    top: &'a Dir,
    scope: Scope,
    moved: u64,
    errors: FirstError,
}

impl Removal<'_> {
    fn clear(&mut self, dir: &Dir, depth: usize) {
        loop {
            let entries = match dir.entries(BATCH) {
                Ok(entries) => entries,
                Err(error) => {
                    self.errors.note(Err(error));
                    return;
                }
            };
            let mut progress = false;
            for entry in &entries {
                let removed = self.remove(dir, entry, depth);
                progress |= self.errors.note(removed);
            }
            // Directories may have been moved here meanwhile, so it ends with an empty listing.
            if !progress {
                return;
            }
        }
    }

    fn remove(&mut self, dir: &Dir, entry: &Entry, depth: usize) -> Result<(), Error> {
        let name = &entry.name;
        if entry.kind != Kind::Directory {
            return remove_file(dir, name, self.scope);
        }
        let Some(child) = if_exists(same_mount(dir, name))? else { return Ok(()) };
        if depth < DEEPEST {
            self.clear(&child, depth + 1);
            return dir.remove_dir(name);
        }
        if self.scope == Scope::EmptyDirectories {
            return Err(Error::Foreign {
                path: child.path().to_owned(),
                what: "is nested too deep",
            });
        }
        // A tree can be deeper than the limit of file descriptors: its rest is moved to the top,
        // whose loop removes it.
        loop {
            self.moved = self.moved.saturating_add(1);
            let free = OsString::from(format!(".longshore-removes-{}", self.moved));
            match dir.move_to(name, self.top, &free) {
                Err(error) if error.errno() == Some(Errno::EEXIST) => {}
                moved => return moved,
            }
        }
    }
}
