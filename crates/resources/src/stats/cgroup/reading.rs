//! Parses the files of a cgroup.

use std::io;

use k8s_openapi::jiff::Timestamp;
use rustix::fs::CWD;

use super::files::{Reader, pairs};
use super::group::File;
use super::types::{
    Cpu, Detail, DeviceIo, Limits, MemoryUse, OPERATIONS, Pressure, Reading, Stalls, Tasks,
    Throttling,
};
use super::{Cgroup, Controller};

/// Limits from here on are unlimited: v1 has no other value for it, and rounds it to pages.
const UNLIMITED: u64 = 1 << 62;
/// Nanoseconds in a tick of v1's user and system times (`USER_HZ` is 100 wherever Linux runs).
const TICK: u64 = 10_000_000;

impl Cgroup {
    /// Reads the stats at that detail.
    pub(in crate::stats) fn read(&self, detail: Detail, reader: &mut Reader) -> Reading {
        let mut reading = Reading {
            at: Timestamp::now(),
            cpu: self.cpu(reader).ok(),
            memory: self.memory(reader, detail >= Detail::Everything).ok(),
            ..Reading::default()
        };
        if detail >= Detail::Load {
            reading.pressure = self.pressure(reader);
        }
        if detail >= Detail::Everything {
            reading.tasks = self.tasks(reader);
            reading.limits = self.limits(reader);
            reading.io = self.io(reader);
            reading.oom_kills = self.oom_kills(reader);
            if let Some(cpu) = &mut reading.cpu {
                self.split_times(reader, cpu);
            }
        }
        reading
    }

    /// CPU time. On v1, user and system times are in other files: [`Self::split_times`].
    pub(in crate::stats) fn cpu(&self, reader: &mut Reader) -> io::Result<Cpu> {
        let file = self.cpu_file();
        match self.is_unified() {
            true => Ok(cpu_v2(reader.single_read(&file)?)),
            false => Ok(Cpu { total: reader.number(&file)?, ..Cpu::default() }),
        }
    }

