//! Types of cgroup stats.

use k8s_openapi::jiff::Timestamp;
use longshore_pod::usage::Memory;

/// How much of a cgroup is read. Each level includes the previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// CPU time, memory and swap.
    Usage,
    /// Also pressure, process counts, and the network.
    Load,
    /// Also I/O, limits, throttling, threads and open descriptors.
    Everything,
}

/// A sample of a cgroup. Unavailable values are `None`.
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
    /// Pressure stall information; for v2, and the root.
    pub pressure: Pressure,
    /// I/O by device.
    pub io: Vec<DeviceIo>,
    /// Limits on CPU time.
    pub limits: Limits,
    /// OOM kills.
    pub oom_kills: Option<u64>,
}

/// CPU time since the cgroup was created, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Total.
    pub total: u64,
    /// In user space.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// Throttling by the quota.
    pub throttling: Option<Throttling>,
}

/// Throttling by a CPU quota. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Number of periods.
    pub periods: u64,
    /// Throttled periods.
    pub throttled: u64,
    /// Throttled time.
    pub throttled_time: u64,
    /// Periods with bursts.
    pub bursts: u64,
    /// Burst time.
    pub burst_time: u64,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// The values for eviction.
    pub memory: Memory,
    /// Page cache.
    pub cache: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Active page cache.
    pub active_file: u64,
    /// Inactive page cache.
    pub inactive_file: u64,
    /// Kernel memory.
    pub kernel: Option<u64>,
    /// Swap usage.
    pub swap: Option<u64>,
    /// Swap limit; `None`: unlimited or unknown.
    pub swap_limit: Option<u64>,
    /// Peak usage.
    pub peak: Option<u64>,
    /// Number of times the limit was hit; v1.
    pub failures: u64,
    /// Reserved memory.
    pub reserved: u64,
    /// Page faults without children.
    pub own_faults: Faults,
    /// Page faults including children.
    pub faults: Faults,
}

/// Page faults since the cgroup was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All page faults.
    pub minor: u64,
    /// Major page faults.
    pub major: u64,
}

/// Processes and threads of a cgroup and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// How many there are.
    pub current: u64,
    /// The limit.
    pub max: Option<u64>,
}

/// Pressure stall information (PSI).
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
    /// Whether all averages are zero: otherwise they decay by themselves.
    pub(in crate::stats) fn is_calm(&self) -> bool {
        let stalls = [&self.cpu, &self.memory, &self.io].into_iter().flatten();
        let averages = |stall: &Stall| [stall.avg10, stall.avg60, stall.avg300];
        stalls.flat_map(|stalls| [&stalls.some, &stalls.full]).flat_map(averages).all(|a| a == 0.0)
    }
}

/// Pressure stall information of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// Some tasks stalled.
    pub some: Stall,
    /// All tasks stalled.
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

/// The operations of [`DeviceIo`], in order, by the kernel's names.
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
    /// CPU shares, on the scale of v1.
    pub shares: Option<u64>,
}
