use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::{decide_on, made_static, node_with, pod, refusal, with_priority, with_requests};

const CRITICAL: i32 = 2_000_000_000;

/// A guaranteed pod.
fn guaranteed(amounts: Value) -> Pod {
    pod(json!({"containers": [
        {"name": "c", "resources": {"requests": amounts, "limits": amounts}},
    ]}))
}

fn full(pods: &[Pod]) -> (Ledger, Vec<Ticket>) {
    let mut ledger = Ledger::default();
    let tickets = pods.iter().map(|pod| ledger.enter(Reservation::new(pod))).collect();
    (ledger, tickets)
}

/// Indexes in `pods` of the victims for `new`.
fn victims(new: &Pod, pods: &[Pod]) -> Result<Vec<usize>, String> {
    let (ledger, tickets) = full(pods);
    let node = node_with(json!({}), json!([]));
    match decide_on(new, &node, &ledger, NodePressure::default()) {
        Decision::Admit { victims, waits, .. } => {
            assert_eq!(waits, !victims.is_empty());
            let place = |ticket| tickets.iter().position(|known| known == ticket).unwrap();
            Ok(victims.iter().map(place).collect())
        }
        Decision::Reject { verdict, .. } => Err(format!("{}: {}", verdict.reason, verdict.message)),
    }
}

fn cpu(amount: &str) -> Pod {
    with_requests(json!({"cpu": amount}))
}

#[test]
fn preemption_chooses_the_fewest_and_least_guaranteed() {
    let critical = |amount: &str| with_priority(cpu(amount), CRITICAL);
    let sure = |amount: &str| guaranteed(json!({"cpu": amount, "memory": "1Mi"}));
    for (new, there, expected) in [
        // It fits.
        (critical("1"), vec![cpu("3")], vec![]),
        // One that is enough, and not the larger one.
        (critical("1"), vec![cpu("1500m"), cpu("1"), cpu("1500m")], vec![1]),
        // One large rather than two small.
        (critical("2"), vec![cpu("1"), cpu("1"), cpu("2")], vec![2]),
        // Of equals, the youngest.
        (critical("1"), vec![cpu("2"), cpu("1"), cpu("1")], vec![2]),
        // No single pod is enough.
        (critical("3500m"), vec![cpu("2"), cpu("1"), cpu("1")], vec![0, 2, 1]),
        // Guaranteed pods go last.
        (critical("1"), vec![sure("2"), cpu("2")], vec![1]),
        (critical("3"), vec![sure("2"), cpu("2")], vec![1, 0]),
        // Critical pods are not preempted.
        (critical("1"), vec![critical("2"), cpu("2")], vec![1]),
        // A pod of higher priority preempts a critical one.
        (with_priority(cpu("2"), CRITICAL + 1000), vec![critical("4")], vec![0]),
        (made_static(cpu("2")), vec![cpu("4")], vec![0]),
    ] {
        assert_eq!(victims(&new, &there), Ok(expected), "{:?}", new.spec);
    }
    let ten: Vec<Pod> = (0..10).map(|_| pod(json!({}))).collect();
    assert_eq!(victims(&critical("1"), &ten), Ok(vec![9]), "the number of pods is an amount too");
}

#[test]
fn preemption_failure_gives_the_reason() {
    let none = "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: ";
    let critical = |amounts: Value| with_priority(with_requests(amounts), CRITICAL);
    let there = [critical(json!({"cpu": "3"})), cpu("1")];
    // A pod of equal priority is never a victim.
    assert_eq!(
        victims(&critical(json!({"cpu": "2"})), &there),
        Err(format!("{none}[(res: cpu, q: 1000), ]"))
    );
    // More than the node has.
    assert_eq!(
        victims(&critical(json!({"cpu": "5", "memory": "9Gi"})), &[]),
        Err(format!("{none}[(res: cpu, q: 1000), (res: memory, q: 1073741824), ]"))
    );
    // Preemption frees resources only.
    let mut elsewhere = critical(json!({"cpu": "4"}));
    elsewhere.spec.as_mut().unwrap().node_name = Some("m".to_owned());
    let refused =
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name";
    assert_eq!(victims(&elsewhere, &[cpu("4")]), Err(refused.to_owned()));
    // No preemption for a pod that is rejected anyway.
    let mut guarded = critical(json!({"cpu": "4"}));
    let profile = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    guarded.spec.as_mut().unwrap().security_context = serde_json::from_value(profile).unwrap();
    let refused = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(victims(&guarded, &[cpu("4")]), Err(refused.to_owned()));
    // Priority below critical does not preempt for amounts.
    let error = victims(&with_priority(cpu("4"), CRITICAL - 1), &[cpu("4")]).unwrap_err();
    assert!(error.starts_with("OutOfcpu"), "{error}");
}

