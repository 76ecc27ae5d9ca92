//! A snapshot for tests: a machine, the cgroup of all pods, and pods with a sandbox and a container
//! each.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use longshore_generators::{NUMBERS, TIMES, text};
use longshore_machine::FileSystem;
use longshore_pod::observed::{Container, ObservedPod, Sandbox, State};
use longshore_pod::usage::{CgroupUsage, Memory};
use proptest::prelude::*;

use super::links::Peer;
use super::process::Traffic;
use super::{
    Cpu, Detail, DeviceIo, Devices, Faults, Group, Interface, Limits, Machine, MemoryUse,
    OpenFileCount, Pids, PodGroup, Pressure, Processes, Reading, Run, Snapshot, Stall, Stalls,
    Tasks, Throttling,
};

/// The time of the sample, in seconds since 1970.
pub const AT: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::new(second, 0).unwrap_or_default()
}

/// A cgroup with all values.
pub fn group(path: &str) -> Group {
    let stall = Stall { avg10: 1.5, avg60: 0.5, avg300: 0.1, total: 2_500_000 };
    let stalls = Some(Stalls { some: stall, full: stall });
    let throttling = Some(Throttling { periods: 10, throttled: 4, ..Throttling::default() });
    let memory = Memory { usage: 3000, working_set: 2000, rss: 1000, limit: Some(10_000) };
    let mut reading = Reading {
        at: at(AT),
        cpu: Some(Cpu { total: 2_500_000_000, user: 2, system: 1, throttling }),
        memory: Some(MemoryUse { memory, swap: Some(7), ..MemoryUse::default() }),
        tasks: Some(Tasks { current: 3, max: None }),
        pressure: Pressure { cpu: stalls, memory: stalls, io: stalls },
        io: vec![DeviceIo { device: (8, 0), bytes: [Some(5); 6], requests: [Some(1); 6] }],
        oom_kills: Some(1),
        ..Reading::default()
    };
    reading.limits.quota = Some(50_000);
    let open = Some(OpenFileCount { files: 9, sockets: 2 });
    let processes = Processes { count: 2, first: Some(1), open, file_limit: None };
    let (created, nano_cores) = (Some(at(AT - 60)), Some(250_000_000));
    let (path, counted) = (path.to_owned(), Instant::now());
    let (network, peer) = (Vec::new(), Peer::Unknown);
    Group { path, created, reading, nano_cores, processes, counted, network, peer }
}

/// A container that was created at that second.
pub fn container(id: &str, name: &str, made: i64) -> Container {
    Container {
        id: id.to_owned(),
        name: name.to_owned(),
        sandbox_id: String::new(),
        restart_count: 0,
        hash: None,
        created_at: at(made),
        image: "registry/image:1".to_owned(),
        image_ref: String::new(),
        log_path: String::new(),
        user: None,
        mounted_images: Default::default(),
        stop_signal: None,
        resources: None,
        state: State::Running { started_at: at(made) },
    }
}

/// A pod in the namespace `ns` whose sandbox was created at that second, with these containers,
/// newest first, all with cgroups.
pub fn pod(name: &str, uid: &str, made: i64, containers: Vec<Container>) -> PodGroup {
    let path = format!("/kubepods/pod{uid}");
    let run = |index: usize, id: &str| Run { index, group: group(&format!("{path}/{id}")) };
    let sandbox = Sandbox { id: format!("s-{uid}"), created_at: at(made), ..Sandbox::default() };
    let mut sandbox_run = run(0, &sandbox.id);
    let traffic = Traffic { bytes: 100, packets: 10, errors: 0, dropped: 0 };
    let interface =
        |name: &str| Interface { name: name.to_owned(), received: traffic, sent: traffic };
    sandbox_run.group.network = vec![interface("eth0"), interface("eth1")];
    let runs = containers.iter().enumerate();
    let runs = runs.map(|(index, container)| run(index, &container.id)).collect();
    let pod = ObservedPod {
        uid: uid.to_owned(),
        name: name.to_owned(),
        namespace: "ns".to_owned(),
        sandboxes: vec![sandbox],
        containers,
        partial: false,
    };
    let own = Some(group(&path));
    let (pod, read) = (Arc::new(pod), Instant::now());
    PodGroup {
        pod,
        read,
        idle_since: read,
        read_io: read,
        watch: None,
        own,
        sandboxes: vec![sandbox_run],
        containers: runs,
    }
}

/// A machine with these pods, which are sorted by name.
pub fn snapshot(pods: Vec<PodGroup>) -> Snapshot {
    let memory = Memory { usage: 5000, working_set: 4000, rss: 3000, limit: Some(100_000) };
    let usage = CgroupUsage { memory: Some(memory), ..CgroupUsage::default() };
    let pids = Pids { max: 1000, running: 10 };
    let machine = Machine { usage, memory, swap_total: 500, swap_free: 300, pids };
    let mut devices = Devices::default();
    devices.names.insert((8, 0), "/dev/sda".to_owned());
    Snapshot {
        detail: Detail::Everything,
        machine,
        node: group("/"),
        levels: vec![group("/kubepods")],
        system: vec![("kubelet", group("/system.slice/kubelet.service"))],
        pods,
        devices,
        observed: Vec::new(),
    }
}

/// Extreme amounts that the kernel, a runtime or a driver can report.
pub fn amount() -> impl Strategy<Value = u64> {
    let limits = NUMBERS.map(|number| number as u64);
    prop_oneof![4 => prop::sample::select(limits.to_vec()), 1 => any::<u64>()]
}

