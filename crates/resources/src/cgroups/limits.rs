//! Limits of a cgroup, as values of files and as systemd properties. Pure.

use std::time::Duration;

use zbus::Variant;

use crate::hugepages;

/// Bounds of CPU shares (cgroup v1).
const SHARES: (u64, u64) = (2, 262_144);
/// Shares per CPU.
const SHARES_PER_CPU: i128 = 1024;
/// Minimum quota, in microseconds per period.
const MIN_QUOTA: i64 = 1000;
/// Bounds of CPU weights (cgroup v2).
const WEIGHTS: (u64, u64) = (1, 10_000);
/// systemd counts CPU time in hundredths of a CPU: microseconds a second.
const SYSTEMD_STEP: u64 = 10_000;
/// No limit, for systemd.
const INFINITY: u64 = u64::MAX;

/// Minimum shares.
pub const LEAST_SHARES: u64 = SHARES.0;

/// CPU shares (cgroup v1) for thousandths of a CPU.
pub fn shares(milli_cpu: i128) -> u64 {
    let shares = milli_cpu.saturating_mul(SHARES_PER_CPU) / 1000;
    u64::try_from(shares.max(0)).unwrap_or(SHARES.1).clamp(SHARES.0, SHARES.1)
}

/// CPU quota in microseconds per `period` microseconds; 0 is no limit.
pub fn quota(milli_cpu: i128, period: i64) -> i64 {
    if milli_cpu <= 0 {
        return 0;
    }
    let quota = milli_cpu.saturating_mul(i128::from(period)) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(MIN_QUOTA)
}

/// The CPU weight (cgroup v2) for shares.
fn weight(shares: u64) -> u64 {
    let (from, to) = (SHARES, WEIGHTS);
    let shares = shares.clamp(from.0, from.1);
    let (above, range) = (shares.saturating_sub(from.0), to.1.saturating_sub(to.0));
    let scaled = above.saturating_mul(range).checked_div(from.1.saturating_sub(from.0));
    to.0.saturating_add(scaled.unwrap_or(0))
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Max {
    /// No limit.
    Unlimited,
    /// A limit.
    At(u64),
}

/// CPU quota per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMax {
    /// Microseconds per period; `None`: no limit.
    pub quota: Option<u64>,
    /// Microseconds.
    pub period: u64,
}

impl CpuMax {
    /// The quota for thousandths of a CPU; 0 is no limit.
    pub fn new(milli_cpu: i128, period: Duration) -> Self {
        let period = u64::try_from(period.as_micros()).unwrap_or(100_000);
        let quota = quota(milli_cpu, i64::try_from(period).unwrap_or(i64::MAX));
        Self { quota: u64::try_from(quota).ok().filter(|quota| *quota > 0), period }
    }

    /// Microseconds per second, as systemd counts: rounded up.
    fn per_second(self) -> Option<u64> {
        let per_second = self.quota?.saturating_mul(1_000_000);
        let per_second = per_second.checked_div(self.period.max(1)).unwrap_or(0);
        Some(per_second.div_ceil(SYSTEMD_STEP).saturating_mul(SYSTEMD_STEP))
    }

    /// The same quota, with systemd's rounding.
    fn rounded(self) -> Self {
        let quota = self.per_second().map(|time| time.saturating_mul(self.period) / 1_000_000);
        Self { quota, ..self }
    }
}

/// Limits of a cgroup. Fields that are `None` are not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU shares (cgroup v1).
    pub shares: Option<u64>,
    /// CPU time.
    pub cpu: Option<CpuMax>,
    /// Bytes of memory.
    pub memory: Option<Max>,
    /// `memory.min`; v2 only.
    pub memory_min: Option<u64>,
    /// `memory.low`; v2 only.
    pub memory_low: Option<u64>,
    /// Processes and threads.
    pub pids: Option<Max>,
    /// Bytes of huge pages, by page size.
    pub hugepages: Vec<(u64, u64)>,
    /// CPUs, as a list like `0-3,8`.
    pub cpus: Option<String>,
}

/// A value for a file of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) controller: &'static str,
    pub(super) file: String,
    pub(super) value: String,
    /// Whether the file may be missing although the controller is available.
    pub(super) optional: bool,
}

