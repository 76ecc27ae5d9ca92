//! Container info, in the format of cAdvisor.

use k8s_openapi::jiff::Timestamp;
use longshore_resources::stats::{
    DeviceIo, Faults, Group, Interface, MemoryUse, OPERATIONS, PodGroup, Reading, Snapshot,
};
use serde_json::{Value, json};

/// The namespace of the runtime's containers.
const NAMESPACE: &str = "containerd";
/// No limit.
const UNLIMITED: u64 = u64::MAX;

/// A cgroup and its metadata.
pub(super) struct Entry<'a> {
    pub(super) group: &'a Group,
    /// Its container or sandbox.
    pub(super) run: Option<Run<'a>>,
    pod: Option<&'a PodGroup>,
    created: Option<Timestamp>,
}

/// A container or sandbox.
pub(super) struct Run<'a> {
    pub(super) id: &'a str,
    /// Empty for a sandbox.
    name: &'a str,
    image: &'a str,
}

/// All cgroups, the root first.
pub(super) fn entries<'a>(snapshot: &'a Snapshot, sandbox_image: &'a str) -> Vec<Entry<'a>> {
    let plain = |group: &'a Group| Entry { group, run: None, pod: None, created: group.created };
    let mut entries = vec![plain(&snapshot.node)];
    entries.extend(snapshot.levels.iter().map(plain));
    entries.extend(snapshot.system.iter().map(|(_, group)| plain(group)));
    for pod in &snapshot.pods {
        let made = |at: Timestamp, group: &'a Group, run| Entry {
            group,
            run: Some(run),
            pod: Some(pod),
            created: Some(at),
        };
        entries.extend(pod.own.iter().map(|own| Entry { pod: Some(pod), ..plain(own) }));
        entries.extend(pod.sandboxes.iter().filter_map(|run| {
            let sandbox = pod.sandbox(run)?;
            let known = Run { id: &sandbox.id, name: "", image: sandbox_image };
            Some(made(sandbox.created_at, &run.group, known))
        }));
        entries.extend(pod.containers.iter().filter_map(|run| {
            let container = pod.container(run)?;
            let (id, name, image) = (&container.id, &container.name, &container.image);
            Some(made(container.created_at, &run.group, Run { id, name, image }))
        }));
    }
    entries
}

