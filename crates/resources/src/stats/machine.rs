//! The machine as a whole.

use std::io;

use longshore_pod::usage::{CgroupUsage, Memory};
use procfs::Current;

use super::cgroup::{Cgroup, Hierarchies, Reader};

/// What the machine has, and what of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What all its processes use. The limit of memory is what the machine has.
    pub figures: CgroupUsage,
    /// Memory, as part of it.
    pub memory: Memory,
    /// Bytes of swap that there are.
    pub swap_total: u64,
    /// Bytes of swap that are free.
    pub swap_free: u64,
    /// Process ids.
    pub pids: Pids,
}

/// Process ids: threads take them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pids {
    /// How many there can be.
    pub max: u64,
    /// How many there are.
    pub running: u64,
}

impl Machine {
    pub(super) fn read(hierarchies: &Hierarchies) -> io::Result<Self> {
        let info = procfs::Meminfo::current().map_err(io::Error::other)?;
        let (root, mut reader) = (Cgroup::root(hierarchies), Reader::default());
        let used = root.memory(&mut reader, false)?.memory;
        let memory = Memory { limit: Some(info.mem_total), ..used };
        let pids = Pids::read()?;
        let figures = CgroupUsage {
            cpu: root.cpu(&mut reader).ok().map(|cpu| cpu.total),
            memory: Some(memory),
            swap: Some(info.swap_total.saturating_sub(info.swap_free)),
            tasks: Some(pids.running),
        };
        let (swap_total, swap_free) = (info.swap_total, info.swap_free);
        Ok(Self { figures, memory, swap_total, swap_free, pids })
    }
}

impl Pids {
    fn read() -> io::Result<Self> {
        let kernel = procfs::sys::kernel::pid_max().map_err(io::Error::other)?;
        let threads = procfs::sys::kernel::threads_max().map_err(io::Error::other)?;
        let load = procfs::LoadAverage::current().map_err(io::Error::other)?;
        let max = u64::try_from(kernel).unwrap_or(0).min(u64::from(threads));
        Ok(Self { max, running: u64::from(load.max) })
    }
}