/// Extreme timestamps.
pub fn time() -> impl Strategy<Value = Timestamp> {
    let known = TIMES.iter().filter_map(|time| time.parse().ok());
    let known = known.chain([Timestamp::MIN, Timestamp::MAX, at(AT)]);
    prop::sample::select(known.collect::<Vec<_>>())
}

/// Names that a runtime has kept, of up to 80 bytes.
pub fn name() -> impl Strategy<Value = String> {
    text().prop_map(|mut name| {
        name.truncate(name.floor_char_boundary(80));
        name
    })
}

/// File systems of any size.
pub fn file_system() -> impl Strategy<Value = FileSystem> {
    [amount(), amount(), amount(), amount(), amount()].prop_map(
        |[capacity, available, used, inodes, inodes_free]| FileSystem {
            device: 1,
            capacity,
            available,
            used,
            inodes,
            inodes_free,
        },
    )
}

/// Cgroup stats, each of which may be missing.
pub fn any_reading() -> impl Strategy<Value = Reading> {
    let averages = [any::<f64>(), any::<f64>(), any::<f64>()];
    (time(), prop::collection::vec(amount(), 1..12), averages, any::<u64>()).prop_map(
        |(at, amounts, [avg10, avg60, avg300], missing)| {
            let mut left = amounts.into_iter().cycle();
            let mut next = || left.next().unwrap_or_default();
            let mut bits = (0..64).map(|bit| missing >> bit & 3 > 0).cycle();
            let mut is_there = || bits.next().unwrap_or_default();
            let mut stall = || Stall { avg10, avg60, avg300, total: next() };
            let stalls = Stalls { some: stall(), full: stall() };
            let throttling = Throttling {
                periods: next(),
                throttled: next(),
                throttled_time: next(),
                bursts: next(),
                burst_time: next(),
            };
            let cpu = Cpu {
                total: next(),
                user: next(),
                system: next(),
                throttling: is_there().then_some(throttling),
            };
            let mut maybe = || is_there().then(&mut next);
            let mut count = || std::array::from_fn(|_| maybe());
            let mut io = |device| DeviceIo { device, bytes: count(), requests: count() };
            let io = [(8, 0), (u32::MAX, u32::MAX)].map(&mut io).into();
            let limits = Limits { quota: maybe(), period: maybe(), shares: maybe() };
            let (limit, kernel, swap, swap_limit) = (maybe(), maybe(), maybe(), maybe());
            let (peak, max, oom_kills) = (maybe(), maybe(), maybe());
            let (usage, working_set, rss) = (next(), next(), next());
            let memory = MemoryUse {
                memory: Memory { usage, working_set, rss, limit },
                cache: next(),
                mapped_file: next(),
                active_file: next(),
                inactive_file: next(),
                kernel,
                swap,
                swap_limit,
                peak,
                failures: next(),
                reserved: next(),
                own_faults: Faults { minor: next(), major: next() },
                faults: Faults { minor: next(), major: next() },
            };
            let tasks = Tasks { current: next(), max };
            Reading {
                at,
                cpu: is_there().then_some(cpu),
                memory: is_there().then_some(memory),
                tasks: is_there().then_some(tasks),
                pressure: Pressure {
                    cpu: is_there().then_some(stalls),
                    memory: is_there().then_some(stalls),
                    io: is_there().then_some(stalls),
                },
                io,
                limits,
                oom_kills,
            }
        },
    )
}

/// A machine with up to three pods of any names and any stats.
pub fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let containers = prop::collection::vec((name(), text(), time()), 0..3);
    let pods = prop::collection::vec((name(), name(), containers), 0..4);
    let readings = prop::collection::vec((any_reading(), prop::option::of(amount())), 4);
    let others = prop::collection::vec(amount(), 12);
    (pods, readings, others, (name(), time())).prop_map(
        |(pods, readings, others, (device, created))| {
            let pods = pods.into_iter().enumerate().map(|(uid, (namespace, name, containers))| {
                let containers = containers.into_iter().enumerate();
                let containers = containers.map(|(id, (name, image, at))| {
                    let mut one = container(&format!("c{id}"), &name, AT);
                    (one.image, one.created_at) = (image, at);
                    one.image.truncate(one.image.floor_char_boundary(300));
                    one
                });
                let mut found = pod(&name, &uid.to_string(), AT, containers.collect());
                let mut own = (*found.pod).clone();
                own.namespace = namespace;
                own.sandboxes.iter_mut().for_each(|sandbox| sandbox.created_at = created);
                found.pod = Arc::new(own);
                found
            });
            let mut pods: Vec<PodGroup> = pods.collect();
            pods.sort_by(|a, b| {
                (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name))
            });
            let mut found = snapshot(pods);
            for (group, (reading, rate)) in found.groups_mut().zip(readings.iter().cycle()) {
                (group.reading, group.nano_cores) = (reading.clone(), *rate);
                // as many as can be counted one by one
                let count = u64::from(others[0] as u32);
                (group.created, group.processes.count) = (Some(created), count);
                group.processes.open = Some(OpenFileCount { files: others[1], sockets: others[2] });
                group.processes.file_limit = Some(others[3]);
                let (bytes, packets, errors, dropped) =
                    (others[4], others[5], others[6], others[7]);
                let traffic = Traffic { bytes, packets, errors, dropped };
                for interface in &mut group.network {
                    (interface.received, interface.sent) = (traffic, traffic);
                }
            }
            let memory = readings[0].0.memory.map(|memory| memory.memory).unwrap_or_default();
            found.machine.memory = memory;
            (found.machine.swap_total, found.machine.swap_free) = (others[8], others[9]);
            found.machine.pids = Pids { max: others[10], running: others[11] };
            found.devices.names.insert((u32::MAX, u32::MAX), format!("/dev/x{device}"));
            found
        },
    )
}
