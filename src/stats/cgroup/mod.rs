//! What the cgroups of the kernel tell, v1 (a hierarchy for each controller) and v2.
//!
//! A [`Group`] is the name of one; a [`Cgroup`] has its directories open, so that its files and
//! those of the cgroups below cost no walk from the root.

mod files;
mod open;
mod reading;
#[cfg(test)]
mod tests;
mod types;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_pod::usage::{Figures, Memory};

pub(super) use files::Reader;
pub(super) use open::Cgroup;
pub use types::{
    Cpu, Detail, DeviceIo, Faults, Limits, MemoryUse, OPERATIONS, Pressure, Reading, Stall, Stalls,
    Tasks, Throttling,
};

const MOUNT: &str = "/sys/fs/cgroup";

/// The controllers that tell something.
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

/// Where the controllers are. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    unified: bool,
    /// In the order of [`Controller::ALL`]; on v2 all the same.
    roots: Arc<[PathBuf; 5]>,
}

impl Hierarchies {
    pub(super) fn find(unified: bool) -> Self {
        let root = |controller: Controller| match unified {
            true => PathBuf::from(MOUNT),
            false => Path::new(MOUNT).join(controller.name()),
        };
        Self { unified, roots: Arc::new(Controller::ALL.map(root)) }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }

    fn root(&self, controller: Controller) -> &Path {
        &self.roots[controller as usize]
    }
}

/// One cgroup in all hierarchies.
#[derive(Debug)]
pub(super) struct Group {
    hierarchies: Hierarchies,
    path: PathBuf,
}

impl Group {
    pub(super) fn new(hierarchies: &Hierarchies, path: &Path) -> Self {
        let path = path.strip_prefix("/").unwrap_or(path);
        Self { hierarchies: hierarchies.clone(), path: path.to_owned() }
    }

    pub(super) fn root(hierarchies: &Hierarchies) -> Self {
        Self::new(hierarchies, Path::new(""))
    }

    pub(super) fn memory_file(&self, name: &str) -> PathBuf {
        self.hierarchies.root(Controller::Memory).join(&self.path).join(name)
    }

    /// With its directories open. The error names the one that is not there.
    pub(super) fn open(&self) -> io::Result<Cgroup> {
        Cgroup::open(&self.hierarchies, &self.path)
    }

    pub(super) fn cpu(&self) -> io::Result<u64> {
        Ok(self.open()?.cpu(&mut Reader::default())?.total)
    }

    pub(super) fn memory(&self) -> io::Result<Memory> {
        Ok(self.open()?.memory(&mut Reader::default(), false)?.memory)
    }
}

impl Cgroup {
    /// What eviction ranks by. A controller that is not there tells nothing.
    pub(super) fn figures(&self, reader: &mut Reader) -> Figures {
        let memory = self.memory(reader, false).ok();
        Figures {
            cpu: self.cpu(reader).ok().map(|cpu| cpu.total),
            memory: memory.map(|memory| memory.memory),
            // On v1 what is swapped out is known only where the kernel was told to count it.
            swap: memory.and_then(|memory| memory.swap).filter(|_| self.is_unified()),
            tasks: self.tasks(reader).map(|tasks| tasks.current),
        }
    }
}

/// The id of the container that a cgroup belongs to: runtimes name a scope of systemd after
/// themselves and the container, and a directory of cgroupfs after the container alone.
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

/// Whether a cgroup holds the pods of a class.
pub(super) fn is_level(name: &str) -> bool {
    let part = name.strip_suffix(".slice").unwrap_or(name);
    part.ends_with("burstable") || part.ends_with("besteffort")
}
