//! Stats of cgroups, v1 and v2.
//!
//! Files of descendants are opened relative to the directories of a base cgroup: opening the five
//! directories of each cgroup (v1) would cost as much as reading the files, and absolute paths half
//! of that.

mod files;
mod group;
mod reading;
#[cfg(test)]
mod tests;
mod types;
mod watch;

use std::sync::Arc;

use longshore_pod::usage::CgroupUsage;

pub(super) use files::Reader;
pub(super) use group::Cgroup;
pub use types::{
    Cpu, Detail, DeviceIo, Faults, Limits, MemoryUse, OPERATIONS, Pressure, Reading, Stall, Stalls,
    Tasks, Throttling,
};
pub(super) use watch::Watch;

const MOUNT: &str = "/sys/fs/cgroup";

/// The controllers with stats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Cpu,
    CpuAcct,
    BlkIo,
    Pids,
}

impl Controller {
    const ALL: [Self; 5] = [Self::Memory, Self::Cpu, Self::CpuAcct, Self::BlkIo, Self::Pids];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAcct => "cpuacct",
            Self::BlkIo => "blkio",
            Self::Pids => "pids",
        }
    }
}

/// The mount points of controllers. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    unified: bool,
    /// In the order of [`Controller::ALL`]; on v2 all the same.
    roots: Arc<[String; 5]>,
}

impl Hierarchies {
    pub(super) fn find(unified: bool) -> Self {
        let root = |controller: Controller| match unified {
            true => MOUNT.to_owned(),
            false => format!("{MOUNT}/{}", controller.name()),
        };
        Self { unified, roots: Arc::new(Controller::ALL.map(root)) }
    }

    /// All controllers in one directory.
    #[cfg(test)]
    pub(super) fn at(root: &std::path::Path, unified: bool) -> Self {
        let roots = Arc::new(Controller::ALL.map(|_| root.to_string_lossy().into_owned()));
        Self { unified, roots }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }

    fn root(&self, controller: Controller) -> &str {
        &self.roots[controller as usize]
    }

    /// A controller of each hierarchy.
    fn each(&self) -> &'static [Controller] {
        if self.unified { &Controller::ALL[..1] } else { &Controller::ALL }
    }
}

impl Cgroup {
    /// The usage that eviction ranks by. Values of missing controllers are `None`.
    pub(super) fn usage(&self, reader: &mut Reader) -> CgroupUsage {
        let memory = self.memory(reader, false).ok();
        CgroupUsage {
            cpu: self.cpu(reader).ok().map(|cpu| cpu.total),
            memory: memory.map(|memory| memory.memory),
            // On v1 swap accounting is optional.
            swap: memory.and_then(|memory| memory.swap).filter(|_| self.is_unified()),
            tasks: self.tasks(reader).map(|tasks| tasks.current),
        }
    }
}

/// The container ID of a cgroup: systemd scopes are named `<runtime>-<id>.scope`, cgroupfs
/// directories `<id>`.
pub(super) fn container_id(name: &str) -> &str {
    let stem = name.strip_suffix(".scope").unwrap_or(name);
    stem.rsplit('-').next().unwrap_or(stem)
}

/// The UID of the pod that a cgroup belongs to, with `_` for each dash; `None` if it is no pod's.
pub(super) fn pod_uid(name: &str) -> Option<String> {
    let part = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next().unwrap_or(slice),
        None => name,
    };
    let uid = part.strip_prefix("pod").filter(|uid| !uid.is_empty() && *uid != "s");
    uid.map(|uid| uid.replace('-', "_"))
}

/// Whether a cgroup is that of a QoS class.
pub(super) fn is_level(name: &str) -> bool {
    let part = name.strip_suffix(".slice").unwrap_or(name);
    part.ends_with("burstable") || part.ends_with("besteffort")
}
