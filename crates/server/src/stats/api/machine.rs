//! Machine info, in the format of cAdvisor.

use std::collections::BTreeMap;

use crate::stats::facts::Facts;
use longshore_resources::stats::Devices;
use serde_json::{Value, json};

pub(super) fn machine(facts: &Facts, devices: &Devices) -> Value {
    let machine = &facts.machine;
    let (cores, sockets) = facts.cores_and_sockets();
    let pages = |pages: &[(u64, u64)]| {
        let one =
            |(size, count): &(u64, u64)| json!({"page_size": size / 1024, "num_pages": count});
        pages.iter().map(one).collect::<Vec<_>>()
    };
    let file_systems = devices.file_systems.iter().map(|(device, disk)| {
        json!({
            "device": device,
            "type": "vfs",
            "capacity": disk.space.capacity,
            "inodes": disk.space.inodes,
            "has_inodes": disk.space.inodes > 0,
        })
    });
    let disks = devices.names.iter().map(|((major, minor), device)| {
        let name = device.trim_start_matches("/dev/");
        let disk = json!({
            "name": name,
            "major": major,
            "minor": minor,
            "size": number(&format!("/sys/dev/block/{major}:{minor}/size")).saturating_mul(512),
            "scheduler": scheduler(name),
        });
        (format!("{major}:{minor}"), disk)
    });
    let topology = facts.topology.nodes.iter().map(|node| {
        let mut cores = BTreeMap::<u32, Vec<u32>>::new();
        let cpus = &facts.topology.cpus;
        for cpu in cpus.all().iter() {
            if let Some(info) = cpus.info(cpu).filter(|info| info.numa == node.id) {
                cores.entry(info.core).or_default().push(cpu);
            }
        }
        let cores = cores.iter();
        let cores = cores.map(|(core, threads)| json!({"core_id": core, "thread_ids": threads}));
        json!({
            "node_id": node.id,
            "memory": node.memory,
            "hugepages": pages(&node.huge_pages),
            "cores": cores.collect::<Vec<_>>(),
        })
    });
    json!({
        "num_cores": machine.cpus,
        "num_physical_cores": cores,
        "num_sockets": sockets,
        "cpu_frequency_khz": frequency(),
        "memory_capacity": machine.memory,
        "swap_capacity": machine.swap,
        "hugepages": pages(&machine.hugepages),
        "machine_id": machine.machine_id,
        "system_uuid": machine.system_uuid,
        "boot_id": machine.boot_id,
        "filesystems": file_systems.collect::<Vec<_>>(),
        "disk_map": disks.collect::<serde_json::Map<_, _>>(),
        "network_devices": network_devices(),
        "topology": topology.collect::<Vec<_>>(),
        "cloud_provider": "Unknown",
        "instance_type": "Unknown",
        "instance_id": "None",
    })
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &str) -> u64 {
    text(path).parse().unwrap_or(0)
}

/// The selected one of a list such as `none [mq-deadline]`.
fn scheduler(disk: &str) -> String {
    let known = text(&format!("/sys/block/{disk}/queue/scheduler"));
    let chosen = known.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or("none", |(chosen, _)| chosen).to_owned()
}

/// The maximum CPU frequency in kHz; 0 if unknown.
fn frequency() -> u64 {
    match number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") {
        0 => {
            let info = text("/proc/cpuinfo");
            let line = info.lines().find(|line| line.starts_with("cpu MHz"));
            let megahertz =
                line.and_then(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
            (megahertz.unwrap_or(0.0) * 1000.0) as u64
        }
        known => known,
    }
}

/// Physical network devices, without those of pods.
fn network_devices() -> Vec<Value> {
    const OTHERS: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| !OTHERS.iter().any(|other| name.starts_with(other))).collect();
    names.sort_unstable();
    let device = |name: &String| {
        let of = |file: &str| text(&format!("/sys/class/net/{name}/{file}"));
        json!({
            "name": name,
            "mac_address": of("address"),
            "speed": of("speed").parse::<i64>().unwrap_or(0),
            "mtu": of("mtu").parse::<i64>().unwrap_or(0),
        })
    };
    names.iter().map(device).collect()
}
