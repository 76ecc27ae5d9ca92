use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::usage::{CgroupUsage, ContainerUsage, Memory, PodUsage, Space};

const MI: u64 = 1 << 20;
const GI: i64 = 1 << 30;

type Map = BTreeMap<String, String>;

fn map(entries: &[(&str, &str)]) -> Map {
    entries.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn parse(
    hard: &Map,
    soft: &Map,
    grace: &[(&str, u64)],
    reclaim: &Map,
) -> Result<Vec<Threshold>, Vec<String>> {
    let grace =
        grace.iter().map(|(name, s)| ((*name).to_owned(), Duration::from_secs(*s))).collect();
    let texts = ThresholdConfig { hard, soft, soft_grace: &grace, minimum_reclaim: reclaim };
    thresholds(texts, true)
}

fn milli(bytes: i64) -> Amount {
    Amount::Milli { milli: i128::from(bytes) * 1000, binary: true }
}

fn hard(signal: Signal, value: Amount) -> Threshold {
    Threshold { signal, value, grace: Duration::ZERO, min_reclaim: None }
}

fn seen(entries: &[(Signal, i64, i64)]) -> Observations {
    let observation = |(signal, available, capacity): &(Signal, i64, i64)| {
        (*signal, Observation { available: *available, capacity: *capacity })
    };
    entries.iter().map(observation).collect()
}

#[test]
fn eviction_thresholds_are_parsed_with_allocatable_memory() {
    let hard =
        map(&[("memory.available", "150Mi"), ("nodefs.available", "10%"), ("pid.available", "0%")]);
    let soft = map(&[("memory.available", "1.5Gi")]);
    let reclaim = map(&[("memory.available", "0"), ("nodefs.available", "500M")]);
    let all = parse(&hard, &soft, &[("memory.available", 30)], &reclaim).unwrap();
    let show: Vec<_> = all.iter().map(|t| (t.signal, t.value, t.grace.as_secs())).collect();
    let memory = milli(150 * MI as i64);
    assert_eq!(
        show,
        [
            (Signal::Memory, memory, 0),
            (Signal::NodeFs, Amount::Part(0.1), 0),
            (Signal::Memory, milli(GI * 3 / 2), 30),
            (Signal::AllocatableMemory, memory, 0),
        ]
    );
    assert_eq!(all[1].min_reclaim, Some(Amount::Milli { milli: 500_000_000_000, binary: false }));
    assert_eq!(all[3].min_reclaim, Some(Amount::Milli { milli: 0, binary: false }));
}

#[test]
fn eviction_config_errors_name_field_and_value() {
    let none = Map::new();
    for (field, name, text, expected) in [
        ("hard", "moon.phase", "1", "evictionHard: \"moon.phase\" is no eviction signal"),
        (
            "hard",
            "memory.available",
            "101%",
            "evictionHard[memory.available]: \"101%\" must not be more than 100%",
        ),
        (
            "hard",
            "memory.available",
            "-1%",
            "evictionHard[memory.available]: \"-1%\" must not be less than 0%",
        ),
        (
            "hard",
            "memory.available",
            "-1Gi",
            "evictionHard[memory.available]: \"-1Gi\" must be positive",
        ),
        ("hard", "memory.available", "0", "evictionHard[memory.available]: \"0\" must be positive"),
        ("hard", "memory.available", "lots", "evictionHard[memory.available]: \"lots\" is neither"),
        ("hard", "memory.available", "NaN%", "evictionHard[memory.available]: \"NaN%\" is neither"),
        (
            "soft",
            "pid.available",
            "1k",
            "evictionSoftGracePeriod: must give a period for the soft threshold of pid.available",
        ),
        ("reclaim", "moon.phase", "1", "evictionMinimumReclaim: \"moon.phase\""),
        (
            "reclaim",
            "nodefs.available",
            "0%",
            "evictionMinimumReclaim[nodefs.available]: \"0%\" must be positive",
        ),
        (
            "reclaim",
            "nodefs.available",
            "-5",
            "evictionMinimumReclaim[nodefs.available]: \"-5\" must not be negative",
        ),
    ] {
        let texts = map(&[(name, text)]);
        let of = |which: &str| if which == field { &texts } else { &none };
        let errors = parse(of("hard"), of("soft"), &[], of("reclaim")).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?} for {expected}");
    }
    let errors = parse(&none, &none, &[("moon.phase", 1)], &none).unwrap_err();
    assert_eq!(errors, ["evictionSoftGracePeriod: \"moon.phase\" is no eviction signal"]);
}

