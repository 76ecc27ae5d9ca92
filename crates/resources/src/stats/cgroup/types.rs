//! What one cgroup uses, may use and waits for.

use k8s_openapi::jiff::Timestamp;
use longshore_pod::usage::Memory;

/// How much of a cgroup is read. Each has all of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// CPU time, memory and swap.
    Usage,
    /// Also what tasks wait for, how many processes there are, and the network.
    Load,
    /// Also I/O, limits, throttling, threads and what processes hold open.
    Everything,
}

/// One cgroup at one moment. What its kernel does not tell is `None`.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// When it was read.
    pub at: Timestamp,
    /// CPU time.
    pub cpu: Option<Cpu>,
    /// Memory and swap.
    pub memory: Option<MemoryUse>,
    /// Processes and threads.
    pub tasks: Option<Tasks>,
    /// What tasks wait for; v2, and the machine as a whole.
    pub pressure: Pressure,
    /// Reads and writes, by device.
    pub io: Vec<DeviceIo>,
    /// Limits on CPU time.
    pub limits: Limits,
    /// Processes that ran out of memory and were killed.
    pub oom_kills: Option<u64>,
}

/// CPU time since the cgroup was made, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// All of it.
    pub total: u64,
    /// In user space.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// How often a quota held it up.
    pub throttling: Option<Throttling>,
}

/// What a CPU quota has done. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which tasks wanted to run.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled: u64,
    /// How long tasks were held up.
    pub throttled_time: u64,
    /// Periods in which more than the quota was used.
    pub bursts: u64,
    /// How much more.
    pub burst_time: u64,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What eviction looks at.
    pub memory: Memory,
    /// Pages of files.
    pub cache: u64,
    /// Pages of files that are mapped.
    pub mapped_file: u64,
    /// Pages of files that were used lately.
    pub active_file: u64,
    /// Pages of files that were not.
    pub inactive_file: u64,
    /// What the kernel keeps for it.
    pub kernel: Option<u64>,
    /// In swap.
    pub swap: Option<u64>,
    /// Swap that it may take; `None`: all there is, or not known.
    pub swap_limit: Option<u64>,
    /// The most that it ever used.
    pub peak: Option<u64>,
    /// How often it ran into its limit; v1.
    pub failures: u64,
    /// What is kept for it.
    pub reserved: u64,
    /// Page faults of its own processes.
    pub own_faults: Faults,
    /// Page faults, cgroups below included.
    pub faults: Faults,
}

/// Page faults since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All, as the kernel counts them.
    pub minor: u64,
    /// Those that had to wait for a disk.
    pub major: u64,
}

/// Processes and threads of a cgroup and those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// How many there are.
    pub current: u64,
    /// How many there may be.
    pub max: Option<u64>,
}

/// How long tasks waited for CPU, memory and I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// For a CPU.
    pub cpu: Option<Stalls>,
    /// For memory.
    pub memory: Option<Stalls>,
    /// For I/O.
    pub io: Option<Stalls>,
}

impl Pressure {
    /// Whether nothing has waited lately: averages sink by themselves when nothing waits any more.
    pub(in crate::stats) fn is_calm(&self) -> bool {
        let stalls = [&self.cpu, &self.memory, &self.io].into_iter().flatten();
        let averages = |stall: &Stall| [stall.avg10, stall.avg60, stall.avg300];
        stalls.flat_map(|stalls| [&stalls.some, &stalls.full]).flat_map(averages).all(|a| a == 0.0)
    }
}

/// Pressure stall information of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// While some tasks waited.
    pub some: Stall,
    /// While all did.
    pub full: Stall,
}

/// A line of pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 seconds.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
    /// Microseconds in all.
    pub total: u64,
}

/// What [`DeviceIo`] counts, in its order: the kernel's words.
pub const OPERATIONS: [&str; 6] = ["Async", "Discard", "Read", "Sync", "Total", "Write"];

/// Reads and writes of a cgroup on a device, by [`OPERATIONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Bytes.
    pub bytes: [Option<u64>; 6],
    /// Requests.
    pub requests: [Option<u64>; 6],
}

impl DeviceIo {
    /// Bytes read.
    pub fn read(&self) -> u64 {
        self.bytes[2].unwrap_or(0)
    }

    /// Bytes written.
    pub fn written(&self) -> u64 {
        self.bytes[5].unwrap_or(0)
    }

    /// Requests to read.
    pub fn reads(&self) -> u64 {
        self.requests[2].unwrap_or(0)
    }

    /// Requests to write.
    pub fn writes(&self) -> u64 {
        self.requests[5].unwrap_or(0)
    }
}

/// Limits on CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Microseconds in each period; `None`: no limit.
    pub quota: Option<u64>,
    /// Microseconds of a period.
    pub period: Option<u64>,
    /// The share among those beside it, on the scale of v1.
    pub shares: Option<u64>,
}
