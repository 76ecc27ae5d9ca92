use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fixture;
use crate::request::Amounts;

/// What upstream's own code picks: machine, available CPUs, how many, group size, the manners
/// (spread over cores, over nodes, within a cache), and what comes of it.
#[test]
fn cpu_assignment_matches_upstream() {
    for line in include_str!("../testdata/assignments.tsv").lines() {
        let [shape, available, wanted, group, manners, expected] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let cpus = fixture::cpus(shape);
        let (available, wanted) = (available.parse().unwrap(), wanted.parse().unwrap());
        let on = |index| manners.as_bytes()[index] == b'1';
        let manner = Manner { spread: on(0), by_uncore: on(2) };
        let picked = match on(1) {
            true => distributed(&cpus, &available, wanted, group.parse().unwrap(), manner),
            false => packed(&cpus, &available, wanted, manner),
        };
        let picked = match picked {
            Ok(picked) => picked.to_string(),
            Err(error) => format!("! {error}"),
        };
        assert_eq!(picked, expected, "{line}");
    }
}

fn print(hint: &Hint) -> String {
    let nodes = match hint.nodes {
        None => "*".to_owned(),
        Some(nodes) => nodes.to_string().replace(',', "."),
    };
    format!("{nodes}{}", if hint.preferred { "+" } else { "-" })
}

/// What upstream's own code says: machine, available and reusable CPUs, how many, whether sockets
/// count as one, and the hints.
#[test]
fn cpu_hints_match_upstream() {
    for line in include_str!("../testdata/hints.tsv").lines() {
        let [shape, available, reusable, wanted, align, expected] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let cpus = fixture::cpus(shape);
        let mut policy = Policy::new(cpus, Options::default(), None, 1).unwrap();
        policy.options.align_by_socket = align == "1";
        let (available, reusable) = (available.parse().unwrap(), reusable.parse().unwrap());
        let hints = policy.suits(&available, &reusable, wanted.parse().unwrap());
        let hints: Vec<String> = hints.iter().map(print).collect();
        assert_eq!(hints.join(" "), expected, "{line}");
    }
}

#[test]
fn cpu_manager_options_are_checked() {
    let parse = |pairs: &[(&str, &str)], alpha| {
        let texts: BTreeMap<_, _> =
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Options::parse(&texts, |gate| alpha || gate == "CPUManagerPolicyBetaOptions")
    };
    let options = parse(&[("full-pcpus-only", "1"), ("strict-cpu-reservation", "false")], false);
    assert_eq!(options, Ok(Options { full_cores_only: true, ..Options::default() }));
    for (pairs, alpha, expected) in [
        (&[("align-by-socket", "true")][..], false, "needs the feature gate CPUManagerPolicyAlpha"),
        (&[("full-pcpus-only", "yes")], false, "bad value \"yes\""),
        (&[("fast", "true")], true, "unknown option \"fast\""),
        (
            &[("full-pcpus-only", "true"), ("distribute-cpus-across-cores", "true")],
            true,
            "can not be used at the same time",
        ),
    ] {
        let error = parse(pairs, alpha).unwrap_err().to_string();
        assert!(error.contains(expected), "{pairs:?}: {error}");
    }
    assert!(parse(&[("align-by-socket", "true")], true).is_ok());
}

#[test]
fn cpu_reservations_must_fit_the_machine() {
    let cpus = || fixture::cpus("1,1,4,2,1,1");
    let set = |text: &str| Some(text.parse::<CpuSet>().unwrap());
    let new = |reserved, count| Policy::new(cpus(), Options::default(), reserved, count);
    assert_eq!(new(None, 2).unwrap().reserved.to_string(), "0,4", "a whole core");
    assert_eq!(new(set("1,3"), 2).unwrap().reserved.to_string(), "1,3");
    assert_eq!(new(None, 0).unwrap_err(), PolicyError::NothingReserved);
    for (reserved, count) in [(set("1,3"), 3), (set("7-8"), 2), (None, 9)] {
        assert!(new(reserved.clone(), count).is_err(), "{reserved:?} {count}");
    }
    let strict = Options { strict_reservation: true, ..Options::default() };
    let policy = Policy::new(cpus(), strict, set("0"), 1).unwrap();
    assert_eq!(policy.state().shared.to_string(), "1-7");
}