#[test]
fn eviction_soft_threshold_below_the_hard_one_is_ineffective() {
    for (hard, soft, expected) in [
        ("1Gi", "100Mi", &[Signal::Memory][..]),
        ("100Mi", "1Gi", &[]),
        ("1Gi", "1Gi", &[]),
        ("10%", "5%", &[Signal::Memory]),
        ("1Gi", "1%", &[]), // the capacity decides
    ] {
        let texts = |text| map(&[("memory.available", text)]);
        let grace = [("memory.available", 1)];
        let all = parse(&texts(hard), &texts(soft), &grace, &Map::new()).unwrap();
        assert_eq!(
            ineffective_soft_thresholds(&all).collect::<Vec<_>>(),
            expected,
            "{soft} below {hard}"
        );
    }
}

#[test]
fn eviction_thresholds_of_shared_file_systems() {
    let all = [
        hard(Signal::NodeFs, Amount::Part(0.1)),
        hard(Signal::ImageFs, Amount::Part(0.15)),
        hard(Signal::ContainerFs, Amount::Part(0.9)),
        Threshold {
            grace: Duration::from_secs(9),
            ..hard(Signal::ImageFsInodes, Amount::Part(0.05))
        },
    ];
    for (layout, expected) in [
        (Layout::of(1, 1, 1), vec![hard(Signal::ContainerFs, Amount::Part(0.1))]),
        (Layout::of(1, 2, 1), vec![hard(Signal::ContainerFs, Amount::Part(0.1))]),
        (
            Layout::of(1, 2, 2),
            vec![
                hard(Signal::ContainerFs, Amount::Part(0.15)),
                Threshold {
                    grace: Duration::from_secs(9),
                    ..hard(Signal::ContainerFsInodes, Amount::Part(0.05))
                },
            ],
        ),
    ] {
        let adapted = layout.adapt(&all);
        assert_eq!(adapted[..3], [all[0], all[1], all[3]], "{layout:?}");
        assert_eq!(adapted[3..], expected, "{layout:?}");
    }
}

#[test]
fn eviction_reclaim_depends_on_the_file_systems() {
    let reclaims = |containers, images| Reclaims { containers, images };
    for (layout, signal, expected) in [
        (Layout::Single, Signal::NodeFs, reclaims(true, true)),
        (Layout::Single, Signal::ImageFsInodes, reclaims(true, true)),
        (Layout::Dedicated, Signal::NodeFs, reclaims(false, false)),
        (Layout::Dedicated, Signal::ImageFs, reclaims(true, true)),
        (Layout::Dedicated, Signal::ContainerFsInodes, reclaims(true, true)),
        (Layout::Split, Signal::NodeFsInodes, reclaims(true, false)),
        (Layout::Split, Signal::ContainerFs, reclaims(true, false)),
        (Layout::Split, Signal::ImageFs, reclaims(false, true)),
        (Layout::Single, Signal::Memory, reclaims(false, false)),
        (Layout::Single, Signal::Pid, reclaims(false, false)),
    ] {
        assert_eq!(layout.reclaims(signal), expected, "{layout:?} {signal:?}");
    }
}

