use proptest::prelude::*;

use super::*;
use crate::fixture;

fn amounts(memory: u64) -> Amounts {
    Amounts::from([(MEMORY.to_owned(), memory)])
}

fn policy(nodes: u32, each: u64) -> Policy {
    let machine = fixture::machine(&format!("{nodes},{nodes},{nodes},1,{nodes},0"), each, 0);
    let reserved: Reserved = [(0, amounts(10))].into();
    Policy::new(&machine.nodes, &reserved, &amounts(10)).unwrap()
}

fn pod(uid: usize, containers: &[(Kind, u64)]) -> PodRequest {
    let container = |(index, (kind, memory)): (usize, &(Kind, u64))| ContainerRequest {
        name: format!("c{index}"),
        kind: *kind,
        cpus: None,
        memory: amounts(*memory),
    };
    let containers = containers.iter().enumerate().map(container).collect();
    PodRequest { uid: uid.to_string(), guaranteed: true, own: None, containers }
}

#[test]
fn memory_reservations_must_add_up() {
    let machine = fixture::machine("2,2,2,1,2,0", 1000, 0);
    let new = |reserved: &[(u32, u64)], wanted| {
        let reserved = reserved.iter().map(|(node, own)| (*node, amounts(*own))).collect();
        Policy::new(&machine.nodes, &reserved, &amounts(wanted)).map(|_| ())
    };
    assert_eq!(new(&[(0, 10), (1, 20)], 30), Ok(()));
    assert_eq!(new(&[(2, 10)], 10), Err(PolicyError::NoNode(2)));
    assert_eq!(new(&[], 0), Err(PolicyError::NothingReserved));
    let sum = PolicyError::Sum { resource: MEMORY.to_owned(), reserved: 10, wanted: 30 };
    assert_eq!(new(&[(0, 10)], 30), Err(sum));
    assert!(new(&[], 30).is_err());
    let many = fixture::machine("17,17,17,1,17,0", 1000, 0);
    let new = Policy::new(&many.nodes, &[(0, amounts(1))].into(), &amounts(1));
    assert_eq!(new.map(|_| ()), Err(PolicyError::TooManyNodes(17)));
}

#[test]
fn memory_huge_page_sizes_have_names() {
    let names = [2 << 20, 1 << 30, 64 << 10, 1_u64 << 60, 1500].map(huge_pages);
    let expected = ["2Mi", "1Gi", "64Ki", "1Ei", "1500"].map(|size| format!("hugepages-{size}"));
    assert_eq!(names, expected);
}

#[test]
fn memory_numa_nodes_are_in_one_group() {
    let mut policy = policy(3, 100);
    let mut admit = |uid, memory| {
        let pod = pod(uid, &[(Kind::Main, memory)]);
        policy.allocate(&pod, &pod.containers[0], Hint::default())?;
        Ok(policy.nodes(&pod.uid, "c0").unwrap().to_string())
    };
    assert_eq!(admit(1, 30), Ok("0".to_owned()));
    assert_eq!(admit(2, 150), Ok("1,2".to_owned()), "node 0 serves single containers");
    assert_eq!(admit(3, 40), Ok("0".to_owned()), "1 and 2 are a group");
    assert_eq!(admit(4, 120), Err(Refusal::Memory(AllocateError::NoNodes)));
    assert_eq!(admit(5, 45), Ok("1,2".to_owned()), "in the group is room");
    assert!(policy.release("2") && policy.release("5") && !policy.release("5"));
    assert_eq!(policy.state().nodes[&1].cells, [1]);
}

#[test]
fn memory_of_init_containers_is_reused() {
    let mut policy = policy(1, 100);
    let pod = pod(1, &[(Kind::Init, 60), (Kind::Sidecar, 20), (Kind::Main, 30)]);
    for container in &pod.containers {
        policy.allocate(&pod, container, Hint::default()).unwrap();
    }
    let free = |policy: &Policy| policy.state().nodes[&0].memory_map[MEMORY].free;
    assert_eq!(
        free(&policy),
        30,
        "what the sidecar and the other have is of the init container's 60"
    );
    assert!(!policy.begin(&pod, "c0"));
    assert!(policy.begin(&pod, "c1"));
    assert_eq!(free(&policy), 40);
    assert!(!policy.begin(&pod, "c2"));
    policy.release("1");
    assert_eq!(free(&policy), 90);
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Init), Just(Kind::Sidecar), Just(Kind::Main)]
}

proptest! {
    /// Free and given away are all there is; a kept state is taken back; in the end all is free.
    #[test]
    fn memory_assignments_are_complete(
        steps in prop::collection::vec(
            (0..6_usize, 0..3_u8, prop::collection::vec((kind(), 1..200_u64), 1..4)), 1..20),
    ) {
        let fresh = policy(3, 150);
        let mut policy = fresh.clone();
        let mut pods = BTreeMap::new();
        for (uid, what, mut containers) in steps {
            containers.sort_by_key(|(kind, _)| *kind == Kind::Main);
            let new = pod(uid, &containers);
            match (what, pods.get(&uid)) {
                (0, _) => {
                    policy.release(&new.uid);
                    pods.remove(&uid);
                }
                (1, Some(pod)) => {
                    policy.begin(pod, &pod.containers[pod.containers.len() - 1].name);
                }
                (_, Some(_)) => {}
                (_, None) => {
                    let mut all = new.containers.iter();
                    let given = all.try_for_each(|c| policy.allocate(&new, c, Hint::default()));
                    match given {
                        Ok(()) => drop(pods.insert(uid, new)),
                        Err(_) => drop(policy.release(&new.uid)),
                    }
                }
            }
            for node in policy.state().nodes.values() {
                let table = &node.memory_map[MEMORY];
                prop_assert_eq!(table.free + table.reserved, table.allocatable);
                prop_assert!(node.number_of_assignments >= 0);
            }
            let held: u64 = policy.state().nodes.values().map(|n| n.memory_map[MEMORY].reserved).sum();
            let blocks = policy.state().assignments.values().flat_map(BTreeMap::values).flatten();
            prop_assert_eq!(held, blocks.map(|block| block.size).sum::<u64>());
            prop_assert_eq!(fresh.clone().restore(policy.state().clone()), Ok(()));
        }
        for uid in 0..6_usize {
            policy.release(&uid.to_string());
        }
        prop_assert_eq!(&policy.state().nodes, &fresh.state().nodes);
    }
}
