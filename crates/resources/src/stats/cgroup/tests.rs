use std::fs;
use std::io;
use std::path::Path;

use longshore_pod::usage::Memory;

use super::*;

/// A cgroup whose files are these, in one directory for all controllers.
fn group(dir: &Path, unified: bool, files: &[(&str, &str)]) -> Cgroup {
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
    Cgroup::new(&Hierarchies::at(dir.parent().unwrap(), unified), dir.file_name().unwrap().as_ref())
}

fn figures(group: &Cgroup) -> CgroupUsage {
    group.usage(&mut Reader::default())
}

fn memory(group: &Cgroup) -> io::Result<Memory> {
    group.memory(&mut Reader::default(), false).map(|memory| memory.memory)
}

const V1: &[(&str, &str)] = &[
    ("memory.usage_in_bytes", "1000\n"),
    ("memory.limit_in_bytes", "4096\n"),
    ("memory.memsw.limit_in_bytes", "5096\n"),
    ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
    ("memory.max_usage_in_bytes", "1234\n"),
    ("memory.kmem.usage_in_bytes", "50\n"),
    ("memory.failcnt", "6\n"),
    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    (
        "memory.stat",
        "rss 1\ninactive_file 9\npgfault 3\npgmajfault 1\ntotal_cache 600\ntotal_rss 400\n\
         total_mapped_file 20\ntotal_swap 11\ntotal_pgfault 30\ntotal_pgmajfault 10\n\
         total_inactive_file 300\ntotal_active_file 250\n",
    ),
    ("cpuacct.usage", "5000\n"),
    ("cpuacct.stat", "user 3\nsystem 2\n"),
    (
        "cpu.stat",
        "nr_periods 7\nnr_throttled 4\nthrottled_time 9000\nnr_bursts 1\nburst_time 2000\n",
    ),
    ("cpu.cfs_quota_us", "50000\n"),
    ("cpu.cfs_period_us", "100000\n"),
    ("cpu.shares", "512\n"),
    ("pids.current", "7\n"),
    ("pids.max", "max\n"),
    (
        "blkio.throttle.io_service_bytes_recursive",
        "8:0 Read 10\n8:0 Write 20\n8:0 Sync 25\n8:0 Async 5\n8:0 Discard 0\n8:0 Total 30\nTotal 30\n",
    ),
    ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
];

const V2: &[(&str, &str)] = &[
    ("memory.current", "1000\n"),
    ("memory.max", "4096\n"),
    ("memory.min", "64\n"),
    ("memory.peak", "1234\n"),
    ("memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"),
    (
        "memory.stat",
        "anon 400\nfile 600\nkernel 50\nfile_mapped 20\ninactive_file 300\nactive_file 250\n\
         pgfault 30\npgmajfault 10\n",
    ),
    ("memory.swap.current", "11\n"),
    ("memory.swap.max", "1000\n"),
    ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
    (
        "cpu.stat",
        "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nnr_throttled 4\n\
         throttled_usec 9\nnr_bursts 1\nburst_usec 2\n",
    ),
    (
        "cpu.pressure",
        "some avg10=1.50 avg60=0.25 avg300=0.05 total=123456\n\
         full avg10=0.50 avg60=0.00 avg300=0.00 total=1000\n",
    ),
    ("cpu.max", "50000 100000\n"),
    ("cpu.weight", "20\n"),
    ("pids.current", "7\n"),
    ("pids.max", "100\n"),
    ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 \n"),
];