#[test]
fn preemption_waits_for_earlier_victims() {
    let node = node_with(json!({}), json!([]));
    let (mut ledger, tickets) = full(&[cpu("3"), cpu("1")]);
    let critical = |amount: &str| with_priority(cpu(amount), CRITICAL);
    let decide =
        |pod: &Pod, ledger: &Ledger| decide_on(pod, &node, ledger, NodePressure::default());
    let first = decide(&critical("2"), &ledger);
    assert_eq!(
        first,
        Decision::Admit {
            victims: vec![tickets[0]],
            waits: true,
            insufficient: Some("cpu".to_owned())
        }
    );
    ledger.preempt(tickets[0]);
    ledger.preempt(tickets[0]);
    ledger.enter(Reservation::new(&critical("2")));
    // The rest of what the victim frees is enough for another one.
    assert_eq!(
        decide(&critical("1"), &ledger),
        Decision::Admit { victims: vec![], waits: true, insufficient: None }
    );
    ledger.enter(Reservation::new(&critical("1")));
    // The next one needs another victim.
    let next = decide(&critical("1"), &ledger);
    assert_eq!(
        next,
        Decision::Admit {
            victims: vec![tickets[1]],
            waits: true,
            insufficient: Some("cpu".to_owned())
        }
    );
    // For pods that are not critical, the victim still counts.
    assert!(refusal(&cpu("1m"), &node, &ledger).is_some());
    assert_eq!(ledger.victims().collect::<Vec<_>>(), [tickets[0]]);
    ledger.release(tickets[0]);
    assert_eq!((ledger.victims().count(), ledger.total().get("cpu")), (0, 4000));
}

/// Pods of one resource, any class, some of them critical.
fn crowd() -> impl Strategy<Value = Vec<Pod>> {
    let one = (1i64..1500, 0..3, prop_oneof![5 => Just(0), 1 => Just(CRITICAL)]);
    let one = one.prop_map(|(milli, class, priority)| {
        let amount = json!({"cpu": format!("{milli}m")});
        let pod = match class {
            0 => guaranteed(json!({"cpu": format!("{milli}m"), "memory": "1Ki"})),
            // Best effort, but for its overhead.
            1 => pod(json!({"overhead": amount})),
            _ => with_requests(amount),
        };
        with_priority(pod, priority)
    });
    prop::collection::vec(one, 1..9)
}

proptest! {
    /// Victims are sufficient; each of them is needed; none of them is as critical as the new pod.
    #[test]
    fn preemption_victims_are_sufficient_and_needed(there in crowd(), wanted in 1i64..5000) {
        let new = with_priority(with_requests(json!({"cpu": format!("{wanted}m")})), CRITICAL);
        let sum = |pods: &mut dyn Iterator<Item = &Pod>| -> i64 {
            pods.map(|pod| Amounts::of_pod(pod).get("cpu")).sum()
        };
        let free = 4000 - sum(&mut there.iter());
        let need = wanted - free;
        match victims(&new, &there) {
            Ok(chosen) => {
                let pods: Vec<&Pod> = chosen.iter().map(|at| &there[*at]).collect();
                prop_assert!(pods.iter().all(|pod| !spec::is_critical(pod)));
                let freed = sum(&mut pods.iter().copied());
                prop_assert!(freed >= need);
                for pod in &pods {
                    prop_assert!(freed - Amounts::of_pod(pod).get("cpu") < need, "one is too many");
                }
            }
            Err(_) => {
                let most = sum(&mut there.iter().filter(|pod| !spec::is_critical(pod)));
                prop_assert!(most < need, "others could be preempted");
            }
        }
    }

    /// With several resources, too, victims are sufficient.
    #[test]
    fn preemption_victims_are_sufficient_for_all_resources(sizes in prop::collection::vec((1i64..1000, 1i64..2048), 1..9)) {
        let amounts = |cpu, memory| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
        let there: Vec<Pod> = sizes.iter().map(|(cpu, memory)| with_requests(amounts(*cpu, *memory))).collect();
        let new = with_priority(with_requests(amounts(3500, 7000)), CRITICAL);
        let chosen = victims(&new, &there).unwrap();
        let mut rest = Ledger::default();
        let staying = there.iter().enumerate().filter(|(at, _)| !chosen.contains(at));
        staying.for_each(|(_, pod)| { rest.enter(Reservation::new(pod)); });
        let node = node_with(json!({}), json!([]));
        prop_assert_eq!(
            decide_on(&new, &node, &rest, NodePressure::default()),
            Decision::Admit { victims: vec![], waits: false, insufficient: None }
        );
    }
}
