use std::collections::{BTreeMap, BTreeSet};

use longshore_generators::{NUMBERS, hostile, text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::hints::{Hint, Hints, Nodes};

const POLICIES: [(&str, TopologyPolicy); 4] = [
    ("none", TopologyPolicy::None),
    ("best-effort", TopologyPolicy::BestEffort),
    ("restricted", TopologyPolicy::Restricted),
    ("single-numa-node", TopologyPolicy::SingleNumaNode),
];

fn policy(name: &str) -> TopologyPolicy {
    POLICIES.into_iter().find(|(known, _)| *known == name).unwrap().1
}

fn nodes(count: u32, prefer_closest: bool) -> Nodes {
    let shape = format!("{count},{count},{count},1,{count},0");
    Nodes::new(&fixture::machine(&shape, 1, 0).nodes, prefer_closest)
}

fn hint(text: &str) -> Hint {
    let (nodes, preferred) = text.split_at(text.len() - 1);
    let mask = || nodes.split('.').map(|node| node.parse::<u32>().unwrap()).collect();
    Hint { nodes: (nodes != "*").then(mask), preferred: preferred == "+" }
}

/// What upstream's own code makes of hints: nodes, policy, whether the closest are preferred, the
/// hints of each resource; and the best hint, and whether it is admitted.
#[test]
fn topology_hints_merge_as_upstream() {
    for line in include_str!("testdata/merges.tsv").lines() {
        let [count, name, closest, providers, best, admits] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let provider = |(index, text): (usize, &str)| match text {
            "any" => Hints::new(),
            "none" => Hints::from([(index.to_string(), Vec::new())]),
            hints => Hints::from([(index.to_string(), hints.split(' ').map(hint).collect())]),
        };
        let providers: Vec<Hints> = providers.split(" / ").enumerate().map(provider).collect();
        let nodes = nodes(count.parse().unwrap(), closest == "1");
        let merged = policy(name).merge(&nodes, &providers);
        assert_eq!(merged, (hint(best), admits == "1"), "{line}");
    }
}

fn amount(text: &str) -> u64 {
    text.strip_suffix("Mi").unwrap().parse::<u64>().unwrap() << 20
}

fn request(pod: &Value) -> PodRequest {
    let container = |own: &Value| {
        let text = |field: &str| own[field].as_str().unwrap_or_default();
        let mut memory = Amounts::from([("memory".to_owned(), amount(text("memory")))]);
        if !text("huge").is_empty() {
            memory.insert("hugepages-2Mi".to_owned(), amount(text("huge")));
        }
        ContainerRequest {
            name: text("name").to_owned(),
            kind: match text("kind") {
                "init" => Kind::Init,
                "sidecar" => Kind::Sidecar,
                _ => Kind::Main,
            },
            cpus: text("cpu").parse().ok(),
            memory,
        }
    };
    PodRequest {
        uid: pod["uid"].as_str().unwrap().to_owned(),
        guaranteed: pod["guaranteed"].as_bool().unwrap(),
        own: None,
        containers: pod["containers"].as_array().unwrap().iter().map(container).collect(),
    }
}

fn allocator(scenario: &Value) -> Allocator {
    let text = |field: &str| scenario[field].as_str().unwrap();
    let number = |field: &str| scenario[field].as_u64().unwrap();
    let machine = fixture::machine(text("shape"), number("memory"), number("hugePages"));
    let options: BTreeMap<String, String> =
        serde_json::from_value(scenario["options"].clone()).unwrap();
    let cpu = cpu::Policy::new(
        machine.cpus.clone(),
        cpu::Options::parse(&options, |_| true).unwrap(),
        Some(text("reservedCpus").parse().unwrap()),
        usize::try_from(number("reservedCount")).unwrap(),
    );
    let reserved: Vec<u64> = serde_json::from_value(scenario["reservedMemory"].clone()).unwrap();
    let of = |memory: u64| Amounts::from([("memory".to_owned(), memory)]);
    let by_node = (0..).zip(reserved.iter().map(|memory| of(*memory))).collect();
    let memory = memory::Policy::new(&machine.nodes, &by_node, &of(reserved.iter().sum()));
    let options = TopologyOptions::default();
    let scope = text("scope") == "pod";
    let topology = Topology::new(policy(text("policy")), scope, options, &machine).unwrap();
    Allocator::new(topology, Some(cpu.unwrap()), Some(memory.unwrap()))
}

/// The order of a container's blocks is Go's whim, and the checksum follows it.
fn comparable(state: &Value) -> Value {
    let mut state = state.clone();
    state.as_object_mut().unwrap().remove("checksum");
    for containers in state["entries"].as_object_mut().into_iter().flat_map(|all| all.values_mut())
    {
        for blocks in containers.as_object_mut().unwrap().values_mut() {
            if let Some(blocks) = blocks.as_array_mut() {
                blocks.sort_by_key(|block| block["type"].to_string());
            }
        }
    }
    state
}

/// Pods come and go as they did at upstream's managers: the same are let in, with the same words
/// otherwise, and have the same in the end. What upstream wrote is taken over.
#[test]
fn topology_assignments_match_upstream() {
    for (index, line) in include_str!("testdata/scenarios.jsonl").lines().enumerate() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        let mut allocator = allocator(&scenario);
        let mut fresh = allocator.clone();
        let mut pods = BTreeMap::new();
        for (step, op) in scenario["ops"].as_array().unwrap().iter().enumerate() {
            let uid = op["uid"].as_str().unwrap_or_default();
            match op["op"].as_str().unwrap() {
                "end" => drop(allocator.release(uid)),
                "start" => {
                    let pod: &PodRequest = &pods[uid];
                    for container in &pod.containers {
                        allocator.begin(pod, &container.name);
                    }
                }
                _ => {
                    let pod = request(&op["pod"]);
                    let (reason, message) = match allocator.admit(&pod) {
                        Ok(()) => ("", String::new()),
                        Err(refusal) => (refusal.reason(), refusal.to_string()),
                    };
                    let expected =
                        [&op["reason"], &op["message"]].map(|v| v.as_str().unwrap_or(""));
                    assert_eq!(
                        [reason, &message],
                        expected,
                        "scenario {index} step {step}: {line}"
                    );
                    pods.insert(pod.uid.clone(), pod);
                }
            }
        }
        let cpu = checkpoint::write_cpu(
            checkpoint::Form::Plain,
            "static",
            allocator.cpu_state().unwrap(),
        );
        assert_eq!(cpu, scenario["cpuState"].to_string_as_written(), "scenario {index}: {line}");
        let memory = checkpoint::write_memory(
            checkpoint::Form::Plain,
            "Static",
            allocator.memory_state().unwrap(),
        );
        let memory: Value = serde_json::from_str(&memory).unwrap();
        let expected = &scenario["memoryState"];
        assert_eq!(comparable(&memory), comparable(expected), "scenario {index}: {line}");
        let kept =
            checkpoint::read_memory(checkpoint::Form::Plain, "Static", &expected.to_string())
                .expect("its checksum");
        fresh.restore_memory(Some(kept)).expect("the machine is the same");
    }
}