impl Limits {
    /// The values to write, in the order that the kernel requires.
    pub(super) fn writes(&self, unified: bool) -> Vec<Write> {
        let mut writes = Vec::new();
        let mut write = |controller, file: &str, value: String| {
            writes.push(Write { controller, file: file.to_owned(), value, optional: false });
        };
        let by_version = |v1, v2| if unified { v2 } else { v1 };
        if let Some(shares) = self.shares {
            let value = if unified { weight(shares) } else { shares };
            write("cpu", by_version("cpu.shares", "cpu.weight"), value.to_string());
        }
        match self.cpu {
            Some(CpuMax { quota, period }) if unified => {
                let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                write("cpu", "cpu.max", format!("{quota} {period}"));
            }
            Some(CpuMax { quota, period }) => {
                write("cpu", "cpu.cfs_period_us", period.to_string());
                let quota = quota.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                write("cpu", "cpu.cfs_quota_us", quota);
            }
            None => {}
        }
        if let Some(memory) = self.memory {
            let value = memory.text(by_version("-1", "max"));
            write("memory", by_version("memory.limit_in_bytes", "memory.max"), value);
        }
        for (file, bytes) in [("memory.min", self.memory_min), ("memory.low", self.memory_low)] {
            if let Some(bytes) = bytes.filter(|_| unified) {
                write("memory", file, bytes.to_string());
            }
        }
        if let Some(pids) = self.pids {
            write("pids", "pids.max", pids.at_least_one().text("max"));
        }
        if let Some(cpus) = &self.cpus {
            write("cpuset", "cpuset.cpus", cpus.clone());
        }
        for (size, bytes) in &self.hugepages {
            let suffix = by_version("limit_in_bytes", "max");
            for (infix, optional) in [("", false), ("rsvd.", true)] {
                let file = format!("hugetlb.{}.{infix}{suffix}", hugepages::name(*size));
                let value = bytes.to_string();
                writes.push(Write { controller: "hugetlb", file, value, optional });
            }
        }
        writes
    }

    /// The properties of the systemd slice, which has none for huge pages.
    pub(super) fn properties(&self, unified: bool) -> Vec<(&'static str, Variant<'static>)> {
        let mut properties: Vec<(&'static str, Variant<'static>)> = Vec::new();
        let by_version = |v1, v2| if unified { v2 } else { v1 };
        if let Some(memory) = self.memory {
            properties.push((by_version("MemoryLimit", "MemoryMax"), memory.number().into()));
        }
        if let Some(shares) = self.shares {
            let value = if unified { weight(shares) } else { shares };
            properties.push((by_version("CPUShares", "CPUWeight"), value.into()));
        }
        if let Some(cpu) = self.cpu {
            properties.push(("CPUQuotaPeriodUSec", cpu.period.into()));
            let per_second = cpu.per_second().unwrap_or(INFINITY);
            properties.push(("CPUQuotaPerSecUSec", per_second.into()));
        }
        if let Some(pids) = self.pids {
            properties.push(("TasksMax", pids.at_least_one().number().into()));
        }
        for (name, bytes) in [("MemoryMin", self.memory_min), ("MemoryLow", self.memory_low)] {
            if let Some(bytes) = bytes.filter(|_| unified) {
                properties.push((name, bytes.into()));
            }
        }
        if let Some(bits) = self.cpus.as_deref().and_then(cpu_bits) {
            properties.push(("AllowedCPUs", bits.into()));
        }
        properties
    }

    /// The same with systemd's rounding, so that both write the same values.
    pub(super) fn rounded(self) -> Self {
        Self { cpu: self.cpu.map(CpuMax::rounded), ..self }
    }
}

impl Max {
    fn text(self, unlimited: &str) -> String {
        match self {
            Self::Unlimited => unlimited.to_owned(),
            Self::At(limit) => limit.to_string(),
        }
    }

    /// systemd has no limit of zero tasks.
    fn at_least_one(self) -> Self {
        match self {
            Self::At(0) => Self::At(1),
            other => other,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Unlimited => INFINITY,
            Self::At(limit) => limit,
        }
    }
}

/// A list of CPUs like `0-3,8` as a bit mask for systemd, lowest CPU first.
fn cpu_bits(list: &str) -> Option<Vec<u8>> {
    const MOST: usize = 8192;
    let mut bits = Vec::new();
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MOST {
            return None;
        }
        for cpu in first..=last {
            if bits.len() <= cpu / 8 {
                bits.resize(cpu / 8 + 1, 0u8);
            }
            bits[cpu / 8] |= 1 << (cpu % 8);
        }
    }
    (!bits.is_empty()).then_some(bits)
}

#[cfg(test)]
mod tests;
