use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use longshore_generators::{NUMBERS, text};
use longshore_machine::FileSystem;
use longshore_pod::usage::Space;
use proptest::prelude::*;

use super::cgroup_reader::CgroupReader;
use super::fixture::{amount, any_snapshot, file_system, time};
use super::links::Links;
use super::*;

#[test]
fn this_machine_is_known() {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let machine = Machine::read(&Hierarchies::find(unified)).unwrap();
    let total = machine.memory.limit.unwrap();
    let used = machine.memory.working_set;
    assert!(used > 0 && used < total && machine.memory.usage >= used, "{machine:?}");
    assert!(machine.pids.running > 1 && machine.pids.running < machine.pids.max, "{machine:?}");
    assert!(machine.usage.cpu > Some(0));
    let root = FileSystem::of(Path::new("/")).unwrap();
    assert!(root.capacity > root.available && root.available > 0, "{root:?}");
}

#[test]
fn machine_process_counts_are_cached() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("cgroup.clone_children", "0\n");
    write("cgroup.procs", "0\n1\n");
    let root = Cgroup::root(&Hierarchies::at(dir.path(), false));
    let (open_files, links) = (OpenFiles::default(), Links::default());
    let mut reader = CgroupReader::new(Detail::Load, &open_files, &links).unwrap();
    let mut count = |before: Option<&Group>| reader.root(&root, before).unwrap();
    let mut before = count(None);
    assert_eq!(before.processes.count, 1, "not those of another namespace");
    write("cgroup.procs", "1\n2\n3\n");
    let same = count(Some(&before));
    assert_eq!(
        (same.processes.count, same.counted),
        (1, before.counted),
        "it holds, and gets older"
    );
    if let Some(long_ago) = before.counted.checked_sub(Duration::from_secs(301)) {
        before.counted = long_ago;
        assert_eq!(count(Some(&before)).processes.count, 3);
    }
    before.counted = Instant::now();
    before.path = "/another".to_owned();
    assert_eq!(count(Some(&before)).processes.count, 3, "they are another's");
}

#[tokio::test]
async fn concurrent_stats_requests_share_one_sample() {
    let (figure, count) = (Cached::<usize>::default(), Arc::new(AtomicUsize::new(0)));
    let read = || {
        let count = count.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(count.fetch_add(1, Ordering::SeqCst))
        }
    };
    let age = Duration::from_secs(60);
    let both = tokio::join!(figure.get(age, read), figure.get(age, read));
    assert_eq!((*both.0.unwrap(), *both.1.unwrap()), (0, 0));
    assert_eq!(*figure.get(age, read).await.unwrap(), 0, "not too old");
    assert_eq!(*figure.get(Duration::ZERO, read).await.unwrap(), 1, "too old");
    assert!(figure.read_duration() >= Duration::from_millis(20));
}

#[tokio::test]
async fn stats_collection_timeout_and_retry() {
    let (figure, count) = (Cached::<()>::default(), Arc::new(AtomicUsize::new(0)));
    let (release, gate) = tokio::sync::watch::channel(false);
    let read = || {
        let (count, mut gate) = (count.clone(), gate.clone());
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = gate.wait_for(|open| *open).await;
            Err(Error::of("no such disk"))
        }
    };
    for _ in 0..3 {
        let asked = figure.get(Duration::ZERO, read);
        assert!(tokio::time::timeout(Duration::from_millis(10), asked).await.is_err());
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    release.send_replace(true);
    let error = figure.get(Duration::ZERO, read).await.unwrap_err();
    assert_eq!(error.to_string(), "no such disk");
    let tries = count.load(Ordering::SeqCst);
    figure.get(Duration::from_secs(60), read).await.unwrap_err();
    assert_eq!(count.load(Ordering::SeqCst), tries, "the error is young");
    figure.get(Duration::ZERO, read).await.unwrap_err();
    assert_eq!(count.load(Ordering::SeqCst), tries + 1);
}

/// The files of a cgroup, v1 and v2, with the keys of their lines.
const FILES: [(&str, &[&str]); 27] = [
    ("memory.current", &[""]),
    ("memory.max", &[""]),
    ("memory.min", &[""]),
    ("memory.peak", &[""]),
    ("memory.swap.current", &[""]),
    ("memory.swap.max", &[""]),
    ("memory.usage_in_bytes", &[""]),
    ("memory.limit_in_bytes", &[""]),
    ("memory.memsw.limit_in_bytes", &[""]),
    ("memory.soft_limit_in_bytes", &[""]),
    ("memory.failcnt", &[""]),
    ("memory.events", &["oom_kill "]),
    (
        "memory.stat",
        &[
            "anon ",
            "file ",
            "kernel ",
            "inactive_file ",
            "pgfault ",
            "total_rss ",
            "total_cache ",
            "total_inactive_file ",
            "total_swap ",
        ],
    ),
    ("cpu.stat", &["usage_usec ", "user_usec ", "nr_throttled ", "throttled_usec ", "burst_time "]),
    ("cpu.max", &["100000 ", ""]),
    ("cpu.weight", &[""]),
    ("cpu.cfs_quota_us", &[""]),
    ("cpu.cfs_period_us", &[""]),
    ("cpu.shares", &[""]),
    (
        "cpu.pressure",
        &["some avg10=", "full total=", "some avg10=0.00 avg60=0.00 avg300=0.00 total="],
    ),
    ("cpuacct.usage", &[""]),
    ("cpuacct.stat", &["user ", "system "]),
    ("pids.current", &[""]),
    ("pids.max", &[""]),
    ("cgroup.procs", &[""]),
    ("io.stat", &["8:0 rbytes=", "8:16 wios=1 rios=", "4294967296:0 rbytes=", ""]),
    ("blkio.throttle.io_service_bytes_recursive", &["8:0 Read ", "8:0 Write ", "Total ", ""]),
];