impl Entry<'_> {
    pub(super) fn is(&self, path: &str) -> bool {
        self.group.path == path
    }

    /// Whether it is a descendant of the cgroup of that path.
    pub(super) fn is_below(&self, path: &str) -> bool {
        let rest = self.group.path.strip_prefix(path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    }

    fn is_right_below(&self, path: &str) -> bool {
        self.is_below(path)
            && !self.group.path[path.trim_end_matches('/').len() + 1..].contains('/')
    }

    pub(super) fn info(&self, snapshot: &Snapshot, all: &[Entry<'_>]) -> Value {
        let path = &self.group.path;
        let below = all.iter().filter(|other| other.is_right_below(path));
        let below: Vec<Value> = below.map(|other| json!({"name": other.group.path})).collect();
        let mut info = json!({
            "name": path,
            "subcontainers": below,
            "spec": self.spec(snapshot),
            "stats": [stats(self.group, snapshot)],
        });
        if let Some(run) = &self.run {
            info["id"] = json!(run.id);
            info["aliases"] = json!([run.id]);
            info["namespace"] = json!(NAMESPACE);
        }
        info
    }

    fn spec(&self, snapshot: &Snapshot) -> Value {
        let Reading { cpu, memory, limits, tasks, .. } = &self.group.reading;
        let is_node = self.group.path == "/";
        let limit = |limit: Option<u64>| limit.unwrap_or(UNLIMITED);
        let memory_limit = match is_node {
            true => snapshot.machine.memory.limit,
            false => memory.and_then(|memory| memory.memory.limit),
        };
        let mut spec = json!({
            "creation_time": self.created.unwrap_or_default().to_string(),
            "has_cpu": cpu.is_some(),
            "cpu": {
                "limit": limits.shares.unwrap_or(0),
                "max_limit": 0,
                "quota": limits.quota.unwrap_or(0),
                "period": limits.period.unwrap_or(0),
            },
            "has_memory": memory.is_some(),
            "memory": {
                "limit": limit(memory_limit),
                "reservation": memory.map_or(0, |memory| memory.reserved),
                "swap_limit": limit(memory.and_then(|memory| memory.swap_limit)),
            },
            "has_hugetlb": false,
            "has_network": !self.group.network.is_empty(),
            "has_processes": tasks.is_some(),
            "processes": {"limit": tasks.and_then(|tasks| tasks.max).unwrap_or(0)},
            "has_filesystem": is_node,
            "has_diskio": true,
            "has_custom_metrics": false,
        });
        if let (Some(run), Some(pod)) = (&self.run, self.pod) {
            let mut labels = json!({
                "io.kubernetes.pod.name": pod.pod.name,
                "io.kubernetes.pod.namespace": pod.pod.namespace,
                "io.kubernetes.pod.uid": pod.pod.uid,
            });
            if !run.name.is_empty() {
                labels["io.kubernetes.container.name"] = json!(run.name);
            }
            spec["labels"] = labels;
            spec["image"] = json!(run.image);
        }
        spec
    }
}

fn stats(group: &Group, snapshot: &Snapshot) -> Value {
    let reading = &group.reading;
    let mut stats = json!({
        "timestamp": reading.at.to_string(),
        "diskio": disk_io(&reading.io, snapshot),
        "network": network(&group.network),
        "processes": {
            "process_count": group.processes.count,
            "fd_count": group.processes.open.map_or(0, |open| open.files),
            "socket_count": group.processes.open.map_or(0, |open| open.sockets),
            "threads_current": reading.tasks.map_or(0, |tasks| tasks.current),
            "threads_max": reading.tasks.and_then(|tasks| tasks.max).unwrap_or(0),
        },
        "task_stats": {
            "nr_sleeping": 0, "nr_running": 0, "nr_stopped": 0, "nr_uninterruptible": 0,
            "nr_io_wait": 0,
        },
        "oom_events": reading.oom_kills.unwrap_or(0),
    });
    if let Some(cpu) = reading.cpu {
        let quota = cpu.throttling.unwrap_or_default();
        stats["cpu"] = json!({
            "usage": {"total": cpu.total, "user": cpu.user, "system": cpu.system},
            "cfs": {
                "periods": quota.periods,
                "throttled_periods": quota.throttled,
                "throttled_time": quota.throttled_time,
            },
            "load_average": 0,
        });
    }
    if let Some(memory) = &reading.memory {
        stats["memory"] = memory_stats(memory);
    }
    if group.path == "/" {
        let disks = snapshot.devices.file_systems.iter();
        stats["filesystem"] = disks
            .map(|(device, disk)| {
                json!({
                    "device": device,
                    "type": disk.kind,
                    "capacity": disk.space.capacity,
                    "usage": disk.space.used,
                    "available": disk.space.available,
                    "has_inodes": disk.space.inodes > 0,
                    "inodes": disk.space.inodes,
                    "inodes_free": disk.space.inodes_free,
                })
            })
            .collect();
    }
    stats
}

fn memory_stats(memory: &MemoryUse) -> Value {
    let faults = |faults: Faults| json!({"pgfault": faults.minor, "pgmajfault": faults.major});
    json!({
        "usage": memory.memory.usage,
        "max_usage": memory.peak.unwrap_or(0),
        "cache": memory.cache,
        "rss": memory.memory.rss,
        "swap": memory.swap.unwrap_or(0),
        "mapped_file": memory.mapped_file,
        "working_set": memory.memory.working_set,
        "total_active_file": memory.active_file,
        "total_inactive_file": memory.inactive_file,
        "kernel": memory.kernel.unwrap_or(0),
        "failcnt": memory.failures,
        "container_data": faults(memory.own_faults),
        "hierarchical_data": faults(memory.faults),
    })
}

fn disk_io(devices: &[DeviceIo], snapshot: &Snapshot) -> Value {
    let by = |of: fn(&DeviceIo) -> &[Option<u64>; 6]| {
        let one = |io: &DeviceIo| {
            let counts = OPERATIONS.iter().zip(of(io));
            let counts =
                counts.filter_map(|(name, count)| Some(((*name).to_owned(), json!((*count)?))));
            json!({
                "device": snapshot.devices.name(io.device),
                "major": io.device.0,
                "minor": io.device.1,
                "stats": counts.collect::<serde_json::Map<_, _>>(),
            })
        };
        devices.iter().map(one).collect::<Vec<_>>()
    };
    json!({"io_service_bytes": by(|io| &io.bytes), "io_serviced": by(|io| &io.requests)})
}

fn network(interfaces: &[Interface]) -> Value {
    let one = |interface: &Interface| {
        json!({
            "name": interface.name,
            "rx_bytes": interface.received.bytes,
            "rx_packets": interface.received.packets,
            "rx_errors": interface.received.errors,
            "rx_dropped": interface.received.dropped,
            "tx_bytes": interface.sent.bytes,
            "tx_packets": interface.sent.packets,
            "tx_errors": interface.sent.errors,
            "tx_dropped": interface.sent.dropped,
        })
    };
    // The first interface is used by clients that support only one.
    let mut network = interfaces.first().map_or_else(|| json!({}), one);
    network["interfaces"] = interfaces.iter().map(one).collect();
    network
}