#[test]
fn eviction_hard_threshold_is_due_at_once_until_the_minimum_is_reclaimed() {
    let threshold = Threshold { min_reclaim: Some(milli(GI)), ..hard(Signal::Memory, milli(GI)) };
    let mut tracker = Tracker::new(vec![threshold], Duration::from_secs(300));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let memory = |available| seen(&[(Signal::Memory, available, 8 * GI)]);
    assert_eq!(
        tracker.evaluate(&memory(GI), at(0)),
        Evaluation::default(),
        "exactly the threshold"
    );
    let evaluation = tracker.evaluate(&memory(GI - 1), at(10));
    assert_eq!(evaluation.due, [threshold]);
    assert!(evaluation.pressure.memory && !evaluation.pressure.disk && !evaluation.pressure.pid);
    assert_eq!(evaluation.next, Some(Duration::from_secs(300)));
    assert_eq!(tracker.evaluate(&memory(2 * GI - 1), at(20)).due, [threshold], "not made up for");
    assert!(!tracker.is_reclaimed(&memory(2 * GI - 1)));
    assert!(tracker.is_reclaimed(&memory(2 * GI)));
    let evaluation = tracker.evaluate(&memory(2 * GI), at(30));
    assert!(evaluation.due.is_empty() && evaluation.pressure.memory);
    assert_eq!(evaluation.next, Some(Duration::from_secs(290)));
    assert!(tracker.evaluate(&memory(GI), at(319)).pressure.memory);
    assert!(!tracker.evaluate(&memory(GI), at(320)).pressure.memory);
    assert!(tracker.evaluate(&Observations::new(), at(330)).due.is_empty(), "no observation");
}

#[test]
fn eviction_soft_threshold_waits_for_its_grace_period() {
    let grace = Duration::from_secs(60);
    let threshold = Threshold { grace, ..hard(Signal::NodeFs, Amount::Part(0.1)) };
    let pid = hard(Signal::Pid, milli(100));
    let memory = hard(Signal::Memory, milli(1));
    let mut tracker = Tracker::new(vec![threshold, pid, memory], Duration::from_secs(1));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let disk = |available| seen(&[(Signal::NodeFs, available, 1000)]);
    let evaluation = tracker.evaluate(&disk(99), at(0));
    assert!(evaluation.due.is_empty() && evaluation.pressure.disk, "the condition does not wait");
    assert_eq!(tracker.evaluate(&disk(99), at(59)).next, Some(Duration::from_secs(1)));
    assert_eq!(tracker.evaluate(&disk(100), at(59)).due, []);
    assert!(tracker.evaluate(&disk(99), at(61)).due.is_empty(), "it begins anew");
    let all = seen(&[(Signal::NodeFs, 0, 1000), (Signal::Pid, 99, 1000), (Signal::Memory, 0, 9)]);
    assert_eq!(tracker.evaluate(&all, at(121)).due, [memory, threshold, pid], "memory comes first");
}

