//! A snapshot for the tests of those who tell of one: a machine, the level of all pods, and pods
//! with a sandbox and a container each.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use longshore_pod::observed::{Container, ObservedPod, Sandbox, State};
use longshore_pod::usage::{Figures, Memory};

use super::links::End;
use super::process::Traffic;
use super::{
    Cpu, Detail, DeviceIo, Devices, Group, Interface, Machine, MemoryUse, Open, Pids, PodGroup,
    Pressure, Processes, Reading, Run, Snapshot, Stall, Stalls, Tasks, Throttling,
};

/// When everything was read, in seconds since 1970.
pub const AT: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::new(second, 0).unwrap_or_default()
}

/// A cgroup that has everything.
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
    let open = Some(Open { files: 9, sockets: 2 });
    let processes = Processes { count: 2, first: Some(1), open, file_limit: None };
    let (created, nano_cores) = (Some(at(AT - 60)), Some(250_000_000));
    let (path, counted) = (path.to_owned(), Instant::now());
    let (network, end) = (Vec::new(), End::Unknown);
    Group { path, created, reading, nano_cores, processes, counted, network, end }
}

/// A container's run that was made at that second.
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
        stop_signal: None,
        resources: None,
        state: State::Running { started_at: at(made) },
    }
}

/// A pod in the namespace `ns` whose sandbox was made at that second, with these containers, the
/// newest first; all of them have cgroups.
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
    let figures = Figures { memory: Some(memory), ..Figures::default() };
    let pids = Pids { max: 1000, running: 10 };
    let machine = Machine { figures, memory, swap_total: 500, swap_free: 300, pids };
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