trait AsWritten {
    fn to_string_as_written(&self) -> String;
}

impl AsWritten for Value {
    /// In the order of upstream's fields, which a map of JSON does not keep.
    fn to_string_as_written(&self) -> String {
        let state = checkpoint::read_cpu(checkpoint::Form::Plain, "static", &self.to_string())
            .expect("its checksum");
        checkpoint::write_cpu(checkpoint::Form::Plain, "static", &state)
    }
}

proptest! {
    /// Whatever the hints, the merged one is within the machine, and within one node if it must be.
    #[test]
    fn topology_merged_hints_respect_the_policy(
        count in 1..5_u32,
        which in 0..4_usize,
        closest: bool,
        lists in prop::collection::vec(
            prop::collection::vec((prop::option::of(1..32_u64), any::<bool>()), 0..4), 0..4),
    ) {
        let all: NumaMask = (0..count).collect();
        let mask = |bits: u64| (0..count).filter(|node| bits >> node & 1 == 1).collect::<NumaMask>();
        let providers: Vec<Hints> = lists.iter().map(|list| {
            let hint = |(bits, preferred): &(Option<u64>, bool)| {
                Hint { nodes: bits.map(mask), preferred: *preferred }
            };
            Hints::from([("r".to_owned(), list.iter().map(hint).collect())])
        }).collect();
        let (_, policy) = POLICIES[which];
        let (hint, admits) = policy.merge(&nodes(count, closest), &providers);
        prop_assert!(hint.nodes.is_none_or(|nodes| !nodes.is_empty() && nodes.is_within(all)));
        match policy {
            TopologyPolicy::None | TopologyPolicy::BestEffort => prop_assert!(admits),
            TopologyPolicy::Restricted => prop_assert_eq!(admits, hint.preferred),
            TopologyPolicy::SingleNumaNode => {
                prop_assert!(!admits || hint.nodes.is_none_or(|nodes| nodes.len() == 1));
            }
        }
    }
}

