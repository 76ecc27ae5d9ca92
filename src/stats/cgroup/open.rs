//! A cgroup with its directories open.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};

use super::{Controller, Hierarchies};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A cgroup in each hierarchy that has it.
pub(in crate::stats) struct Cgroup {
    unified: bool,
    is_root: bool,
    /// In the order of [`Controller::ALL`]; on v2 the first alone.
    dirs: [Option<OwnedFd>; 5],
}

impl Cgroup {
    pub(super) fn open(hierarchies: &Hierarchies, path: &Path) -> io::Result<Self> {
        let unified = hierarchies.unified;
        let mut failed = None;
        let dirs = Controller::ALL.map(|controller| {
            if unified && controller != Controller::Memory {
                return None;
            }
            let dir = hierarchies.root(controller).join(path);
            // A controller may be linked to the hierarchy that it shares with another.
            let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
            rustix::fs::open(&dir, flags, Mode::empty())
                .inspect_err(|error| {
                    failed = Some(io::Error::new(
                        io::Error::from(*error).kind(),
                        format!("{}: {error}", dir.display()),
                    ));
                })
                .ok()
        });
        Self::of(unified, path.as_os_str().is_empty(), dirs, failed)
    }

    /// A cgroup right below.
    pub(in crate::stats) fn child(&self, name: &str) -> io::Result<Self> {
        let mut failed = None;
        let mut open = |dir: &OwnedFd| {
            let opened = openat(dir, name, DIRECTORY, Mode::empty());
            opened.inspect_err(|error| failed = Some(io::Error::from(*error))).ok()
        };
        let dirs = self.dirs.each_ref().map(|dir| dir.as_ref().and_then(&mut open));
        Self::of(self.unified, false, dirs, failed)
    }

    fn of(
        unified: bool,
        is_root: bool,
        dirs: [Option<OwnedFd>; 5],
        failed: Option<io::Error>,
    ) -> io::Result<Self> {
        match (dirs.iter().any(Option::is_some), failed) {
            (false, Some(error)) => Err(error),
            _ => Ok(Self { unified, is_root, dirs }),
        }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }

    pub(super) fn is_root(&self) -> bool {
        self.is_root
    }

    /// The directory with a controller's files.
    pub(super) fn dir(&self, controller: Controller) -> io::Result<&OwnedFd> {
        let index = if self.unified { 0 } else { controller as usize };
        self.dirs.get(index).and_then(Option::as_ref).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no controller {}", controller.name()))
        })
    }

    /// Any of its directories: all have the list of its processes.
    pub(in crate::stats) fn any_dir(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.dirs.iter().flatten().next().map(AsFd::as_fd)
    }

    /// The names of the cgroups right below.
    pub(in crate::stats) fn children(&self) -> Vec<String> {
        let Some(dir) = self.any_dir() else { return Vec::new() };
        let Ok(entries) = Dir::read_from(dir) else { return Vec::new() };
        let name = |entry: rustix::fs::DirEntry| {
            let name = entry.file_name().to_str().ok()?;
            let is_child = entry.file_type() == FileType::Directory && !matches!(name, "." | "..");
            is_child.then(|| name.to_owned())
        };
        let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
        names.sort_unstable();
        names
    }

    /// When it was made, as well as that can be told: a file that nobody writes is as old as its
    /// cgroup, or as the kernel's memory of it. The directory itself changes with what is below.
    pub(in crate::stats) fn created(&self) -> Option<Timestamp> {
        let dir = self.any_dir()?;
        let names = ["cgroup.clone_children", "cgroup.events", "cgroup.procs"];
        let stat = names.iter().find_map(|name| statat(dir, *name, AtFlags::empty()).ok())?;
        Timestamp::new(stat.st_mtime, 0).ok()
    }
}
