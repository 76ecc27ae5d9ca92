//! Pods with pod-level resources.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use checkpoint::Form;

const MIB: u64 = 1 << 20;

fn container(name: &str, kind: Kind, cpus: usize, mib: u64) -> ContainerRequest {
    let memory = [("memory".to_owned(), mib * MIB)].into_iter().filter(|(_, size)| *size > 0);
    ContainerRequest { name: name.to_owned(), kind, cpus: Some(cpus), memory: memory.collect() }
}

fn pod(uid: &str, cpus: usize, mib: u64, containers: &[ContainerRequest]) -> PodRequest {
    let memory = Amounts::from([("memory".to_owned(), mib * MIB)]);
    PodRequest {
        uid: uid.to_owned(),
        guaranteed: true,
        own: Some(OwnRequest { cpus, memory }),
        containers: containers.to_vec(),
    }
}

/// Two nodes with four CPUs each, of which one is reserved, and 1 GiB each, of which 1 MiB is reserved.
fn allocator(policy: TopologyPolicy, whole_pods: bool) -> Allocator {
    let machine = fixture::machine("2,2,8,1,2,0", 1 << 30, 0);
    let cpu = cpu::Policy::new(machine.cpus.clone(), cpu::Options::default(), None, 1).unwrap();
    let reserved = Amounts::from([("memory".to_owned(), MIB)]);
    let by_node = [(0, reserved.clone())].into();
    let memory = memory::Policy::new(&machine.nodes, &by_node, &reserved).unwrap();
    let options = TopologyOptions::parse(&BTreeMap::new()).unwrap();
    let topology = Topology::new(policy, whole_pods, options, &machine).unwrap();
    Allocator::new(topology, Some(cpu), Some(memory))
}

/// What the managers of another daemon have that reads the files of this one.
fn restarted(own: &Allocator, policy: TopologyPolicy, whole_pods: bool) -> Allocator {
    let mut next = allocator(policy, whole_pods);
    let (cpu, memory) = (own.cpu_state().unwrap(), own.memory_state().unwrap());
    let text = checkpoint::write_cpu(Form::WithPods, "static", cpu);
    let kept = checkpoint::read_cpu(Form::WithPods, "static", &text).unwrap();
    assert_eq!(kept, *cpu);
    next.restore_cpu(Some(kept)).unwrap();
    let text = checkpoint::write_memory(Form::WithPods, "Static", memory);
    let kept = checkpoint::read_memory(Form::WithPods, "Static", &text).unwrap();
    assert_eq!(kept, *memory);
    next.restore_memory(Some(kept)).unwrap();
    next
}

fn cpus(allocator: &Allocator, uid: &str, name: &str) -> String {
    allocator.cpus(uid, name).unwrap().to_string()
}

fn mib(allocator: &Allocator, uid: &str, name: &str) -> u64 {
    let blocks = &allocator.memory_state().unwrap().assignments[uid][name];
    blocks.iter().map(|block| block.size / MIB).sum()
}

/// Checksums that upstream's own tests have for these contents.
#[test]
fn checkpoints_with_pods_have_upstreams_checksums() {
    let own = BTreeMap::from([
        ("container1".to_owned(), "4-6".parse().unwrap()),
        ("container2".to_owned(), "1-3".parse().unwrap()),
    ]);
    let state = cpu::State {
        shared: "1-3".parse().unwrap(),
        assignments: [("pod".to_owned(), own)].into(),
        pods: [("pod".to_owned(), "4-6".parse().unwrap())].into(),
    };
    let text = checkpoint::write_cpu(Form::WithPods, "none", &state);
    assert!(
        text.ends_with(r#""podEntries":{"pod":{"cpuSet":"4-6"}},"checksum":2649431787}"#),
        "{text}"
    );
    assert_eq!(checkpoint::read_cpu(Form::WithPods, "none", &text), Ok(state.clone()));
    // As upstream without the gate.
    assert_eq!(checkpoint::read_cpu(Form::Plain, "none", &text), Err(StateError::Corrupt));
    let plain = cpu::State { pods: BTreeMap::new(), ..state };
    let text = checkpoint::write_cpu(Form::Plain, "none", &plain);
    assert_eq!(checkpoint::read_cpu(Form::WithPods, "none", &text), Ok(plain));

    let text = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1278640530}"#;
    let state = checkpoint::read_memory(Form::WithPods, "static", text).unwrap();
    assert_eq!(state.pods["pod"][0].size, 512);
    assert_eq!(checkpoint::write_memory(Form::WithPods, "static", &state), text);
    assert_eq!(checkpoint::read_memory(Form::Plain, "static", text), Err(StateError::Corrupt));
}