#[test]
fn topology_options_are_checked() {
    let parse = |name: &str, value: &str| {
        TopologyOptions::parse(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    };
    assert!(parse("prefer-closest-numa-nodes", "true").unwrap().prefer_closest);
    assert_eq!(parse("max-allowable-numa-nodes", "12").unwrap().most_nodes, 12);
    for (name, value) in
        [("max-allowable-numa-nodes", "7"), ("max-allowable-numa-nodes", "many"), ("fast", "true")]
    {
        assert!(parse(name, value).is_err(), "{name}={value}");
    }
}

/// Amounts and counts at their limits.
fn number() -> impl Strategy<Value = u64> {
    let limits = NUMBERS.iter().map(|number| *number as u64).chain([u64::MAX - 1]);
    prop_oneof![
        2 => prop::sample::select(limits.collect::<Vec<_>>()),
        1 => 0..1_u64 << 33,
    ]
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..9_usize, 1 => number().prop_map(|number| number as usize)]
}

fn name() -> impl Strategy<Value = String> {
    let usual = prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "g", "h"]);
    prop_oneof![9 => usual.prop_map(str::to_owned), 1 => text()]
}

/// Machines of up to eight nodes of any size and distance, whose last CPUs may be offline.
fn any_machine() -> impl Strategy<Value = Machine> {
    let shapes = [
        "1,1,1,1,1,0",
        "1,1,4,2,1,1",
        "1,2,8,2,2,0",
        "2,2,8,2,4,1",
        "2,1,4,2,2,0",
        "4,2,8,1,4,0",
        "8,2,16,2,8,1",
    ];
    let pages = prop::collection::vec(
        (prop::sample::select(vec![0, 1 << 21, 1 << 30, u64::MAX]), number()),
        0..3,
    );
    let node = (number(), pages, prop::collection::vec(number(), 0..9));
    let nodes = prop::collection::vec(node, 8);
    let first = prop::sample::select(vec![0_u32, 56, 60, 64, u32::MAX - 8]);
    let first = prop_oneof![4 => Just(0_u32), 1 => first];
    (prop::sample::select(shapes.to_vec()), nodes, first, 0..4_usize).prop_map(
        |(shape, nodes, first, offline)| {
            let mut machine = fixture::machine(shape, 0, 0);
            for (own, (memory, huge_pages, distances)) in machine.nodes.iter_mut().zip(nodes) {
                let id = own.id + first;
                *own = Node { id, memory, huge_pages, distances };
            }
            let cpus = &machine.cpus;
            let kept = cpus.len().saturating_sub(offline).max(1);
            let kept = cpus.all().iter().take(kept).collect::<Vec<_>>().into_iter();
            let info = |cpu| {
                let own = cpus.info(cpu).unwrap();
                (cpu, CpuInfo { numa: own.numa + first, ..own })
            };
            machine.cpus = kept.map(info).collect();
            machine
        },
    )
}