fn pod(name: &str, spec: Value) -> Pod {
    let metadata = json!({"name": name, "uid": name});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn with_requests(priority: i32, requests: Value) -> Value {
    json!({"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]})
}

fn memory(bytes: u64) -> CgroupUsage {
    let memory = Memory { usage: bytes + MI, working_set: bytes, rss: bytes, limit: None };
    CgroupUsage { memory: Some(memory), ..CgroupUsage::default() }
}

fn uses_memory(bytes: u64) -> PodUsage {
    let container =
        ContainerUsage { name: "c".to_owned(), cgroup: memory(bytes), ..ContainerUsage::default() };
    PodUsage { cgroup: memory(bytes), containers: vec![container], ..PodUsage::default() }
}

fn order(pods: &[(Pod, Option<PodUsage>)], signal: Signal, layout: Layout) -> Vec<String> {
    let mut candidates: Vec<_> =
        pods.iter().map(|(pod, usage)| Candidate { pod, usage: usage.as_ref() }).collect();
    rank(&mut candidates, signal, layout);
    candidates.iter().map(|candidate| crate::spec::name(candidate.pod).to_owned()).collect()
}

#[test]
fn eviction_ranks_memory_by_excess_and_priority() {
    let pods = [
        (
            pod("guaranteed", with_requests(0, json!({"memory": "1Gi"}))),
            Some(uses_memory(900 * MI)),
        ),
        (
            pod("small-excess", with_requests(0, json!({"memory": "100Mi"}))),
            Some(uses_memory(110 * MI)),
        ),
        (pod("important", with_requests(1000, json!({}))), Some(uses_memory(800 * MI))),
        (pod("large-excess", with_requests(0, json!({}))), Some(uses_memory(300 * MI))),
        (pod("unknown", with_requests(5000, json!({}))), None),
        (pod("humble", with_requests(-5, json!({"memory": "200Mi"}))), Some(uses_memory(200 * MI))),
    ];
    assert_eq!(
        order(&pods, Signal::Memory, Layout::Single),
        ["unknown", "large-excess", "small-excess", "important", "humble", "guaranteed"]
    );
}

#[test]
fn eviction_ranks_pids_by_priority_then_usage() {
    let tasks = |count| {
        let cgroup = CgroupUsage { tasks: Some(count), ..CgroupUsage::default() };
        Some(PodUsage { cgroup, ..PodUsage::default() })
    };
    let pods = [
        (pod("bomb", with_requests(10, json!({}))), tasks(5000)),
        (pod("few", with_requests(0, json!({}))), tasks(2)),
        (pod("many", with_requests(0, json!({}))), tasks(20)),
        (pod("unknown", with_requests(0, json!({}))), None),
    ];
    assert_eq!(order(&pods, Signal::Pid, Layout::Single), ["unknown", "many", "few", "bomb"]);
}

fn space(mebibytes: u64, inodes: u64) -> Space {
    Space { bytes: mebibytes * MI, inodes }
}

fn uses_disk(rootfs: Space, logs: Space, volume: Space) -> PodUsage {
    PodUsage {
        containers: vec![ContainerUsage {
            name: "c".to_owned(),
            rootfs: Some(rootfs),
            logs: Some(logs),
            ..ContainerUsage::default()
        }],
        volumes: [("v".to_owned(), volume), ("m".to_owned(), space(5000, 5000))].into(),
        ..PodUsage::default()
    }
}

#[test]
fn eviction_ranks_by_disk_usage_on_the_file_system() {
    let spec = |requests: Value| {
        json!({
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}],
        })
    };
    let none = space(0, 0);
    let pods = [
        (pod("writes", spec(json!({}))), Some(uses_disk(space(100, 1), none, none))),
        (pod("logs", spec(json!({}))), Some(uses_disk(none, space(200, 2), none))),
        (pod("stores", spec(json!({}))), Some(uses_disk(none, none, space(50, 900)))),
        (
            pod("requests", spec(json!({"ephemeral-storage": "1Gi"}))),
            Some(uses_disk(none, none, space(1000, 10))),
        ),
    ];
    for (signal, layout, expected) in [
        (Signal::NodeFs, Layout::Single, ["logs", "writes", "stores", "requests"]),
        (Signal::ImageFs, Layout::Single, ["logs", "writes", "stores", "requests"]),
        (Signal::NodeFs, Layout::Dedicated, ["logs", "stores", "writes", "requests"]),
        (Signal::ContainerFs, Layout::Dedicated, ["writes", "logs", "stores", "requests"]),
        (Signal::NodeFs, Layout::Split, ["logs", "writes", "stores", "requests"]),
        // All of them have an inode; the requested storage is subtracted from that of the last.
        (Signal::NodeFsInodes, Layout::Single, ["stores", "logs", "writes", "requests"]),
    ] {
        assert_eq!(order(&pods, signal, layout), expected, "{signal:?} {layout:?}");
    }
}

#[test]
fn eviction_by_ephemeral_storage_limits() {
    let spec = json!({
        "containers": [
            {"name": "c", "resources": {"limits": {"ephemeral-storage": "10240Ki"}}},
            {"name": "free"},
        ],
        "volumes": [
            {"name": "v", "emptyDir": {"sizeLimit": "20Mi"}},
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "6000Mi"}},
        ],
    });
    let limited = pod("p", spec);
    assert!(limits_storage(&limited) && limits_volumes(&limited));
    let asks_only = pod("p", with_requests(0, json!({"ephemeral-storage": "1"})));
    assert!(!limits_storage(&asks_only) && !limits_volumes(&asks_only));
    let volume = json!({"name": "v", "emptyDir": {"sizeLimit": "0"}});
    let none = pod("p", json!({"containers": [], "volumes": [volume]}));
    assert!(!limits_volumes(&none), "nothing is no limit");
    let none = space(0, 0);
    let message = |usage: &PodUsage, layout| exceeded(&limited, usage, layout).map(|e| e.message);
    let (rootfs, logs) = (space(6, 1), space(4, 1));
    assert_eq!(
        message(&uses_disk(rootfs, logs, none), Layout::Single),
        None,
        "as much as is allowed"
    );
    let pods = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ";
    assert_eq!(
        message(&uses_disk(rootfs, logs, space(1, 1)), Layout::Single).as_deref(),
        Some(pods)
    );
    let volumes = "Usage of EmptyDir volume \"v\" exceeds the limit \"20Mi\". ";
    assert_eq!(
        message(&uses_disk(none, none, space(21, 1)), Layout::Single).as_deref(),
        Some(volumes)
    );
    let mut memory = uses_disk(none, none, none);
    memory.volumes.insert("m".to_owned(), space(6001, 1));
    let volumes = "Usage of EmptyDir volume \"m\" exceeds the limit \"6000Mi\". ";
    assert_eq!(message(&memory, Layout::Single).as_deref(), Some(volumes));

    // The sum of the containers' limits is higher, so only the one container exceeds its own.
    let two = json!({"containers": [
        {"name": "c", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
        {"name": "d", "resources": {"limits": {"ephemeral-storage": "90Mi"}}},
    ]});
    let two = pod("p", two);
    let usage = uses_disk(space(8, 1), space(8, 1), none);
    let container = "Container c exceeded its local ephemeral storage limit \"10Mi\". ";
    assert_eq!(exceeded(&two, &usage, Layout::Single).unwrap().message, container);
    assert_eq!(exceeded(&two, &usage, Layout::Dedicated), None, "its layer is elsewhere");
}

