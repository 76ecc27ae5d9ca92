//! Pods of the summary as the runtime reports them (gate PodAndContainerStatsFromCRI). What the runtime
//! does not report of a container is zero, as upstream has it; of a pod it is omitted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::{
    CpuUsage, IoUsage, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PsiData as CriPsiData,
    PsiStats as CriPsiStats, SwapUsage, UInt64Value,
};
use longshore_resources::stats::{RuntimeContainer, RuntimePod, runtime_time};

use super::types::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PodStats,
    ProcessStats, PsiData, PsiStats, SwapStats, Usage,
};
use super::{Measured, reference};

pub(super) fn of_pod(pod: &RuntimePod) -> Measured<'_> {
    let stats = &pod.stats;
    let containers: Vec<ContainerStats> = pod.containers.iter().map(of_container).collect();
    let usage = Usage {
        cpu: stats.cpu.as_ref().map(cpu),
        memory: stats.memory.as_ref().map(memory),
        io: stats.io.as_ref().map(io),
        swap: sum_of_swap(&containers),
    };
    let processes = stats.process.and_then(|process| value(process.process_count));
    let stats = PodStats {
        pod_ref: reference(&pod.pod),
        start_time: Time(pod.created_at),
        containers,
        usage,
        network: stats.network.as_ref().map(network),
        volumes: Vec::new(),
        ephemeral_storage: None,
        process_stats: processes.map(|process_count| ProcessStats { process_count }),
    };
    Measured { stats, ids: pod.containers.iter().map(|container| container.id.as_str()).collect() }
}

fn of_container(container: &RuntimeContainer) -> ContainerStats {
    let stats = &container.stats;
    let now = || Time(Timestamp::now());
    let zero = Some(0);
    let usage = Usage {
        cpu: Some(stats.cpu.as_ref().map(cpu).unwrap_or_else(|| CpuStats {
            time: now(),
            usage_nano_cores: zero,
            usage_core_nano_seconds: zero,
            psi: None,
        })),
        memory: Some(stats.memory.as_ref().map(memory).unwrap_or_else(|| MemoryStats {
            time: now(),
            available_bytes: None,
            usage_bytes: zero,
            working_set_bytes: zero,
            rss_bytes: zero,
            page_faults: None,
            major_page_faults: None,
            psi: None,
        })),
        io: Some(stats.io.as_ref().map(io).unwrap_or_else(|| IoStats { time: now(), psi: None })),
        swap: Some(stats.swap.as_ref().map(swap).unwrap_or_else(|| SwapStats {
            time: now(),
            swap_available_bytes: zero,
            swap_usage_bytes: zero,
        })),
    };
    ContainerStats {
        name: container.name.clone(),
        start_time: Time(container.created_at),
        usage,
        rootfs: None,
        logs: None,
    }
}

fn time(nanoseconds: i64) -> Time {
    Time(runtime_time(nanoseconds))
}

