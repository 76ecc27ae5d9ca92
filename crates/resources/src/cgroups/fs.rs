//! Cgroups as directories and files. All operations may block.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::files::if_present;
use longshore_base::retry::Delays;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Error;
use super::hierarchy::{Hierarchies, join};
use super::limits::{Limits, Write};

/// Controllers that are enabled for children on cgroup v2.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];
/// Retries of a removal after the processes were killed.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The file systems of cgroups.
#[derive(Clone, Debug)]
pub(super) struct Fs {
    pub(super) hierarchies: Hierarchies,
    /// Whether to turn off load balancing in new v1 cpusets, so that the runtime can exempt a pod.
    pub(super) unbalanced: bool,
}

impl Fs {
    /// Creates a cgroup for cgroups and its parents in every hierarchy.
    pub(super) fn make(&self, path: &Path) -> Result<(), Error> {
        self.make_leaf(path)?;
        if self.hierarchies.unified {
            let dirs = self.hierarchies.trees.iter().map(|tree| join(&tree.root, path));
            dirs.for_each(|dir| enable_controllers(&dir));
        }
        Ok(())
    }

    /// Creates a cgroup for processes and its parents in every hierarchy. On v2 no controllers are
    /// enabled for its children: it could have no processes then.
    pub(super) fn make_leaf(&self, path: &Path) -> Result<(), Error> {
        for tree in &self.hierarchies.trees {
            let dir = join(&tree.root, path);
            self.make_dir(&tree.root, &dir).map_err(Error::at(&dir))?;
            if self.hierarchies.unified {
                let above = dir.ancestors().skip(1).filter(|above| above.starts_with(&tree.root));
                let above: Vec<_> = above.collect();
                above.into_iter().rev().for_each(enable_controllers);
            }
        }
        Ok(())
    }