#[test]
fn pods_are_allocated_as_a_whole_and_parted() {
    let scope = (TopologyPolicy::SingleNumaNode, true);
    let mut allocator = allocator(scope.0, scope.1);
    let empty = allocator.clone();
    let own = pod(
        "u",
        4,
        100,
        &[
            container("first", Kind::Init, 0, 0),
            container("side", Kind::Sidecar, 1, 10),
            container("second", Kind::Init, 2, 50),
            container("third", Kind::Init, 0, 0),
            container("main", Kind::Main, 1, 20),
            container("rest", Kind::Main, 0, 0),
            container("other", Kind::Main, 0, 0),
        ],
    );
    allocator.admit(&own).unwrap();
    // Node 0 has the reserved CPU.
    let found: Vec<_> = ["first", "side", "second", "third", "main", "rest", "other", "none"]
        .map(|name| (name, cpus(&allocator, "u", name)))
        .into();
    let expected = [
        ("first", "4-7"),
        ("side", "4"),
        ("second", "5-6"),
        ("third", "5-7"),
        ("main", "5"),
        ("rest", "6-7"),
        ("other", "6-7"),
        ("none", "0-3"),
    ];
    assert_eq!(found, expected.map(|(name, cpus)| (name, cpus.to_owned())));
    let found = ["first", "side", "second", "third", "main", "rest", "other"]
        .map(|name| mib(&allocator, "u", name));
    assert_eq!(found, [100, 10, 50, 90, 20, 70, 70]);
    assert_eq!(allocator.memory_nodes("u", "rest"), Some([1].into_iter().collect()));
    assert!(!allocator.begin(&own, "main"), "its init containers' memory is the pod's");

    // Again, and after a restart: the same.
    let before = allocator.clone();
    allocator.admit(&own).unwrap();
    assert_eq!(allocator.cpu_state(), before.cpu_state());
    let mut next = restarted(&allocator, scope.0, scope.1);
    next.admit(&own).unwrap();
    assert_eq!(next.cpu_state(), before.cpu_state());
    assert_eq!(next.memory_state(), before.memory_state());

    // Node 0 has three CPUs left.
    let refusal = next.admit(&pod("v", 4, 10, &[container("c", Kind::Main, 0, 0)])).unwrap_err();
    assert_eq!(
        (refusal.reason(), refusal.to_string().as_str()),
        (
            "TopologyAffinityError",
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
        )
    );
    next.admit(&pod("v", 3, 10, &[container("c", Kind::Main, 0, 0)])).unwrap();
    assert_eq!(cpus(&next, "v", "c"), "1-3");
    assert_eq!(next.holders().filter(|uid| *uid == "v").count(), 4);
    assert!(next.release("u") && next.release("v") && !next.release("u"));
    assert_eq!(next.cpu_state(), empty.cpu_state());
    assert_eq!(next.memory_state(), empty.memory_state());
}

#[test]
fn pods_must_leave_something_to_containers_that_share() {
    let shares = container("shares", Kind::Main, 0, 0);
    let has_all = [container("main", Kind::Main, 2, 10), shares.clone()];
    let init = [
        container("side", Kind::Sidecar, 2, 1),
        container("init", Kind::Init, 0, 0),
        container("main", Kind::Main, 0, 0),
    ];
    let memory = [container("main", Kind::Main, 1, 20), shares.clone()];
    let main = "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no \
                cpus for shared containers";
    let first = "pod rejected, pod has shared init containers but no cpus available for them";
    let of_memory = "pod rejected, sum of exclusive container memory requests equals pod budget, \
                     leaving no memory for shared containers";
    for (containers, expected) in
        [(&has_all[..], main), (&init[..], first), (&memory[..], of_memory)]
    {
        let pod = pod("u", 2, 20, containers);
        // The topology manager admits it: there are only preferences.
        let mut best_effort = allocator(TopologyPolicy::BestEffort, true);
        let empty = best_effort.clone();
        let refusal = best_effort.admit(&pod).unwrap_err();
        let found = (refusal.reason(), refusal.to_string());
        assert_eq!(found, ("EmptyPodSharedPoolError", expected.to_owned()));
        assert_eq!(best_effort.cpu_state(), empty.cpu_state());
        assert_eq!(best_effort.memory_state(), empty.memory_state());
        let refusal = allocator(TopologyPolicy::Restricted, true).admit(&pod).unwrap_err();
        assert_eq!(refusal, Refusal::PodTopology { whole_pods: true });
    }
    // Nobody shares.
    let alone = pod("u", 2, 20, &[container("main", Kind::Main, 2, 20)]);
    assert_eq!(allocator(TopologyPolicy::Restricted, true).admit(&alone), Ok(()));
}

