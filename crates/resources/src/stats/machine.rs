//! The machine as a whole.

use std::io;

use longshore_pod::usage::{CgroupUsage, Memory};
use procfs::Current;

use super::cgroup::{Cgroup, Hierarchies, Reader};

/// Capacity and usage of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The usage of all processes. The memory limit is the machine's memory.
    pub usage: CgroupUsage,
    /// The memory usage.
    pub memory: Memory,
    /// Total bytes of swap.
    pub swap_total: u64,
    /// Bytes of swap that are free.
    pub swap_free: u64,
    /// Process IDs.
    pub pids: Pids,
}

/// Process IDs, including threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pids {
    /// The maximum.
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
        let usage = CgroupUsage {
            cpu: root.cpu(&mut reader).ok().map(|cpu| cpu.total),
            memory: Some(memory),
            swap: Some(info.swap_total.saturating_sub(info.swap_free)),
            tasks: Some(pids.running),
        };
        let (swap_total, swap_free) = (info.swap_total, info.swap_free);
        Ok(Self { usage, memory, swap_total, swap_free, pids })
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
