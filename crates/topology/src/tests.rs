use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

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
fn hints_merge_as_upstreams_do() {
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
fn pods_get_what_upstream_gives_them() {
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
        let cpu = checkpoint::write_cpu("static", allocator.cpu_state().unwrap());
        assert_eq!(cpu, scenario["cpuState"].to_string_as_written(), "scenario {index}: {line}");
        let memory = checkpoint::write_memory("Static", allocator.memory_state().unwrap());
        let memory: Value = serde_json::from_str(&memory).unwrap();
        let expected = &scenario["memoryState"];
        assert_eq!(comparable(&memory), comparable(expected), "scenario {index}: {line}");
        let kept = checkpoint::read_memory("Static", &expected.to_string()).expect("its checksum");
        fresh.restore_memory(Some(kept)).expect("the machine is the same");
    }
}

trait AsWritten {
    fn to_string_as_written(&self) -> String;
}

impl AsWritten for Value {
    /// In the order of upstream's fields, which a map of JSON does not keep.
    fn to_string_as_written(&self) -> String {
        let state = checkpoint::read_cpu("static", &self.to_string()).expect("its checksum");
        checkpoint::write_cpu("static", &state)
    }
}

proptest! {
    /// Whatever the hints, the merged one is within the machine, and within one node if it must be.
    #[test]
    fn merged_hints_are_within_the_policy(
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