proptest! {
    /// Finding 1: what the kernel may write into the files of a cgroup.
    #[test]
    fn extremes_of_cgroup_files(
        words in prop::collection::vec(
            prop_oneof![
                4 => amount().prop_map(|amount| amount.to_string()),
                1 => prop::sample::select(NUMBERS.to_vec()).prop_map(|number| number.to_string()),
                1 => Just("max".to_owned()),
                1 => text(),
            ],
            1..16,
        ),
        unified: bool,
        missing in 0..FILES.len() * 2,
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let own = dir.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let mut words = words.iter().cycle();
        for (at, (name, keys)) in FILES.iter().enumerate() {
            let lines = keys.iter().zip(&mut words);
            let lines: String = lines.map(|(key, word)| format!("{key}{word}\n")).collect();
            if at != missing {
                std::fs::write(own.join(name), lines).unwrap();
            }
        }
        let hierarchies = Hierarchies::at(dir.path(), unified);
        let (group, mut reader) = (Cgroup::new(&hierarchies, Path::new("own")), Reader::default());
        let reading = group.read(Detail::Everything, &mut reader);
        if let Some(memory) = reading.memory {
            prop_assert!(memory.memory.working_set <= memory.memory.usage);
            prop_assert!(memory.memory.limit.is_none_or(|limit| limit < 1 << 62));
            let _ = memory.memory.available();
        }
        prop_assert!(reading.limits.shares.is_none_or(|shares| !unified || shares >= 2));
        let figures = group.usage(&mut reader);
        prop_assert_eq!(figures.cpu, reading.cpu.map(|cpu| cpu.total));
        prop_assert_eq!(figures.memory, reading.memory.map(|memory| memory.memory));
        group.processes(&mut reader);
        if let Ok(watch) = cgroup::Watch::open(&group) {
            prop_assert_eq!(watch.cpu(&mut reader).ok(), figures.cpu);
        }
    }

    /// Finding 1: a rate is that of the time that has passed, whatever clocks and counters do.
    #[test]
    fn extremes_of_cpu_rates(
        (first, second) in (any_snapshot(), any_snapshot()),
        samples in prop::collection::vec((time(), 0..3_i64, amount()), 1..6),
    ) {
        let rates = Rates::default();
        for mut snapshot in [first, second] {
            rates.apply(&mut snapshot);
        }
        let rates = Rates::default();
        let mut snapshot = fixture::snapshot(Vec::new());
        let mut before: Option<(Timestamp, u64)> = None;
        for (at, seconds, used) in samples {
            let later = k8s_openapi::jiff::SignedDuration::from_secs(seconds);
            let at = at.checked_add(later).unwrap_or(at);
            for group in snapshot.groups_mut() {
                group.reading.at = at;
                group.reading.cpu = Some(Cpu { total: used, ..Cpu::default() });
            }
            rates.apply(&mut snapshot);
            let rate = snapshot.node.nano_cores;
            match before {
                None => prop_assert_eq!(rate, None),
                Some((_, known)) if used < known => prop_assert_eq!(rate, None),
                Some((then, known)) if at.duration_since(then).as_secs() >= 1 => {
                    let passed = at.duration_since(then).as_nanos();
                    let expected = i128::from(used - known) * 1_000_000_000 / passed;
                    prop_assert_eq!(rate, u64::try_from(expected).ok());
                }
                // What was known holds.
                Some(_) => continue,
            }
            before = Some((at, used));
        }
    }

    /// Finding 1: what pods have on disks, with what the runtime says of their layers.
    #[test]
    fn extremes_of_disk_usage(
        sizes in prop::collection::vec((amount(), amount()), 4),
        file_system in file_system(),
        at in time(),
        name in text(),
    ) {
        let space = |at: usize| Space { bytes: sizes[at].0, inodes: sizes[at].1 };
        let used = VolumeUse { used: space(0), file_system };
        let disk = PodDisk {
            at,
            volumes: [("scratch".to_owned(), used), (name.clone(), used)].into(),
            logs: [("main".to_owned(), space(1))].into(),
            own: space(2),
        };
        let layers = Layers { at, used: [("c1".to_owned(), space(3))].into() };
        let containers = vec![fixture::container("c1", "main", fixture::AT)];
        let observed = fixture::pod("p", "u", fixture::AT, containers).pod;
        let container = |name: &str| longshore_pod::usage::ContainerUsage {
            name: name.to_owned(),
            ..Default::default()
        };
        let containers = vec![container("main"), container(&name)];
        let mut usage = PodUsage { containers, ..PodUsage::default() };
        pods::add_disk(&mut usage, &disk, Some(&layers), Some(&observed));
        let spec = serde_json::json!({"metadata": {}, "spec": {
            "containers": [], "volumes": [{"name": "scratch", "emptyDir": {}}],
        }});
        let total = usage.ephemeral_storage(&serde_json::from_value(spec).unwrap());
        let bytes = sizes.iter().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        prop_assert!(total.bytes == bytes || name == "main" || name == "scratch");
    }
}