fn any_pod() -> impl Strategy<Value = PodRequest> {
    let resources = ["memory", "hugepages-2Mi", "hugepages-1Gi", "hugepages-0", ""];
    let resource = prop::sample::select(resources.map(str::to_owned).to_vec());
    let memory = prop::collection::btree_map(resource, number(), 0..4);
    let kind = prop::sample::select(vec![Kind::Init, Kind::Sidecar, Kind::Main]);
    let container = (name(), kind, prop::option::of(count()), memory)
        .prop_map(|(name, kind, cpus, memory)| ContainerRequest { name, kind, cpus, memory })
        .boxed();
    let few = prop::collection::vec(container.clone(), 0..6);
    let many = prop::collection::vec(container, 20).prop_map(|mut many| {
        many.iter_mut().enumerate().for_each(|(at, own)| own.name = at.to_string());
        many
    });
    let containers = prop_oneof![19 => few, 1 => many];
    let uid = prop::sample::select(vec!["1", "2", "3"]);
    (uid, prop::bool::weighted(0.9), containers).prop_map(|(uid, guaranteed, mut containers)| {
        let mut names = BTreeSet::new();
        containers.retain(|container| names.insert(container.name.clone()));
        PodRequest { uid: uid.to_owned(), guaranteed, own: None, containers }
    })
}

/// Managers of each kind on a machine, as far as it can have them.
fn any_allocator() -> impl Strategy<Value = (Machine, Allocator)> {
    let flags = prop::collection::vec(any::<bool>(), 8);
    let policy = prop::sample::select(POLICIES.to_vec());
    let reserved = (count(), prop::option::of(prop::collection::vec(0..9_u32, 0..4)), number());
    (any_machine(), flags, policy, reserved).prop_map(|(machine, flags, policy, reserved)| {
        let (count, cpus, memory) = reserved;
        let options = cpu::Options {
            full_cores_only: flags[0],
            spread_over_nodes: flags[1],
            align_by_socket: flags[2],
            spread_over_cores: flags[3],
            strict_reservation: flags[4],
            by_uncore: flags[5],
        };
        let cpus = cpus.map(CpuSet::from_iter);
        let cpu = cpu::Policy::new(machine.cpus.clone(), options, cpus, count)
            .or_else(|_| cpu::Policy::new(machine.cpus.clone(), cpu::Options::default(), None, 1));
        let amounts = Amounts::from([("memory".to_owned(), memory)]);
        let by_node = |node: &Node| [(node.id, amounts.clone())].into();
        let memory = machine
            .nodes
            .first()
            .and_then(|node| memory::Policy::new(&machine.nodes, &by_node(node), &amounts).ok());
        let options = TopologyOptions { prefer_closest: flags[6], ..TopologyOptions::default() };
        let topology = Topology::new(policy.1, flags[7], options, &machine).unwrap();
        let allocator = Allocator::new(topology, cpu.ok(), memory);
        (machine, allocator)
    })
}

/// Whether nobody has what another has, or what is not there.
fn check(machine: &Machine, allocator: &Allocator, fresh: &Allocator) -> Result<(), TestCaseError> {
    if let (Some(state), Some(all)) = (allocator.cpu_state(), fresh.cpu_state()) {
        let mut left = state.shared.clone();
        for containers in state.assignments.values() {
            let own = containers.values().fold(CpuSet::new(), |own, cpus| own.union(cpus));
            prop_assert!(own.is_disjoint(&left), "{state:?}");
            left = left.union(&own);
        }
        prop_assert_eq!(&left, &all.shared);
        prop_assert!(left.is_subset(&machine.cpus.all()));
        let text = checkpoint::write_cpu(checkpoint::Form::Plain, "static", state);
        let kept = checkpoint::read_cpu(checkpoint::Form::Plain, "static", &text);
        prop_assert_eq!(kept.as_ref(), Ok(state));
        prop_assert_eq!(fresh.clone().restore_cpu(kept.ok()), Ok(()));
    }
    if let Some(state) = allocator.memory_state() {
        for table in state.nodes.values().flat_map(|node| node.memory_map.values()) {
            prop_assert_eq!(table.free + table.reserved, table.allocatable);
        }
        let kept = checkpoint::read_memory(
            checkpoint::Form::Plain,
            "Static",
            &checkpoint::write_memory(checkpoint::Form::Plain, "Static", state),
        );
        prop_assert_eq!(kept.as_ref(), Ok(state));
        prop_assert_eq!(fresh.clone().restore_memory(kept.ok()), Ok(()));
    }
    Ok(())
}