#[test]
fn eviction_message_equals_upstream() {
    let victim = pod("p", with_requests(0, json!({"memory": "64Mi"})));
    let usage = uses_memory(300 * MI);
    let observations = seen(&[(Signal::Memory, 99 * MI as i64, 8 * GI)]);
    let due = [hard(Signal::Memory, milli(100 * MI as i64))];
    let candidate = Candidate { pod: &victim, usage: Some(&usage) };
    let evicted = eviction_message(Resource::Memory, candidate, &due, &observations);
    assert_eq!(
        evicted.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. \
         Container c was using 300Mi, request is 64Mi, has larger consumption of memory. "
    );
    assert_eq!(
        evicted.annotations,
        map(&[
            ("offending_containers", "c"),
            ("offending_containers_usage", "300Mi"),
            ("starved_resource", "memory"),
        ])
    );
    // A part of the capacity is given in bytes, and amounts below 1Ki with decimal suffixes.
    let modest = pod("p", with_requests(0, json!({})));
    let usage = uses_disk(space(3, 1), space(1, 1), space(0, 0));
    let observations = seen(&[(Signal::NodeFs, 1000, 10 * GI)]);
    let due = [hard(Signal::NodeFs, Amount::Part(0.1))];
    let candidate = Candidate { pod: &modest, usage: Some(&usage) };
    assert_eq!(
        eviction_message(Resource::EphemeralStorage, candidate, &due, &observations).message,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1073741840, available: 1k. \
         Container c was using 4Mi, request is 0, has larger consumption of ephemeral-storage. "
    );
    let unknown = Candidate { pod: &modest, usage: None };
    let evicted = eviction_message(Resource::Pids, unknown, &[], &observations);
    assert_eq!(evicted.message, "The node was low on resource: pids. ");
    assert!(evicted.annotations.is_empty());
    // Pod-level requests are named too.
    let whole =
        json!({"resources": {"requests": {"memory": "1024Mi"}}, "containers": [{"name": "d"}]});
    let whole = pod("p", whole);
    let usage = uses_memory(5 * MI);
    let evicted = eviction_message(
        Resource::Memory,
        Candidate { pod: &whole, usage: Some(&usage) },
        &[],
        &observations,
    );
    assert_eq!(
        evicted.message,
        "The node was low on resource: memory. Pod p was using 5Mi, request is 1Gi, has larger consumption of memory. "
    );
    assert_eq!(evicted.annotations["offending_pod_usage"], "5Mi");
}