#[test]
fn cpu_state_must_fit_the_machine() {
    let restore = |reserved: &str, strict, shared: &str, own: &str| {
        let options = Options { strict_reservation: strict, ..Options::default() };
        let reserved: CpuSet = reserved.parse().unwrap();
        let count = reserved.len();
        let mut policy =
            Policy::new(fixture::cpus("1,1,4,1,1,0"), options, Some(reserved), count).unwrap();
        let mut state = State { shared: shared.parse().unwrap(), ..State::default() };
        if !own.is_empty() {
            let containers = BTreeMap::from([("c".to_owned(), own.parse().unwrap())]);
            state.assignments.insert("p".to_owned(), containers);
        }
        policy.restore(state).map(|()| policy.state().shared.to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(restore("0", false, "0,2-3", "1").as_deref(), Ok("0,2-3"));
    assert_eq!(restore("0", false, "", "").as_deref(), Ok("0-3"));
    assert_eq!(restore("0", true, "1-2", "3").as_deref(), Ok("1-2"));
    for (reserved, strict, shared, own, expected) in [
        ("0", false, "", "1", "default cpuset cannot be empty"),
        ("0-1", false, "0,2-3", "1", "not all reserved cpus: \"0-1\" are present"),
        ("0", true, "0-3", "", "some of strictly reserved cpus: \"0\" are present"),
        ("0", false, "0-3", "1", "pod: p, container: c cpuset: \"1\" overlaps with"),
        ("0", false, "0,2", "1", "current set of available CPUs \"0-3\" doesn't match"),
        ("0", false, "0,2-4", "1", "doesn't match with CPUs in state \"0-4\""),
    ] {
        let error = restore(reserved, strict, shared, own).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

fn pod(uid: usize, containers: &[(Kind, usize)]) -> PodRequest {
    let container = |(index, (kind, cpus)): (usize, &(Kind, usize))| ContainerRequest {
        name: format!("c{index}"),
        kind: *kind,
        cpus: Some(*cpus),
        memory: Amounts::new(),
    };
    let containers = containers.iter().enumerate().map(container).collect();
    PodRequest { uid: uid.to_string(), guaranteed: true, own: None, containers }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Init), Just(Kind::Sidecar), Just(Kind::Main)]
}

fn options() -> impl Strategy<Value = Options> {
    (0..5_u8, any::<bool>(), any::<bool>()).prop_map(|(which, align, _)| Options {
        full_cores_only: which == 1 || which == 2,
        spread_over_nodes: which == 2,
        spread_over_cores: which == 3,
        by_uncore: which == 4,
        align_by_socket: align,
        strict_reservation: false,
    })
}

proptest! {
    /// Whatever comes and goes: what runs at the same time shares no CPU, none is lost, the
    /// reserved ones stay shared, and in the end all are back.
    #[test]
    fn cpu_assignments_are_exclusive_and_complete(
        shape in prop::sample::select(vec!["1,1,4,1,1,0", "2,2,6,2,2,1", "4,2,16,2,4,0", "3,3,9,2,3,1"]),
        options in options(),
        steps in prop::collection::vec(
            (0..6_usize, any::<bool>(), prop::collection::vec((kind(), 0..6_usize), 1..5)), 1..20),
    ) {
        let cpus = fixture::cpus(shape);
        let mut policy = Policy::new(cpus.clone(), options, None, 1).unwrap();
        for (uid, ends, mut containers) in steps {
            if ends {
                policy.release(&uid.to_string());
                continue;
            }
            containers.sort_by_key(|(kind, _)| *kind == Kind::Main);
            let pod = pod(uid, &containers);
            if policy.state.assignments.contains_key(&pod.uid) {
                continue;
            }
            let given: Result<(), Refusal> =
                pod.containers.iter().try_for_each(|c| policy.allocate(&pod, c, Hint::default()));
            if given.is_err() {
                policy.release(&pod.uid);
            }
            let lasting = |name: &String| {
                !pod.containers.iter().any(|c| c.name == *name && c.kind == Kind::Init)
            };
            let mut seen = policy.state.shared.clone();
            for (uid, containers) in &policy.state.assignments {
                let mut own = CpuSet::new();
                for (name, cpus) in containers {
                    // Init containers end before others start, and may have had the same.
                    if *uid == pod.uid && lasting(name) {
                        prop_assert!(own.is_disjoint(cpus));
                        own = own.union(cpus);
                    }
                    if let Some(c) = pod.containers.iter().find(|c| *uid == pod.uid && c.name == *name) {
                        prop_assert_eq!(Some(cpus.len()), c.cpus);
                    }
                }
                let all = containers.values().fold(CpuSet::new(), |all, cpus| all.union(cpus));
                prop_assert!(all.is_disjoint(&seen));
                seen = seen.union(&all);
            }
            prop_assert_eq!(seen, cpus.all());
            prop_assert!(policy.reserved.is_subset(&policy.state.shared));
        }
        for uid in 0..6 {
            policy.release(&uid.to_string());
        }
        prop_assert_eq!(&policy.state.shared, &cpus.all());
    }
}