proptest! {
    /// Finding 1: whatever pods ask for, and whatever the machine has.
    #[test]
    fn extremes_of_requests_are_served_or_refused(
        (machine, fresh) in any_allocator(),
        steps in prop::collection::vec((any_pod(), 0..4_u8), 1..6),
    ) {
        let mut allocator = fresh.clone();
        for (pod, what) in &steps {
            match what {
                0 => drop(allocator.release(&pod.uid)),
                1 => {
                    for container in &pod.containers {
                        allocator.begin(pod, &container.name);
                        allocator.cpus(&pod.uid, &container.name);
                        allocator.memory_nodes(&pod.uid, &container.name);
                    }
                }
                _ => {
                    let held = allocator.holders().any(|holder| holder == pod.uid);
                    let given = allocator.admit(pod);
                    if let Err(refusal) = &given {
                        prop_assert!(!refusal.to_string().is_empty());
                        prop_assert!(allocator.holders().all(|holder| holder != pod.uid));
                    }
                    for container in pod.containers.iter().filter(|_| !held && given.is_ok()) {
                        let own = allocator.own_cpus(&pod.uid, &container.name).map(CpuSet::len);
                        let wanted = container.cpus.filter(|cpus| pod.guaranteed && *cpus > 0);
                        prop_assert_eq!(own, wanted);
                    }
                }
            }
            check(&machine, &allocator, &fresh)?;
        }
        for uid in ["1", "2", "3"] {
            allocator.release(uid);
        }
        prop_assert_eq!(allocator.cpu_state(), fresh.cpu_state());
        let nodes = |allocator: &Allocator| allocator.memory_state().map(|state| state.nodes.clone());
        prop_assert_eq!(nodes(&allocator), nodes(&fresh));
    }

    /// Finding 1: so many CPUs can be reserved that there are not.
    #[test]
    fn extremes_of_reservations_are_kept_or_refused(
        machine in any_machine(),
        count in count(),
        reserved in prop::option::of(prop::collection::vec(any::<u32>(), 0..4)),
        by_node in prop::collection::btree_map(0..9_u32, prop::collection::btree_map(name(), number(), 0..3), 0..4),
        wanted in prop::collection::btree_map(name(), number(), 0..3),
    ) {
        let reserved = reserved.map(CpuSet::from_iter);
        match cpu::Policy::new(machine.cpus.clone(), cpu::Options::default(), reserved, count) {
            Ok(policy) => prop_assert!(count <= policy.machine().len()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        if let Err(error) = memory::Policy::new(&machine.nodes, &by_node, &wanted) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// Finding 1: what a state file says, with a checksum or without.
    #[test]
    fn extremes_of_state_files_are_refused_or_restored(
        (machine, fresh) in any_allocator(),
        own in "[0-9]{0,2}(-[0-9]{1,2})?",
        cpu in hostile(json!({
            "policyName": "static", "defaultCpuSet": "0-3", "checksum": 0,
            "entries": {"1": {"a": "0", "b": "1"}, "2": {"c": "2-3"}},
        }), 4),
        memory in hostile(json!({
            "policyName": "Static", "checksum": 0,
            "machineState": {
                "0": {"numberOfAssignments": 1, "cells": [0], "memoryMap": {
                    "memory": {"total": 9, "systemReserved": 1, "allocatable": 8, "reserved": 4, "free": 4},
                    "hugepages-1Gi": {"total": 9, "systemReserved": 1, "allocatable": 8, "reserved": 4, "free": 4},
                }},
                "1": {"numberOfAssignments": 2, "cells": [1, 0], "memoryMap": {}},
            },
            "entries": {"1": {"a": [{"numaAffinity": [0, 1], "type": "memory", "size": 4}]}},
        }), 6),
        pod in any_pod(),
    ) {
        let mut allocator = fresh.clone();
        let mut held = cpu.clone();
        held["defaultCpuSet"] = machine.cpus.all().to_string().into();
        held["entries"]["1"]["a"] = own.into();
        for text in [cpu, held] {
            let state = checkpoint::read_cpu(checkpoint::Form::Plain, "static", &text.to_string());
            if let Ok(state) = state && allocator.restore_cpu(Some(state)).is_ok() {
                prop_assert!(allocator.cpu_state().unwrap().shared.is_subset(&machine.cpus.all()));
            }
        }
        if let Ok(state) = checkpoint::read_memory(checkpoint::Form::Plain, "Static", &memory.to_string()) {
            let _ = allocator.restore_memory(Some(state));
        }
        let _ = allocator.admit(&pod);
        for container in &pod.containers {
            allocator.begin(&pod, &container.name);
        }
        for uid in ["1", "2", "3"] {
            allocator.release(uid);
        }
    }

    /// Finding 1: a state may have any amounts that its machine has, and no others.
    #[test]
    fn extremes_of_kept_memory_are_as_the_machine_has_it(
        (_, fresh) in any_allocator(),
        amounts in prop::collection::vec(number(), 5),
        nodes in prop::collection::vec(prop_oneof![0..9_u32, any::<u32>()], 0..4),
        (blocks, assignments) in (1..4_usize, any::<i64>()),
    ) {
        let Some(known) = fresh.memory_state() else { return Ok(()) };
        let mut state = known.clone();
        let block = memory::Block { nodes: nodes.clone(), resource: memory::MEMORY.to_owned(), size: amounts[0] };
        state.assignments = [("1".to_owned(), [("a".to_owned(), vec![block; blocks])].into())].into();
        for id in &nodes {
            if let Some(node) = state.nodes.get_mut(id) {
                node.number_of_assignments = assignments;
                node.cells = nodes.clone();
                if let Some(table) = node.memory_map.get_mut(memory::MEMORY) {
                    (table.free, table.reserved, table.allocatable) = (amounts[1], amounts[2], amounts[3]);
                }
            }
        }
        let mut allocator = fresh.clone();
        if allocator.restore_memory(Some(state)).is_ok() {
            allocator.memory_nodes("1", "a");
            allocator.release("1");
        }
    }

    /// Finding 1: a list of CPUs names no more than a kernel can have.
    #[test]
    fn extremes_of_cpu_lists_are_refused_or_read(
        words in prop::collection::vec((text(), text(), prop::bool::weighted(0.6)), 0..4),
        numbers in prop::collection::vec((any::<bool>(), number(), number()), 0..4),
    ) {
        let words = words.iter().map(|(first, last, alone)| match alone {
            true => first.clone(),
            false => format!("{first}-{last}"),
        });
        let numbers = numbers.iter().map(|(alone, first, last)| match alone {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        let (words, numbers) = (words.collect::<Vec<_>>().join(","), numbers.collect::<Vec<_>>().join(","));
        for list in [&words, &numbers] {
            if let Ok(cpus) = list.parse::<CpuSet>() {
                prop_assert!(cpus.len() <= 8192, "{list}");
                prop_assert_eq!(cpus.to_string().parse(), Ok(cpus));
            }
        }
    }

    #[test]
    fn extremes_of_options_are_refused_or_taken(
        texts in prop::collection::btree_map(
            prop_oneof![
                prop::sample::select(vec![
                    "full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket",
                    "distribute-cpus-across-cores", "strict-cpu-reservation",
                    "prefer-align-cpus-by-uncorecache", "prefer-closest-numa-nodes",
                    "max-allowable-numa-nodes",
                ]).prop_map(str::to_owned),
                text(),
            ],
            text(),
            0..3,
        ),
        machine in any_machine(),
        gate: bool,
    ) {
        let _ = cpu::Options::parse(&texts, |_| gate);
        if let Ok(options) = TopologyOptions::parse(&texts) {
            prop_assert!(options.most_nodes >= 8);
            prop_assert!(Topology::new(TopologyPolicy::Restricted, true, options, &machine).is_some());
        }
    }
}

/// Finding 1: lists whose CPUs could not be counted in a lifetime.
#[test]
fn extremes_of_cpu_lists_take_no_time() {
    for list in ["0-18446744073709551615", "0-4294967295", "4294967295", "8191-8192", "0-8191,9999"]
    {
        assert!(list.parse::<CpuSet>().is_err(), "{list}");
    }
    let often = vec!["0-8191"; 100].join(",");
    assert_eq!(often.parse::<CpuSet>().unwrap().to_string(), "0-8191");
}

/// Finding 1: with so many nodes and sizes of pages, hints have more combinations than can be tried.
#[test]
fn extremes_of_machines_take_no_time() {
    let sizes = [64 << 10, 2 << 20, 32 << 20, 1 << 30];
    let mut machine = fixture::machine("8,8,64,1,8,0", 1 << 40, 0);
    for node in &mut machine.nodes {
        node.huge_pages = sizes.map(|size| (size, 100)).to_vec();
    }
    let own = Amounts::from([("memory".to_owned(), 1 << 30)]);
    let cpu = cpu::Policy::new(machine.cpus.clone(), cpu::Options::default(), None, 1).unwrap();
    let memory = memory::Policy::new(&machine.nodes, &[(0, own.clone())].into(), &own).unwrap();
    let options = TopologyOptions::default();
    let topology = Topology::new(TopologyPolicy::BestEffort, false, options, &machine).unwrap();
    let mut allocator = Allocator::new(topology, Some(cpu), Some(memory));
    let pages = sizes.map(|size| (memory::huge_pages(size), size));
    let memory = own.into_iter().chain(pages).collect();
    let container =
        ContainerRequest { name: "c".to_owned(), kind: Kind::Main, cpus: Some(2), memory };
    let pod = PodRequest {
        uid: "u".to_owned(),
        guaranteed: true,
        own: None,
        containers: vec![container],
    };
    assert_eq!(allocator.admit(&pod), Ok(()));
    assert_eq!(allocator.memory_nodes("u", "c").map(NumaMask::len), Some(1));
}

/// Finding 1: cores of different sizes, no pages of a size that is not there, and a machine whose
/// pods have all CPUs for themselves.
#[test]
fn extremes_of_allocations_are_kept() {
    let reserved = Amounts::from([("memory".to_owned(), 1)]);
    let new = |strict_reservation| {
        let mut machine = fixture::machine("1,1,4,2,1,0", 1 << 30, 0);
        machine.cpus.remove(&CpuSet::from([5, 7]));
        let options = cpu::Options { strict_reservation, ..cpu::Options::default() };
        let cpu = cpu::Policy::new(machine.cpus, options, Some(CpuSet::from([0])), 1).unwrap();
        let by_node = [(0, reserved.clone())].into();
        let memory = memory::Policy::new(&machine.nodes, &by_node, &reserved).unwrap();
        Allocator::new(Topology::default(), Some(cpu), Some(memory))
    };
    let amounts = |memory: u64| {
        let pages = ("hugepages-1Gi".to_owned(), 0);
        Amounts::from([("memory".to_owned(), memory), pages])
    };
    let container = |cpus| ContainerRequest {
        name: "c".to_owned(),
        kind: Kind::Main,
        cpus: Some(cpus),
        memory: amounts(1 << 20),
    };
    for (strict, cpus, shared) in [(false, 2, "0,2-3,6"), (true, 5, "")] {
        let mut allocator = new(strict);
        let containers = vec![container(cpus)];
        let pod = PodRequest { uid: "u".to_owned(), guaranteed: true, own: None, containers };
        assert_eq!(allocator.admit(&pod), Ok(()));
        let (cpu, memory) = (allocator.cpu_state().unwrap(), allocator.memory_state().unwrap());
        let mut next = new(strict);
        let kept = checkpoint::read_cpu(
            checkpoint::Form::Plain,
            "static",
            &checkpoint::write_cpu(checkpoint::Form::Plain, "static", cpu),
        );
        assert_eq!(next.restore_cpu(kept.ok()), Ok(()), "{strict}");
        assert_eq!(next.restore_memory(Some(memory.clone())), Ok(()));
        let own = next.own_cpus("u", "c").unwrap();
        assert!(own.len() == cpus && !own.contains(0), "{own}");
        assert_eq!(next.cpu_state().unwrap().shared.to_string(), shared);
    }
}

/// Devices of which the request is on one node.
struct OnNode {
    node: u32,
    fails: bool,
    /// The nodes that they were allocated on.
    allocated: Vec<(String, Option<NumaMask>)>,
}

impl DeviceProvider for OnNode {
    fn is_empty(&self) -> bool {
        false
    }

    fn hints(&mut self, _: &str) -> Hints {
        let hint = |nodes: &[u32], preferred| Hint {
            nodes: Some(nodes.iter().copied().collect()),
            preferred,
        };
        let hints = vec![hint(&[self.node], true), hint(&[0, 1], false)];
        Hints::from([("example.com/gpu".to_owned(), hints)])
    }

    fn pod_hints(&mut self) -> Hints {
        self.hints("")
    }

    fn allocate(&mut self, container: &str, nodes: Option<NumaMask>) -> Result<(), DeviceRefusal> {
        self.allocated.push((container.to_owned(), nodes));
        match self.fails {
            true => Err(DeviceRefusal::Failed("none left".to_owned())),
            false => Ok(()),
        }
    }
}

#[test]
fn topology_of_devices_and_cpus_is_the_same() {
    let machine = fixture::machine("2,2,8,1,2,0", 1 << 30, 0);
    let pod = |uid: &str, guaranteed, cpus| PodRequest {
        uid: uid.to_owned(),
        guaranteed,
        own: None,
        containers: vec![ContainerRequest {
            name: "c".to_owned(),
            kind: Kind::Main,
            cpus: Some(cpus),
            memory: Amounts::new(),
        }],
    };
    let one = |node: u32| -> NumaMask { [node].into_iter().collect() };
    for whole_pods in [false, true] {
        let options = cpu::Options::parse(&BTreeMap::new(), |_| false).unwrap();
        let cpus = cpu::Policy::new(machine.cpus.clone(), options, None, 1).unwrap();
        let options = TopologyOptions::parse(&BTreeMap::new()).unwrap();
        let topology =
            Topology::new(TopologyPolicy::SingleNumaNode, whole_pods, options, &machine).unwrap();
        let mut allocator = Allocator::new(topology, Some(cpus), None);
        let mut devices = OnNode { node: 1, fails: false, allocated: Vec::new() };
        allocator.admit_with(&pod("1", true, 2), &mut devices).unwrap();
        assert_eq!(devices.allocated, [("c".to_owned(), Some(one(1)))]);
        let own = allocator.own_cpus("1", "c").unwrap();
        assert!(own.iter().all(|cpu| machine.cpus.info(cpu).unwrap().numa == 1), "{own}");

        // A pod without CPUs of its own is aligned too.
        devices.node = 0;
        allocator.admit_with(&pod("2", false, 0), &mut devices).unwrap();
        assert_eq!(devices.allocated[1], ("c".to_owned(), Some(one(0))));

        // CPUs do not suffice on the node of the devices.
        let refusal = allocator.admit_with(&pod("3", true, 4), &mut devices).unwrap_err();
        assert_eq!(refusal, Refusal::Topology);
        devices.node = 1;
        let refusal = allocator.admit_with(&pod("3", true, 3), &mut devices).unwrap_err();
        assert_eq!(refusal, Refusal::Topology);

        // Without devices, there are no CPUs either.
        devices.fails = true;
        let refusal = allocator.admit_with(&pod("4", true, 2), &mut devices).unwrap_err();
        let expected = "Allocate failed due to none left, which is unexpected";
        assert_eq!(
            (refusal.reason(), refusal.to_string().as_str()),
            ("UnexpectedAdmissionError", expected)
        );
        assert!(allocator.own_cpus("4", "c").is_none());
    }
}