prop_compose! {
    fn any_pod()(index in 0u32..1000, priority in -3i32..3, requested in 0u64..8, used in proptest::option::of(0u64..8))
        -> (Pod, Option<PodUsage>) {
        let requests = json!({"memory": format!("{requested}Mi")});
        (pod(&format!("p{index}"), with_requests(priority, requests)), used.map(|used| uses_memory(used * MI)))
    }
}

proptest! {
    #[test]
    fn eviction_ranks_pods_above_requests_first(pods in proptest::collection::vec(any_pod(), 0..20)) {
        let mut candidates: Vec<_> =
            pods.iter().map(|(pod, usage)| Candidate { pod, usage: usage.as_ref() }).collect();
        rank(&mut candidates, Signal::Memory, Layout::Single);
        prop_assert_eq!(candidates.len(), pods.len());
        let keys: Vec<_> = candidates.iter().map(|candidate| {
            let requests = crate::resources::requests(candidate.pod.spec.as_ref().unwrap());
            let requested = crate::qos::units_of(Some(&requests), "memory");
            let used = candidate.usage.map(|usage| usage.cgroup.memory.unwrap().working_set as i64);
            let group = match used { None => 0, Some(used) if used > requested => 1, Some(_) => 2 };
            let priority = if group == 0 { 0 } else { crate::spec::priority(candidate.pod) };
            (group, priority, if group == 0 { 0 } else { requested - used.unwrap() })
        }).collect();
        prop_assert!(keys.is_sorted(), "{:?}", keys);
    }

    #[test]
    fn eviction_pressure_lasts_for_the_transition_period(
        evaluations in proptest::collection::vec((0u64..20, any::<bool>()), 1..60),
        grace in 0u64..30, transition in 1u64..60,
    ) {
        let threshold = Threshold { grace: Duration::from_secs(grace), ..hard(Signal::Memory, milli(GI)) };
        let mut tracker = Tracker::new(vec![threshold], Duration::from_secs(transition));
        let start = Instant::now();
        let (mut now, mut since, mut last) = (0, None, None);
        for (pause, short) in evaluations {
            now += pause;
            let available = if short { 0 } else { 2 * GI };
            let evaluation = tracker.evaluate(&seen(&[(Signal::Memory, available, 8 * GI)]), start + Duration::from_secs(now));
            since = if short { since.or(Some(now)) } else { None };
            last = if short { Some(now) } else { last };
            prop_assert_eq!(evaluation.pressure.memory, last.is_some_and(|last| now - last < transition));
            prop_assert_eq!(!evaluation.due.is_empty(), since.is_some_and(|since| now - since >= grace));
        }
    }

    #[test]
    fn eviction_config_parser_never_panics(name in ".{0,20}", text in ".{0,12}") {
        for signal in [name.as_str(), "memory.available"] {
            let texts = map(&[(signal, &text)]);
            let _ = parse(&texts, &texts, &[(signal, 1)], &texts);
        }
    }
}
