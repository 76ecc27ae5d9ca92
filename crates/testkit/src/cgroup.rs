//! The cgroup of a host: one directory of its name in every hierarchy (v1, hybrid or v2), under
//! which its daemons and the pods' `kubepods` live; with the systemd driver, pods live in a slice of
//! that name. Being in them is how a process is known as the host's, whatever it forked or renamed
//! itself to.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::run_split;
use crate::error::{AtPath, Error, Result};

/// Who makes the cgroups of pods on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Node and runtime, as directories.
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

impl CgroupDriver {
    /// The driver that `LONGSHORE_CGROUP_DRIVER` names, `cgroupfs` otherwise.
    pub fn of_tests() -> Self {
        match env::var("LONGSHORE_CGROUP_DRIVER") {
            Ok(name) if name == "systemd" => Self::Systemd,
            _ => Self::Cgroupfs,
        }
    }

    /// Its name in a node's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// The leaf for the daemons: cgroup v2 wants no process in a group that has children.
const SYSTEM: &str = "system";

/// The roots of all mounted cgroup hierarchies, unified first.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return Vec::new() };
    let mut found: Vec<(bool, PathBuf)> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| (kind == "cgroup", path.into()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Makes the groups of the host `name` and gives the directory that its daemons join.
pub(crate) fn create(name: &str) -> Result<PathBuf> {
    let roots = hierarchies();
    let first = roots.first().ok_or_else(|| Error::Machine("no cgroup is mounted".into()))?;
    for root in &roots {
        let group = root.join(name);
        fs::create_dir_all(&group).at(&group)?;
        // A new v1 cpuset is empty, and a process cannot enter an empty one.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if root.join("cpuset.sched_load_balance").exists() {
                let value = fs::read_to_string(root.join(file)).at(root.join(file))?;
                fs::write(group.join(file), value).at(group.join(file))?;
            }
        }
    }
    let system = first.join(name).join(SYSTEM);
    fs::create_dir_all(&system).at(&system)?;
    if CgroupDriver::of_tests() == CgroupDriver::Systemd {
        run_split("systemctl", &format!("start {}", slice(name)))?;
    }
    Ok(system)
}

/// The processes in the host's groups, zombies left out.
pub(crate) fn processes(name: &str) -> Vec<Pid> {
    let mut pids: Vec<i32> = existing(name)
        .into_iter()
        .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|list| list.lines().filter_map(|l| l.parse().ok()).collect::<Vec<i32>>())
        .filter(|pid| *pid > 0 && !is_zombie(*pid))
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().map(Pid::from_raw).collect()
}

/// SIGKILL to every process of the host.
pub(crate) fn kill_all(name: &str) {
    for pid in processes(name) {
        // One that has gone meanwhile is what we want.
        let _ = kill(pid, Signal::SIGKILL);
    }
}

/// Removes the host's groups, children first. What is still busy stays, to be asked again.
pub(crate) fn remove(name: &str) {
    if hierarchies().iter().any(|root| root.join(slice(name)).exists()) {
        // Those below it, and scopes that end just now, go with it.
        let _ = run_split("systemctl", &format!("stop {}", slice(name)));
    }
    for group in existing(name) {
        let _ = fs::remove_dir(group);
    }
}

/// The host's groups that exist, children before parents.
pub(crate) fn existing(name: &str) -> Vec<PathBuf> {
    let both = [name.to_owned(), slice(name)];
    let roots = hierarchies();
    let groups = roots.iter().flat_map(|root| both.iter().map(|group| root.join(group)));
    groups.flat_map(|group| walk(&group)).collect()
}

/// The slice that stands for the group `name` with systemd, in which `-` parts the levels.
fn slice(name: &str) -> String {
    format!("{}.slice", name.replace('-', "_"))
}

/// `group` and all below it, children before parents; empty when it does not exist.
pub(crate) fn walk(group: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(group) else { return Vec::new() };
    let children = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let mut groups: Vec<PathBuf> = children.flat_map(|child| walk(&child.path())).collect();
    groups.push(group.into());
    groups
}

fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}
