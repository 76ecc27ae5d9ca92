//! Converts stats to the types of the summary.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use longshore_machine::FileSystem;
use longshore_pod::usage::Space;
use longshore_resources::stats::{Group, Interface, Stall, Stalls};

use super::types::{
    CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PsiData, PsiStats,
    SwapStats, Usage,
};

/// The default network interface of pods.
const DEFAULT_INTERFACE: &str = "eth0";

/// Usage of a cgroup. CPU and memory have pressure stall information also where there is none, as on cgroup v1:
/// it is zero then, as upstream has it.
pub(super) fn usage(group: &Group) -> Usage {
    let reading = &group.reading;
    let time = || Time(reading.at);
    let cpu = reading.cpu.map(|cpu| CpuStats {
        time: time(),
        usage_nano_cores: group.nano_cores,
        usage_core_nano_seconds: Some(cpu.total),
        psi: Some(psi(reading.pressure.cpu.unwrap_or_default())),
    });
    let memory = reading.memory.map(|memory| MemoryStats {
        time: time(),
        available_bytes: memory.memory.available(),
        usage_bytes: Some(memory.memory.usage),
        working_set_bytes: Some(memory.memory.working_set),
        rss_bytes: Some(memory.memory.rss),
        page_faults: Some(memory.own_faults.minor),
        major_page_faults: Some(memory.own_faults.major),
        psi: Some(psi(reading.pressure.memory.unwrap_or_default())),
    });
    let swap = reading.memory.map(|memory| SwapStats {
        time: time(),
        swap_available_bytes: memory
            .swap_limit
            .map(|limit| limit.saturating_sub(memory.swap.unwrap_or(0))),
        swap_usage_bytes: Some(memory.swap.unwrap_or(0)),
    });
    let io = reading.pressure.io.map(|stalls| IoStats { time: time(), psi: Some(psi(stalls)) });
    Usage { cpu, memory, io, swap }
}

fn psi(stalls: Stalls) -> PsiStats {
    let data = |stall: Stall| PsiData {
        total: stall.total,
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    PsiStats { full: data(stalls.full), some: data(stalls.some) }
}

pub(super) fn network(group: &Group) -> NetworkStats {
    let one = |interface: &Interface| InterfaceStats {
        name: interface.name.clone(),
        rx_bytes: Some(interface.received.bytes),
        rx_errors: Some(interface.received.errors),
        tx_bytes: Some(interface.sent.bytes),
        tx_errors: Some(interface.sent.errors),
    };
    let interfaces: Vec<InterfaceStats> = group.network.iter().map(one).collect();
    let default = interfaces.iter().find(|interface| interface.name == DEFAULT_INTERFACE);
    NetworkStats {
        time: Time(group.reading.at),
        default: default.cloned().unwrap_or_default(),
        interfaces,
    }
}

/// Stats of a part of a file system.
pub(super) fn file_system(on: &FileSystem, used: Option<Space>, at: Timestamp) -> FsStats {
    FsStats {
        time: Time(at),
        available_bytes: Some(on.available),
        capacity_bytes: Some(on.capacity),
        used_bytes: used.map(|used| used.bytes),
        inodes_free: Some(on.inodes_free),
        inodes: Some(on.inodes),
        inodes_used: used.map(|used| used.inodes),
    }
}

/// Stats of a whole file system.
pub(super) fn whole(on: &FileSystem, at: Timestamp) -> FsStats {
    let inodes = on.inodes.saturating_sub(on.inodes_free);
    file_system(on, Some(Space { bytes: on.used, inodes }), at)
}

/// The used space, if known.
pub(super) fn used(stats: &FsStats) -> Space {
    let (bytes, inodes) = (stats.used_bytes.unwrap_or(0), stats.inodes_used.unwrap_or(0));
    Space { bytes, inodes }
}