    /// The file of CPU time.
    pub(super) fn cpu_file(&self) -> File<'_> {
        match self.is_unified() {
            true => self.file(Controller::Cpu, "cpu.stat"),
            false => self.file(Controller::CpuAcct, "cpuacct.usage"),
        }
    }

    fn split_times(&self, reader: &mut Reader, cpu: &mut Cpu) {
        if self.is_unified() {
            return;
        }
        let parts = reader.single_read(&self.file(Controller::CpuAcct, "cpuacct.stat"));
        for (key, ticks) in pairs(parts.unwrap_or_default()) {
            match key {
                "user" => cpu.user = ticks.saturating_mul(TICK),
                "system" => cpu.system = ticks.saturating_mul(TICK),
                _ => {}
            }
        }
        let quota = reader.single_read(&self.file(Controller::Cpu, "cpu.stat"));
        for (key, value) in pairs(quota.unwrap_or_default()) {
            throttle(&mut cpu.throttling, key, value, value);
        }
    }

    /// Memory; with `all`, also values that need more files.
    pub(in crate::stats) fn memory(&self, reader: &mut Reader, all: bool) -> io::Result<MemoryUse> {
        let file = |name| self.file(Controller::Memory, name);
        let usage = match self.is_unified() && self.is_root() {
            true => None,
            false => Some(self.memory_usage(reader)?),
        };
        let mut memory = self.memory_in_use(usage, reader)?;
        let limit = |limit: io::Result<u64>| limit.ok().filter(|limit| *limit < UNLIMITED);
        match (self.is_unified(), self.is_root()) {
            (true, true) => {}
            (true, false) => {
                memory.memory.limit = limit(reader.number(&file("memory.max"))); // "max" is none
                memory.swap_limit = limit(reader.number(&file("memory.swap.max")));
            }
            (false, _) => {
                memory.memory.limit = limit(reader.number(&file("memory.limit_in_bytes")));
            }
        }
        if all && self.is_unified() {
            memory.peak = reader.number(&file("memory.peak")).ok();
            memory.reserved = reader.number(&file("memory.min")).unwrap_or(0);
        } else if all {
            memory.peak = reader.number(&file("memory.max_usage_in_bytes")).ok();
            memory.failures = reader.number(&file("memory.failcnt")).unwrap_or(0);
            memory.kernel = reader.number(&file("memory.kmem.usage_in_bytes")).ok();
            let soft = limit(reader.number(&file("memory.soft_limit_in_bytes")));
            memory.reserved = soft.unwrap_or(0);
            // One limit for both.
            let both = limit(reader.number(&file("memory.memsw.limit_in_bytes")));
            memory.swap_limit = both.and_then(|both| both.checked_sub(memory.memory.limit?));
        }
        Ok(memory)
    }

    /// Memory usage in bytes, including the page cache.
    pub(in crate::stats) fn memory_usage(&self, reader: &mut Reader) -> io::Result<u64> {
        reader.number(&self.memory_file())
    }

    /// The values that change while processes are idle, as the kernel reclaims memory. `usage` is
    /// not available for the root of v2.
    pub(in crate::stats) fn memory_in_use(
        &self,
        usage: Option<u64>,
        reader: &mut Reader,
    ) -> io::Result<MemoryUse> {
        let file = |name| self.file(Controller::Memory, name);
        let text = reader.single_read(&file("memory.stat"))?;
        let mut memory = match self.is_unified() {
            true => stat_v2(text),
            false => stat_v1(text),
        };
        if self.is_unified() && !self.is_root() {
            memory.swap = reader.number(&file("memory.swap.current")).ok();
        }
        // As v1's root.
        let both = memory.memory.rss.saturating_add(memory.cache);
        memory.memory.usage = usage.unwrap_or(both);
        let inactive = memory.inactive_file;
        memory.memory.working_set = memory.memory.usage.saturating_sub(inactive);
        Ok(memory)
    }

    /// The file of memory usage. The root of v2 has none.
    pub(super) fn memory_file(&self) -> File<'_> {
        let name = if self.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        self.file(Controller::Memory, name)
    }

    pub(super) fn tasks(&self, reader: &mut Reader) -> Option<Tasks> {
        let file = |name| self.file(Controller::Pids, name);
        let current = reader.number(&file("pids.current")).ok()?;
        Some(Tasks { current, max: reader.number(&file("pids.max")).ok() })
    }

    /// Pressure stall information.
    pub(in crate::stats) fn pressure(&self, reader: &mut Reader) -> Pressure {
        let mut of = |resource: &str| {
            let text = match (self.is_unified(), self.is_root()) {
                (true, _) => {
                    let name = format!("{resource}.pressure");
                    reader.single_read(&self.file(Controller::Memory, &name))
                }
                // v1 has it for the machine only
                (false, true) => reader.text(CWD, &format!("/proc/pressure/{resource}")),
                (false, false) => return None,
            };
            stalls(text.ok()?)
        };
        Pressure { cpu: of("cpu"), memory: of("memory"), io: of("io") }
    }

    /// I/O by device.
    pub(in crate::stats) fn io(&self, reader: &mut Reader) -> Vec<DeviceIo> {
        let mut found = Vec::new();
        let file = |name| self.file(Controller::BlkIo, name);
        if self.is_unified() {
            io_v2(reader.single_read(&file("io.stat")).unwrap_or_default(), &mut found);
            return found;
        }
        let mut add = |name: &'static str, of: fn(&mut DeviceIo) -> &mut [Option<u64>; 6]| {
            io_v1(reader.single_read(&file(name)).unwrap_or_default(), &mut found, of);
        };
        add("blkio.throttle.io_service_bytes_recursive", |io| &mut io.bytes);
        add("blkio.throttle.io_serviced_recursive", |io| &mut io.requests);
        found
    }

    fn limits(&self, reader: &mut Reader) -> Limits {
        let file = |name| self.file(Controller::Cpu, name);
        if !self.is_unified() {
            return Limits {
                // -1 is none
                quota: reader.number(&file("cpu.cfs_quota_us")).ok(),
                period: reader.number(&file("cpu.cfs_period_us")).ok(),
                shares: reader.number(&file("cpu.shares")).ok(),
            };
        }
        let max = reader.single_read(&file("cpu.max")).unwrap_or_default();
        let (quota, period) = max.trim().split_once(' ').unwrap_or_default();
        let (quota, period) = (quota.parse().ok(), period.parse().ok());
        let weight = reader.number(&file("cpu.weight")).ok();
        // The scale from 1 to 10000 upon that from 2 to 262144.
        let scaled = |weight: u64| weight.saturating_sub(1).saturating_mul(262_142) / 9_999;
        let shares = weight.map(|weight| scaled(weight).saturating_add(2));
        Limits { quota, period, shares }
    }

    fn oom_kills(&self, reader: &mut Reader) -> Option<u64> {
        let name = if self.is_unified() { "memory.events" } else { "memory.oom_control" };
        let text = reader.single_read(&self.file(Controller::Memory, name)).ok()?;
        pairs(text).find(|(key, _)| *key == "oom_kill").map(|(_, count)| count)
    }
}