fn value(value: Option<UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

fn cpu(cpu: &CpuUsage) -> CpuStats {
    CpuStats {
        time: time(cpu.timestamp),
        usage_nano_cores: value(cpu.usage_nano_cores),
        usage_core_nano_seconds: value(cpu.usage_core_nano_seconds),
        psi: cpu.psi.as_ref().map(psi),
    }
}

fn memory(memory: &MemoryUsage) -> MemoryStats {
    MemoryStats {
        time: time(memory.timestamp),
        available_bytes: value(memory.available_bytes),
        usage_bytes: value(memory.usage_bytes),
        working_set_bytes: value(memory.working_set_bytes),
        rss_bytes: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: memory.psi.as_ref().map(psi),
    }
}

fn io(io: &IoUsage) -> IoStats {
    IoStats { time: time(io.timestamp), psi: io.psi.as_ref().map(psi) }
}

fn swap(swap: &SwapUsage) -> SwapStats {
    SwapStats {
        time: time(swap.timestamp),
        swap_available_bytes: value(swap.swap_available_bytes),
        swap_usage_bytes: value(swap.swap_usage_bytes),
    }
}

/// The runtime does not report a pod's swap.
fn sum_of_swap(containers: &[ContainerStats]) -> Option<SwapStats> {
    let swap = || containers.iter().filter_map(|container| container.usage.swap.as_ref());
    let sum = |of: fn(&SwapStats) -> Option<u64>| {
        Some(swap().filter_map(of).fold(0, u64::saturating_add))
    };
    Some(SwapStats {
        time: Time(swap().map(|swap| swap.time.0).max()?),
        swap_available_bytes: sum(|swap| swap.swap_available_bytes),
        swap_usage_bytes: sum(|swap| swap.swap_usage_bytes),
    })
}

fn psi(stats: &CriPsiStats) -> PsiStats {
    let data = |data: Option<CriPsiData>| {
        let CriPsiData { total, avg10, avg60, avg300 } = data.unwrap_or_default();
        PsiData { total, avg10, avg60, avg300 }
    };
    PsiStats { full: data(stats.full), some: data(stats.some) }
}

fn network(network: &NetworkUsage) -> NetworkStats {
    let one = |interface: &NetworkInterfaceUsage| InterfaceStats {
        name: interface.name.clone(),
        rx_bytes: value(interface.rx_bytes),
        rx_errors: value(interface.rx_errors),
        tx_bytes: value(interface.tx_bytes),
        tx_errors: value(interface.tx_errors),
    };
    NetworkStats {
        time: time(network.timestamp),
        default: network.default_interface.as_ref().map(one).unwrap_or_default(),
        interfaces: network.interfaces.iter().map(one).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use longshore_cri::v1::{ContainerStats as CriContainer, LinuxPodSandboxStats, ProcessUsage};
    use longshore_resources::stats::fixture;
    use serde_json::{Value, json};

    use super::*;
    use crate::stats::summary::Storage;

    const AT: i64 = fixture::AT * 1_000_000_000;

    fn amount(value: u64) -> Option<UInt64Value> {
        Some(UInt64Value { value })
    }

    fn summary_of(stats: LinuxPodSandboxStats, containers: Vec<CriContainer>) -> Value {
        let known = fixture::pod("a", "1", fixture::AT, vec![]);
        let containers = containers.into_iter().enumerate().map(|(at, stats)| RuntimeContainer {
            id: format!("c{at}"),
            name: format!("n{at}"),
            created_at: runtime_time(AT),
            stats,
        });
        let pod = RuntimePod {
            pod: Arc::clone(&known.pod),
            created_at: runtime_time(AT),
            stats,
            containers: containers.collect(),
        };
        let storage = Storage { disks: HashMap::new(), ..Storage::default() };
        serde_json::to_value(of_pod(&pod).with_storage(&storage)).unwrap()
    }

    #[test]
    fn summary_of_the_runtime_has_what_it_reports() {
        let psi = CriPsiStats {
            full: Some(CriPsiData { total: 7, avg10: 1.5, avg60: 0.5, avg300: 0.1 }),
            some: None,
        };
        let cpu = CpuUsage {
            timestamp: AT,
            usage_core_nano_seconds: amount(5),
            usage_nano_cores: None,
            psi: Some(psi),
        };
        let memory =
            MemoryUsage { timestamp: AT, working_set_bytes: amount(6), ..MemoryUsage::default() };
        let interface = NetworkInterfaceUsage {
            name: "eth0".to_owned(),
            rx_bytes: amount(1),
            ..NetworkInterfaceUsage::default()
        };
        let swap = |used| SwapUsage {
            timestamp: AT,
            swap_available_bytes: None,
            swap_usage_bytes: amount(used),
        };
        let stats = LinuxPodSandboxStats {
            cpu: Some(cpu),
            memory: Some(memory),
            network: Some(NetworkUsage {
                timestamp: AT,
                default_interface: Some(interface.clone()),
                interfaces: vec![interface],
            }),
            process: Some(ProcessUsage { timestamp: AT, process_count: amount(3) }),
            ..LinuxPodSandboxStats::default()
        };
        let container = |used| CriContainer {
            cpu: Some(cpu),
            swap: Some(swap(used)),
            ..CriContainer::default()
        };
        let found = summary_of(stats, vec![container(1), container(u64::MAX)]);
        let now = "2023-11-14T22:13:20Z";
        let none = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
        let full = json!({"total": 7, "avg10": 1.5, "avg60": 0.5, "avg300": 0.1});
        let cpu = json!({
            "time": now, "usageCoreNanoSeconds": 5, "psi": {"full": full, "some": none},
        });
        assert_eq!((&found["cpu"], &found["containers"][0]["cpu"]), (&cpu, &cpu));
        assert_eq!(found["memory"], json!({"time": now, "workingSetBytes": 6}));
        assert_eq!(found["network"]["rxBytes"], 1);
        assert_eq!(found["network"]["interfaces"], json!([{"name": "eth0", "rxBytes": 1}]));
        assert_eq!(found["process_stats"], json!({"process_count": 3}));
        assert_eq!(found["swap"]["swapUsageBytes"], u64::MAX, "the sum has a limit");
        assert_eq!(found["containers"][1]["name"], "n1");
        assert!(found.get("io").is_none());
    }

    #[test]
    fn summary_of_the_runtime_omits_unknown_values() {
        let found = summary_of(LinuxPodSandboxStats::default(), vec![CriContainer::default()]);
        for key in ["cpu", "memory", "io", "network", "process_stats"] {
            assert!(found.get(key).is_none(), "{key}");
        }
        let container = &found["containers"][0];
        assert_eq!(container["cpu"]["usageCoreNanoSeconds"], 0);
        assert_eq!(container["memory"]["workingSetBytes"], 0);
        assert_eq!(container["swap"]["swapUsageBytes"], 0);
        let found = summary_of(LinuxPodSandboxStats::default(), vec![]);
        assert!(found.get("swap").is_none());
    }
}