    /// Creates a directory below a root, and those above it that are missing: most often there are none.
    fn make_dir(&self, root: &Path, dir: &Path) -> io::Result<()> {
        let parent = dir.parent().filter(|parent| dir != root && parent.starts_with(root));
        let Some(parent) = parent else { return Ok(()) };
        let made = match std::fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_dir(root, parent)?;
                std::fs::create_dir(dir)
            }
            made => made,
        };
        match made {
            Ok(()) => self.init_cpuset(parent, dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Checks that a system cgroup exists.
    pub(super) fn ensure_existing(&self, path: &Path) -> Result<(), Error> {
        let is_there = self.hierarchies.trees.iter().all(|tree| join(&tree.root, path).is_dir());
        if is_there && self.hierarchies.unified {
            self.make(path)?;
        }
        let missing = self.hierarchies.missing(path);
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::Missing { name: path.display().to_string(), missing }),
        }
    }

    /// Whether any hierarchy has the cgroup.
    pub(super) fn exists(&self, path: &Path) -> bool {
        self.hierarchies.trees.iter().any(|tree| join(&tree.root, path).exists())
    }

    /// Copies CPUs and memory nodes of the parent to a new v1 cpuset, which is empty. Errors show
    /// when the first process is started.
    fn init_cpuset(&self, parent: &Path, dir: &Path) {
        if self.hierarchies.unified || !dir.join("cpuset.cpus").exists() {
            return;
        }
        if self.unbalanced {
            let _ = std::fs::write(dir.join("cpuset.sched_load_balance"), "0");
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = std::fs::read_to_string(parent.join(file)) {
                let _ = std::fs::write(dir.join(file), value);
            }
        }
    }

    /// Sets the limits of a cgroup. Those of unavailable controllers are skipped.
    pub(super) fn set(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        let mut deferred = Vec::new();
        for write in limits.writes(self.hierarchies.unified) {
            match self.write(path, &write) {
                // A period may be rejected before the quota is set.
                Err(Error::Write { source, .. }) if is_invalid(&source) => deferred.push(write),
                written => written?,
            }
        }
        deferred.iter().try_for_each(|write| self.write(path, write))
    }

    fn write(&self, path: &Path, write: &Write) -> Result<(), Error> {
        let Some(tree) = self.hierarchies.tree(write.controller) else { return Ok(()) };
        let file = join(&tree.root, path).join(&write.file);
        // Without creating it.
        let written = std::fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .and_then(|mut open| io::Write::write_all(&mut open, write.value.as_bytes()));
        match written {
            Err(error) if write.optional && error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(Error::Write { path: file, value: write.value.clone(), source }),
            Ok(()) => Ok(()),
        }
    }

    /// Whether swap accounting is available. The root of v2 has no such file, so `path` or our own
    /// cgroup is checked.
    pub(super) fn counts_swap(&self, path: &Path) -> bool {
        let Some(tree) = self.hierarchies.tree("memory") else { return false };
        if !self.hierarchies.unified {
            return tree.root.join("memory.memsw.limit_in_bytes").exists();
        }
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        let candidates = [path, Path::new(own)].into_iter();
        candidates
            .map(|path| join(&tree.root, path))
            .any(|dir| dir.join("memory.swap.max").exists())
    }

    /// The memory usage of a cgroup in bytes.
    pub(super) fn memory_usage(&self, path: &Path) -> Result<u64, Error> {
        const CONTROLLER: &str = "memory";
        let tree = self.hierarchies.tree(CONTROLLER);
        let tree = tree.ok_or_else(|| Error::NotMounted(CONTROLLER.to_owned()))?;
        let file = match self.hierarchies.unified {
            true => "memory.current",
            false => "memory.usage_in_bytes",
        };
        let file = join(&tree.root, path).join(file);
        let read = std::fs::read_to_string(&file);
        let parse = |text: String| text.trim().parse().map_err(io::Error::other);
        read.and_then(parse).map_err(Error::at(&file))
    }

    /// Removes a cgroup and its descendants. Remaining processes are killed.
    pub(super) fn remove(&self, path: &Path) -> Result<(), Error> {
        let mut delays = Delays::doubling(PAUSE, Duration::MAX);
        for _ in 1..TRIES {
            match self.try_remove(path) {
                Err(Error::Io { source, .. }) if is_busy(&source) => self.kill(path),
                other => return other,
            }
            std::thread::sleep(delays.next_delay());
        }
        self.try_remove(path)
    }

    fn try_remove(&self, path: &Path) -> Result<(), Error> {
        let trees = self.hierarchies.trees.iter();
        trees.map(|tree| join(&tree.root, path)).try_for_each(|dir| remove_tree(&dir))
    }

    fn kill(&self, path: &Path) {
        for dir in
            self.hierarchies.trees.iter().flat_map(|tree| descendants(&join(&tree.root, path)))
        {
            let list = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            // 0 is a process of another namespace; kill(0) would be our own group.
            let pids = list.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0);
            for pid in pids {
                // It may have ended.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EINVAL as i32)
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EBUSY as i32)
}

/// Enables all controllers of a v2 cgroup for its children. Errors show when a limit is set.
fn enable_controllers(dir: &Path) {
    let read = |file| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    let (available, enabled) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    for controller in available.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
        if !enabled.split_whitespace().any(|name| name == controller) {
            let _ = std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

/// A cgroup and its descendants, leaves first; empty if it does not exist.
fn descendants(dir: &Path) -> Vec<PathBuf> {
    // Iterative, as containers may nest cgroups deeply.
    let (mut found, mut pending) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
        pending.extend(dirs.map(|entry| entry.path()));
        found.push(dir);
    }
    found.reverse();
    found
}

fn remove_tree(dir: &Path) -> Result<(), Error> {
    for dir in descendants(dir) {
        if_present(std::fs::remove_dir(&dir)).map_err(Error::at(&dir))?;
    }
    Ok(())
}