#[test]
fn containers_of_pods_are_allocated_one_by_one_in_their_scope() {
    let own = pod(
        "u",
        4,
        100,
        &[container("main", Kind::Main, 3, 20), container("rest", Kind::Main, 0, 0)],
    );
    for (policy, whole_pods) in [
        (TopologyPolicy::SingleNumaNode, false),
        (TopologyPolicy::None, false),
        (TopologyPolicy::None, true),
    ] {
        let mut allocator = allocator(policy, whole_pods);
        allocator.admit(&own).unwrap();
        let main = allocator.own_cpus("u", "main").unwrap().clone();
        assert_eq!(main.len(), 3);
        assert!(allocator.own_cpus("u", "rest").is_none(), "it shares the node's");
        assert_eq!(mib(&allocator, "u", "main"), 20);
        assert_eq!(allocator.memory_nodes("u", "rest"), None);
        assert!(allocator.cpu_state().unwrap().pods.is_empty());
        restarted(&allocator, policy, whole_pods);
    }
    let large = pod("u", 5, 100, &[container("main", Kind::Main, 5, 20)]);
    let refusal = allocator(TopologyPolicy::SingleNumaNode, false).admit(&large).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    );
}

#[test]
fn pods_without_whole_cpus_share_those_of_the_node() {
    let mut allocator = allocator(TopologyPolicy::SingleNumaNode, true);
    let own = pod("u", 0, 100, &[container("main", Kind::Main, 1, 20)]);
    allocator.admit(&own).unwrap();
    assert!(allocator.own_cpus("u", "main").is_none());
    assert_eq!(mib(&allocator, "u", "main"), 20);
    let burstable = PodRequest { guaranteed: false, uid: "v".to_owned(), ..own };
    allocator.admit(&burstable).unwrap();
    assert_eq!(allocator.holders().filter(|uid| *uid == "v").count(), 0);
}

fn containers() -> impl Strategy<Value = Vec<ContainerRequest>> {
    let kind = prop::sample::select(vec![Kind::Init, Kind::Sidecar, Kind::Main]);
    prop::collection::vec((kind, 0..4_usize, 0..60_u64), 1..6).prop_map(|mut all| {
        all.sort_by_key(|(kind, ..)| *kind == Kind::Main);
        let named = all.into_iter().enumerate();
        named
            .map(|(index, (kind, cpus, mib))| match cpus == 0 || mib == 0 {
                true => container(&format!("c{index}"), kind, 0, 0),
                false => container(&format!("c{index}"), kind, cpus, mib),
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes and goes: what pods have is disjoint, nothing is lost, their containers have some of
    /// it, and those that have something for themselves share it with nobody that runs beside them.
    #[test]
    fn pod_level_assignments_are_exclusive_and_complete(
        whole_pods: bool,
        steps in prop::collection::vec(
            (0..4_usize, any::<bool>(), 1..8_usize, 1..100_u64, containers()), 1..15),
    ) {
        let policy = TopologyPolicy::BestEffort;
        let mut allocator = allocator(policy, whole_pods);
        let empty = allocator.clone();
        let all: CpuSet = (0..8).collect();
        for (uid, ends, cpus, mib, containers) in steps {
            let uid = uid.to_string();
            let is_known = allocator.holders().any(|holder| holder == uid);
            if ends || is_known {
                allocator.release(&uid);
                continue;
            }
            let own = pod(&uid, cpus, mib, &containers);
            let admitted = allocator.admit(&own);
            let state = allocator.cpu_state().unwrap();
            if admitted.is_err() {
                prop_assert!(!state.assignments.contains_key(&uid));
            }
            if let (Ok(()), true) = (admitted, whole_pods) {
                let pool = &state.pods[&uid];
                prop_assert_eq!(pool.len(), cpus);
                let mut taken = CpuSet::new();
                for container in &containers {
                    let cpus = &state.assignments[&uid][&container.name];
                    prop_assert!(!cpus.is_empty() && cpus.is_subset(pool));
                    let is_own = own.cpus_of(container) > 0;
                    prop_assert!(!is_own || cpus.len() == own.cpus_of(container));
                    if container.kind != Kind::Init && is_own {
                        prop_assert!(cpus.is_disjoint(&taken));
                        taken = taken.union(cpus);
                    }
                }
                for container in containers.iter().filter(|own| own.kind != Kind::Init) {
                    let cpus = &state.assignments[&uid][&container.name];
                    prop_assert!(own.cpus_of(container) > 0 || cpus.is_disjoint(&taken));
                }
            }
            let mut seen = state.shared.clone();
            for (uid, containers) in &state.assignments {
                let parts = containers.values().fold(CpuSet::new(), |all, cpus| all.union(cpus));
                let held = state.pods.get(uid).unwrap_or(&parts);
                prop_assert!(held.is_disjoint(&seen));
                seen = seen.union(held);
            }
            prop_assert_eq!(&seen, &all);
            restarted(&allocator, policy, whole_pods);
        }
        for uid in 0..4 {
            allocator.release(&uid.to_string());
        }
        prop_assert_eq!(allocator.cpu_state(), empty.cpu_state());
        prop_assert_eq!(allocator.memory_state(), empty.memory_state());
    }
}
