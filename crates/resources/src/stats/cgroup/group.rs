//! A cgroup by its path, the same in all hierarchies.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use k8s_openapi::jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat};

use super::files::{Reader, named};
use super::{Controller, Hierarchies};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A cgroup in all hierarchies, which need not exist.
#[derive(Clone)]
pub(in crate::stats) struct Cgroup {
    base: Arc<Base>,
    /// The path below the base, with leading slashes; empty: the base itself.
    below: String,
}

/// The cgroup relative to which files of its descendants are opened.
struct Base {
    hierarchies: Hierarchies,
    /// The absolute path; empty for the root.
    path: String,
    /// Its directories, opened on demand, in the order of [`Controller::ALL`].
    directories: [OnceLock<Option<OwnedFd>>; 5],
}

impl Base {
    /// The directory of a controller.
    fn directory(&self, controller: Controller) -> io::Result<&OwnedFd> {
        let index = if self.hierarchies.unified { 0 } else { controller as usize };
        let path = || format!("{}{}", self.hierarchies.root(controller), self.path);
        let open = || open(path().as_str(), DIRECTORY, Mode::empty()).ok();
        let opened = self.directories.get(index).and_then(|one| one.get_or_init(open).as_ref());
        opened.ok_or_else(|| named(&path(), io::ErrorKind::NotFound.into()))
    }
}

/// A file of a controller.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    cgroup: &'a Cgroup,
    controller: Controller,
    name: &'a str,
}

impl<'a> File<'a> {
    /// The base directory, and the path relative to it.
    pub(super) fn location(self) -> io::Result<(&'a OwnedFd, String)> {
        let path = match self.cgroup.below.strip_prefix('/') {
            Some(below) => format!("{below}/{}", self.name),
            None => self.name.to_owned(),
        };
        Ok((self.cgroup.base.directory(self.controller)?, path))
    }

    /// Opens it; errors name the file.
    pub(super) fn open(self) -> io::Result<OwnedFd> {
        let (base, path) = self.location()?;
        let opened = openat(base, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|error| named(&self.to_string(), error.into()))
    }
}

impl fmt::Display for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cgroup { base, below } = self.cgroup;
        let root = base.hierarchies.root(self.controller);
        write!(f, "{root}{}{below}/{}", base.path, self.name)
    }
}

impl Cgroup {
    pub(in crate::stats) fn new(hierarchies: &Hierarchies, path: &Path) -> Self {
        let path = path.to_string_lossy();
        let parts = path.split('/').filter(|part| !part.is_empty());
        let path = parts.flat_map(|part| ["/", part]).collect();
        let (hierarchies, directories) = (hierarchies.clone(), Default::default());
        let base = Base { hierarchies, path, directories };
        Self { base: Arc::new(base), below: String::new() }
    }

    pub(in crate::stats) fn root(hierarchies: &Hierarchies) -> Self {
        Self::new(hierarchies, Path::new(""))
    }

    /// A child, whose files are opened relative to the same directories.
    pub(in crate::stats) fn child(&self, name: &str) -> Self {
        Self { base: self.base.clone(), below: format!("{}/{name}", self.below) }
    }

    /// The absolute path.
    pub(in crate::stats) fn path(&self) -> String {
        if self.is_root() { "/".to_owned() } else { format!("{}{}", self.base.path, self.below) }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.base.hierarchies.unified
    }

    pub(super) fn is_root(&self) -> bool {
        self.base.path.is_empty() && self.below.is_empty()
    }

    /// A file of a controller.
    pub(super) fn file<'a>(&'a self, controller: Controller, name: &'a str) -> File<'a> {
        File { cgroup: self, controller, name }
    }

    /// The path of a file of a controller.
    pub(in crate::stats) fn path_of(&self, controller: Controller, name: &str) -> String {
        self.file(controller, name).to_string()
    }

    /// The result of `read` for the first hierarchy that has the cgroup: its processes, children
    /// and age are the same in all of them.
    fn anywhere<T>(&self, mut read: impl FnMut(Controller) -> io::Result<T>) -> io::Result<T> {
        let mut hierarchies = self.base.hierarchies.each().iter();
        let first = read(*hierarchies.next().unwrap_or(&Controller::Memory));
        first.or_else(|error| hierarchies.find_map(|other| read(*other).ok()).ok_or(error))
    }

    /// The PIDs of its processes, except those of other namespaces.
    pub(in crate::stats) fn processes(&self, reader: &mut Reader) -> Vec<u32> {
        let found = self.anywhere(|controller| {
            let text = reader.read_all(&self.file(controller, "cgroup.procs"))?;
            // 0 is a process of another namespace.
            let pids = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0);
            Ok(pids.collect())
        });
        found.unwrap_or_default()
    }

    /// The sorted names of its children.
    pub(in crate::stats) fn children(&self) -> Vec<String> {
        let entries = self.anywhere(|controller| {
            let (base, path) = self.file(controller, ".").location()?;
            Ok(Dir::new(openat(base, path, DIRECTORY, Mode::empty())?)?)
        });
        let name = |entry: rustix::fs::DirEntry| {
            let name = entry.file_name().to_str().ok()?;
            let is_child = entry.file_type() == FileType::Directory && !matches!(name, "." | "..");
            is_child.then(|| name.to_owned())
        };
        let mut names: Vec<String> =
            entries.into_iter().flatten().flatten().filter_map(name).collect();
        names.sort_unstable();
        names
    }

    /// Its approximate creation time: the age of a file that is never written. The mtime of the
    /// directory changes with its children. An error if the cgroup does not exist.
    pub(in crate::stats) fn created(&self) -> io::Result<Option<Timestamp>> {
        let name = match (self.is_unified(), self.is_root()) {
            (false, _) => "cgroup.clone_children",
            (true, false) => "cgroup.events",
            // the root of v2 has less
            (true, true) => "cgroup.procs",
        };
        let found = self.anywhere(|controller| {
            let file = self.file(controller, name);
            let (base, path) = file.location()?;
            statat(base, path, AtFlags::empty())
                .map_err(|error| named(&file.to_string(), error.into()))
        });
        found.map(|stat| Timestamp::new(stat.st_mtime, 0).ok())
    }
}