#[test]
fn cgroup_v1_and_v2_stats_agree() {
    let expected = Memory { usage: 1000, working_set: 700, rss: 400, limit: Some(4096) };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (v1, v2) = (group(one.path(), false, V1), group(two.path(), true, V2));
    let known = CgroupUsage { cpu: Some(5000), memory: Some(expected), swap: None, tasks: Some(7) };
    assert_eq!(figures(&v1), known);
    assert_eq!(figures(&v2), CgroupUsage { swap: Some(11), ..known });
    assert_eq!(expected.available(), Some(3396));
    fs::write(one.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
    fs::write(two.path().join("memory.max"), "max\n").unwrap();
    assert_eq!(memory(&v1).unwrap().limit, None);
    assert_eq!(memory(&v2).unwrap().limit, None);
    fs::remove_file(two.path().join("memory.current")).unwrap();
    assert!(memory(&v2).unwrap_err().to_string().contains("memory.current"));
    let root = Cgroup::root(&Hierarchies::at(two.path(), true));
    assert_eq!(memory(&root).unwrap(), Memory { limit: None, ..expected });
}

#[test]
fn cgroup_stats_of_both_versions() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let read = |group: &Cgroup, detail| {
        let reading = group.read(detail, &mut Reader::default());
        Reading { at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH, ..reading }
    };
    let (v1, v2) = (group(one.path(), false, V1), group(two.path(), true, V2));
    let throttling =
        Throttling { periods: 7, throttled: 4, throttled_time: 9000, bursts: 1, burst_time: 2000 };
    let memory = MemoryUse {
        memory: Memory { usage: 1000, working_set: 700, rss: 400, limit: Some(4096) },
        cache: 600,
        mapped_file: 20,
        active_file: 250,
        inactive_file: 300,
        kernel: Some(50),
        swap: Some(11),
        swap_limit: Some(1000),
        peak: Some(1234),
        failures: 6,
        reserved: 0,
        own_faults: Faults { minor: 3, major: 1 },
        faults: Faults { minor: 30, major: 10 },
    };

    let found = read(&v1, Detail::Everything);
    let cpu =
        Cpu { total: 5000, user: 30_000_000, system: 20_000_000, throttling: Some(throttling) };
    assert_eq!(found.cpu, Some(cpu));
    assert_eq!(found.memory, Some(memory));
    assert_eq!(found.tasks, Some(Tasks { current: 7, max: None }));
    assert_eq!(found.pressure, Pressure::default(), "v1 does not know it");
    let limits = Limits { quota: Some(50_000), period: Some(100_000), shares: Some(512) };
    assert_eq!((found.limits, found.oom_kills), (limits, Some(2)));
    let io = found.io.first().unwrap();
    assert_eq!(found.io.len(), 1, "the sum is no device");
    assert_eq!((io.device, io.bytes), ((8, 0), [5, 0, 10, 25, 30, 20].map(Some)));
    assert_eq!((io.read(), io.written(), io.reads(), io.writes()), (10, 20, 1, 2));

    let found = read(&v2, Detail::Everything);
    let cpu = Cpu { total: 5000, user: 3000, system: 2000, throttling: Some(throttling) };
    assert_eq!(found.cpu, Some(cpu));
    let faults = Faults { minor: 30, major: 10 };
    let v2_memory = MemoryUse { failures: 0, reserved: 64, own_faults: faults, ..memory };
    assert_eq!(found.memory, Some(v2_memory));
    assert_eq!(found.tasks, Some(Tasks { current: 7, max: Some(100) }));
    let stalls = found.pressure.cpu.unwrap();
    assert_eq!(stalls.some, Stall { avg10: 1.5, avg60: 0.25, avg300: 0.05, total: 123_456 });
    assert_eq!(stalls.full.total, 1000);
    assert_eq!(found.pressure.memory, Some(Stalls::default()));
    assert_eq!(found.pressure.io, None, "there is no such file");
    assert_eq!(found.limits, Limits { shares: Some(500), ..limits });
    assert_eq!(found.oom_kills, Some(2));
    let io = found.io.first().unwrap();
    assert_eq!((io.read(), io.written(), io.reads(), io.writes()), (10, 20, 1, 2));

    for group in [&v1, &v2] {
        assert_eq!(read(group, Detail::Load).tasks, None);
        let found = read(group, Detail::Usage);
        assert!(found.io.is_empty() && found.tasks.is_none() && found.pressure.cpu.is_none());
        assert_eq!(found.memory.unwrap().memory.working_set, 700);
    }
}

#[test]
fn cgroup_cpu_without_limit() {
    let dir = tempfile::tempdir().unwrap();
    let read = |files: &[(&str, &str)], unified| {
        let group = group(dir.path(), unified, files);
        group.read(Detail::Everything, &mut Reader::default()).limits
    };
    let v1 = [("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")];
    let expected = Limits { quota: None, period: Some(100_000), shares: None };
    assert_eq!(read(&v1, false), expected);
    assert_eq!(read(&[("cpu.max", "max 100000\n")], true), expected);
    for (weight, shares) in [("1", 2), ("100", 2597), ("10000", 262_144)] {
        assert_eq!(read(&[("cpu.weight", weight)], true).shares, Some(shares), "{weight}");
    }
}