/// Lines of `cpu.stat` about throttling; times in nanoseconds.
fn throttle(throttling: &mut Option<Throttling>, key: &str, value: u64, nanoseconds: u64) {
    let known = throttling.get_or_insert_default();
    match key {
        "nr_periods" => known.periods = value,
        "nr_throttled" => known.throttled = value,
        "throttled_usec" | "throttled_time" => known.throttled_time = nanoseconds,
        "nr_bursts" => known.bursts = value,
        "burst_usec" | "burst_time" => known.burst_time = nanoseconds,
        _ => {}
    }
}

/// `cpu.stat` of v2.
pub(super) fn cpu_v2(text: &str) -> Cpu {
    let (mut cpu, mut throttling) = (Cpu::default(), None);
    for (key, value) in pairs(text) {
        let nanoseconds = value.saturating_mul(1000);
        match key {
            "usage_usec" => cpu.total = nanoseconds,
            "user_usec" => cpu.user = nanoseconds,
            "system_usec" => cpu.system = nanoseconds,
            _ => throttle(&mut throttling, key, value, nanoseconds),
        }
    }
    Cpu { throttling, ..cpu }
}

fn stat_v2(text: &str) -> MemoryUse {
    let mut memory = MemoryUse::default();
    for (key, value) in pairs(text) {
        match key {
            "anon" => memory.memory.rss = value,
            "file" => memory.cache = value,
            "file_mapped" => memory.mapped_file = value,
            "active_file" => memory.active_file = value,
            "inactive_file" => memory.inactive_file = value,
            "kernel" => memory.kernel = Some(value),
            "pgfault" => memory.faults.minor = value,
            "pgmajfault" => memory.faults.major = value,
            _ => {}
        }
    }
    // v2 always includes descendants.
    memory.own_faults = memory.faults;
    memory
}

fn stat_v1(text: &str) -> MemoryUse {
    let mut memory = MemoryUse::default();
    for (key, value) in pairs(text) {
        match key {
            "pgfault" => memory.own_faults.minor = value,
            "pgmajfault" => memory.own_faults.major = value,
            "total_rss" => memory.memory.rss = value,
            "total_cache" => memory.cache = value,
            "total_mapped_file" => memory.mapped_file = value,
            "total_active_file" => memory.active_file = value,
            "total_inactive_file" => memory.inactive_file = value,
            "total_swap" => memory.swap = Some(value),
            "total_pgfault" => memory.faults.minor = value,
            "total_pgmajfault" => memory.faults.major = value,
            _ => {}
        }
    }
    memory
}

/// The two lines of a file about pressure; `full` may be missing.
fn stalls(text: &str) -> Option<Stalls> {
    let mut stalls = Stalls::default();
    for line in text.lines() {
        let (kind, rest) = line.split_once(' ')?;
        let stall = match kind {
            "some" => &mut stalls.some,
            _ => &mut stalls.full,
        };
        for word in rest.split(' ') {
            match word.split_once('=') {
                Some(("avg10", value)) => stall.avg10 = value.parse().ok()?,
                Some(("avg60", value)) => stall.avg60 = value.parse().ok()?,
                Some(("avg300", value)) => stall.avg300 = value.parse().ok()?,
                Some(("total", value)) => stall.total = value.parse().ok()?,
                _ => {}
            }
        }
    }
    Some(stalls)
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`.
fn io_v2(text: &str, found: &mut Vec<DeviceIo>) {
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some(device) = words.next().and_then(device) else { continue };
        let mut io = DeviceIo { device, ..DeviceIo::default() };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().ok();
            match key {
                "dbytes" => io.bytes[1] = value,
                "rbytes" => io.bytes[2] = value,
                "wbytes" => io.bytes[5] = value,
                "dios" => io.requests[1] = value,
                "rios" => io.requests[2] = value,
                "wios" => io.requests[5] = value,
                _ => {}
            }
        }
        found.push(io);
    }
}

/// Lines such as `8:0 Read 123`, and a last one with the sum of all.
fn io_v1(
    text: &str,
    found: &mut Vec<DeviceIo>,
    of: impl Fn(&mut DeviceIo) -> &mut [Option<u64>; 6],
) {
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some(device) = words.next().and_then(device) else { continue };
        let (Some(operation), Some(value)) = (words.next(), words.next()) else { continue };
        let Some(slot) = OPERATIONS.iter().position(|name| *name == operation) else { continue };
        let index = match found.iter().position(|io| io.device == device) {
            Some(index) => index,
            None => {
                found.push(DeviceIo { device, ..DeviceIo::default() });
                found.len() - 1
            }
        };
        of(&mut found[index])[slot] = value.parse().ok();
    }
}