#[test]
fn cgroup_names_of_runtimes_and_drivers() {
    for (name, id) in
        [("0a1b", "0a1b"), ("cri-containerd-2c3d.scope", "2c3d"), ("crio-4e5f.scope", "4e5f")]
    {
        assert_eq!(container_id(name), id);
    }
    for (name, uid, level) in [
        ("burstable", None, true),
        ("kubepods-besteffort.slice", None, true),
        ("host7_a-kubepods-burstable.slice", None, true),
        ("pod12-34", Some("12_34"), false),
        ("kubepods-pod12_34.slice", Some("12_34"), false),
        ("kubepods-burstable-pod12_34.slice", Some("12_34"), false),
        ("kubepods.slice", None, false),
        ("system.slice", None, false),
        ("0a1b", None, false),
    ] {
        assert_eq!(pod_uid(name).as_deref(), uid, "{name}");
        assert_eq!(is_level(name), level, "{name}");
    }
}

#[test]
fn cgroup_children_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b", "a"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let files = [("memory.current", "1"), ("memory.stat", ""), ("cgroup.events", "")];
    let group = group(dir.path(), true, &files);
    assert_eq!(group.children(), ["a", "b"]);
    assert!(group.created().unwrap().is_some());
    let error = group.child("c").created().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains(&format!("{}/c/", group.path())), "{error}");
    assert!(group.child("c").children().is_empty());
}

#[test]
fn cgroup_missing_in_one_hierarchy() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [memory, others] = dirs.each_ref().map(|dir| dir.path().to_str().unwrap().to_owned());
    for (file, text) in [
        ("cgroup.clone_children", "0\n"),
        ("cgroup.procs", "12\n0\n345\n"),
        ("cpuacct.usage", "5000\n"),
    ] {
        fs::create_dir_all(format!("{others}/pod/run")).unwrap();
        fs::write(format!("{others}/pod/{file}"), text).unwrap();
    }
    let root = |controller| match controller {
        Controller::Memory => memory.clone(),
        _ => others.clone(),
    };
    let roots = Arc::new(Controller::ALL.map(root));
    let pod = Cgroup::new(&Hierarchies { unified: false, roots }, Path::new("pod"));
    assert_eq!(pod.path(), "/pod");
    assert!(pod.created().unwrap().is_some());
    assert_eq!(pod.children(), ["run"]);
    assert_eq!(pod.processes(&mut Reader::default()), [12, 345]);
    assert_eq!(figures(&pod), CgroupUsage { cpu: Some(5000), ..CgroupUsage::default() });
}

#[test]
fn cgroup_file_longer_than_the_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |count: u64| (0..count).map(|n| format!("8:{n} rbytes={n}\n")).collect::<String>();
    for count in [0, 1, 300, 3000] {
        let group = group(dir.path(), true, &[("io.stat", &lines(count))]);
        let found = group.read(Detail::Everything, &mut Reader::default()).io;
        assert_eq!(found.len() as u64, count);
        assert!(found.last().is_none_or(|io| io.read() == count - 1));
    }
}

#[test]
fn cgroup_open_files_of_live_and_removed_cgroups_as_root() {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let name = format!("longshore-watch-{}", std::process::id());
    let group = Cgroup::new(&Hierarchies::find(unified), name.as_ref());
    let dirs = [Controller::Memory, Controller::CpuAcct].map(|controller| {
        let file = group.path_of(controller, "cgroup.procs");
        Path::new(&file).parent().unwrap().to_owned()
    });
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let mut reader = Reader::default();
    let watched = Watch::open(&group).and_then(|watch| {
        let watched_values = (watch.cpu(&mut reader)?, watch.memory(&mut reader)?);
        let now = (group.cpu(&mut reader)?.total, group.memory_usage(&mut reader)?);
        Ok((watch, watched_values == now))
    });
    dirs.iter().filter(|dir| dir.exists()).for_each(|dir| fs::remove_dir(dir).unwrap());
    let (watch, same) = watched.unwrap();
    assert!(same, "nobody is in it");
    assert!(watch.cpu(&mut reader).is_err() && watch.memory(&mut reader).is_err());
    assert!(Watch::open(&group).unwrap_err().to_string().contains(&name));
}
