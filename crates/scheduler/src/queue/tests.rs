#![allow(clippy::unwrap_used)]

use longshore_metrics::Registry;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::metrics::Metrics;
use crate::testing::pod;

fn queue() -> Queue {
    let metrics = Metrics::new(&Registry::default());
    Queue::new(Waits::default(), &metrics)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn prioritized(name: &str, priority: i32) -> Arc<Pod> {
    pod(name, "1", json!({"spec": {"priority": priority}}))
}

fn popped(queue: &mut Queue, now: u64) -> Option<String> {
    queue.pop(seconds(now)).map(|own| own.pod.name.to_string())
}

fn rejected() -> Failure {
    Failure::Rejected(vec!["NodeResourcesFit"])
}

#[test]
fn queue_orders_by_priority_and_then_by_time() {
    let mut queue = queue();
    for (name, priority, at) in [("a", 0, 1), ("b", 5, 3), ("c", 0, 0), ("d", 5, 2), ("e", 0, 1)] {
        queue.add(prioritized(name, priority), None, seconds(at));
    }
    let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, 9)).collect();
    assert_eq!(order, ["d", "b", "c", "a", "e"]);
}

#[test]
fn queue_doubles_the_pause_of_errors_up_to_the_longest() {
    for (count, expected) in
        [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (33, 10), (u32::MAX, 10)]
    {
        assert_eq!(pause(count, seconds(1), seconds(10)), seconds(expected), "{count}");
    }
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), None, seconds(0));
    let mut now = 0;
    for wait in [1, 2, 4, 8, 10, 10] {
        assert_eq!(popped(&mut queue, now), Some("p".into()));
        queue.fail("p", Failure::Error, seconds(now));
        assert_eq!(queue.sizes(), [0, 1, 0, 0]);
        assert_eq!(queue.next_backoff(), Some(seconds(now + wait)));
        now += wait;
    }
}

#[test]
fn queue_keeps_rejected_pods_until_a_change_helps_them() {
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), None, seconds(0));
    assert_eq!(popped(&mut queue, 0), Some("p".into()));
    queue.fail("p", rejected(), seconds(0));
    assert_eq!(popped(&mut queue, 100), None);
    queue.requeue("NodeAdd", seconds(100), |own| own.rejectors != ["NodeResourcesFit"]);
    assert_eq!(popped(&mut queue, 100), None);
    queue.requeue("NodeAdd", seconds(100), |own| own.rejectors == ["NodeResourcesFit"]);
    assert_eq!(popped(&mut queue, 100), Some("p".into()));
    // within its pause it is in backoff, but nothing else is there to do
    queue.fail("p", rejected(), seconds(100));
    queue.requeue("NodeAdd", seconds(100), |_| true);
    assert_eq!(queue.sizes(), [0, 1, 0, 0]);
    queue.add(pod("other", "1", json!({})), None, seconds(101));
    assert_eq!(popped(&mut queue, 101), Some("other".into()));
    assert_eq!(popped(&mut queue, 101), Some("p".into()));
}

#[test]
fn queue_tries_unschedulable_pods_again_after_five_minutes() {
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), None, seconds(0));
    popped(&mut queue, 0);
    queue.fail("p", rejected(), seconds(0));
    queue.flush(seconds(300));
    assert_eq!(popped(&mut queue, 300), None);
    queue.flush(seconds(301));
    assert_eq!(popped(&mut queue, 301), Some("p".into()));
}

#[test]
fn queue_holds_gated_pods_until_their_gates_are_gone() {
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), Some("SchedulingGates"), seconds(0));
    assert_eq!(queue.sizes(), [0, 0, 0, 1]);
    queue.requeue("NodeAdd", seconds(1), |_| true);
    assert_eq!(popped(&mut queue, 1), None);
    queue.update(pod("p", "2", json!({})), None, ("UnschedulablePodUpdate", false), seconds(2));
    assert_eq!(popped(&mut queue, 2), Some("p".into()));
}

/// Lines of the page of metrics that begin so, without the family's name.
fn series(registry: &Registry, family: &str) -> Vec<String> {
    let page = registry.text();
    let lines = page.lines().filter_map(|line| line.strip_prefix(family));
    lines.map(str::to_owned).collect()
}

#[test]
fn queue_counts_pods_that_come_in_and_those_that_are_rejected() {
    let registry = Registry::default();
    let mut queue = Queue::new(Waits::default(), &Metrics::new(&registry));
    let rejections = || series(&registry, "scheduler_unschedulable_pods");
    queue.add(pod("p", "1", json!({})), Some("SchedulingGates"), seconds(0));
    let gated = "{plugin=\"SchedulingGates\",profile=\"default-scheduler\"}";
    let fit = "{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"}";
    assert_eq!(rejections(), [format!("{gated} 1")]);
    let eliminated = "UnschedulablePodUpdatePodSchedulingGatesEliminated";
    queue.update(pod("p", "1", json!({})), None, (eliminated, true), seconds(1));
    assert_eq!(rejections(), [format!("{gated} 0")]);
    popped(&mut queue, 1);
    queue.fail("p", rejected(), seconds(1));
    // what changes nothing is not counted
    let labelled = pod("p", "1", json!({"metadata": {"labels": {"a": "b"}}}));
    queue.update(labelled, None, ("UnschedulablePodUpdatePodLabel", false), seconds(1));
    queue.requeue("NodeAdd", seconds(1), |_| true);
    assert!(rejections().contains(&format!("{fit} 1")), "until it is tried");
    popped(&mut queue, 1);
    assert!(rejections().contains(&format!("{fit} 0")));
    queue.fail("p", Failure::Error, seconds(1));
    queue.end_backoffs(seconds(9));
    let mut incoming = series(&registry, "scheduler_queue_incoming_pods_total");
    incoming.sort();
    let line = |queue: &str, event: &str| format!("{{queue=\"{queue}\",event=\"{event}\"}} 1");
    assert_eq!(
        incoming,
        [
            line("active", "BackoffComplete"),
            line("active", "PopFromBackoffQ"),
            line("active", eliminated),
            line("backoff", "NodeAdd"),
            line("backoff", "ScheduleAttemptFailure"),
            line("unschedulable", "ScheduleAttemptFailure"),
            line("unschedulable", "UnschedulablePodAdd"),
        ]
    );
}

#[test]
fn queue_orders_pods_whose_pauses_end_in_one_window_by_priority() {
    let millis = Duration::from_millis;
    for (pops_from_backoff, expected) in [(true, &["high", "low"][..]), (false, &["low", "high"])] {
        let waits = Waits { pops_from_backoff, ..Waits::default() };
        let mut queue = Queue::new(waits, &Metrics::new(&Registry::default()));
        for (name, priority, at) in [("low", 1, 100), ("high", 2, 900)] {
            queue.add(prioritized(name, priority), None, millis(at));
            assert_eq!(
                queue.pop(millis(at)).map(|own| own.pod.name.to_string()),
                Some(name.into())
            );
            queue.fail(name, rejected(), millis(at));
            queue.requeue("NodeAdd", millis(at), |_| true);
        }
        assert_eq!(queue.pop(millis(950)).is_some(), pops_from_backoff);
        let mut out: Vec<String> = Vec::new();
        if pops_from_backoff {
            // one of them was just tried
            out.push("high".into());
        }
        let ends = queue.next_backoff().unwrap();
        assert_eq!(ends, if pops_from_backoff { millis(2000) } else { millis(1100) });
        for at in [ends, millis(2000)] {
            out.extend(queue.pop(at).map(|own| own.pod.name.to_string()));
        }
        assert_eq!(out, expected);
    }
}

#[test]
fn queue_waits_for_a_preemption_that_is_carried_out() {
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), None, seconds(0));
    popped(&mut queue, 0);
    queue.fail("p", rejected(), seconds(0));
    queue.set_preempting("p");
    queue.requeue("AssignedPodDelete", seconds(5), |_| true);
    assert_eq!(popped(&mut queue, 5), None);
    queue.preempted("p", seconds(6));
    assert_eq!(popped(&mut queue, 6), Some("p".into()));
}

#[test]
fn queue_does_not_put_back_what_was_removed_in_flight() {
    let mut queue = queue();
    queue.add(pod("p", "1", json!({})), None, seconds(0));
    popped(&mut queue, 0);
    queue.remove("p");
    queue.fail("p", rejected(), seconds(0));
    assert_eq!(queue.sizes(), [0, 0, 0, 0]);
    assert!(queue.get("p").is_none());
}

#[test]
fn queue_updates_move_a_pod_to_its_new_priority() {
    let mut queue = queue();
    queue.add(prioritized("a", 1), None, seconds(0));
    queue.add(prioritized("b", 2), None, seconds(0));
    queue.update(prioritized("a", 3), None, ("UnschedulablePodUpdate", false), seconds(1));
    assert_eq!(popped(&mut queue, 1), Some("a".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whatever happens, each pod is in exactly one place, and comes up in the end.
    #[test]
    fn queue_never_loses_a_pod(steps in prop::collection::vec((0u8..9, 0usize..4, 0u64..15), 1..80)) {
        let mut queue = queue();
        let mut now = 0;
        let mut known = BTreeSet::new();
        let mut flying: Vec<String> = Vec::new();
        for (step, number, wait) in steps {
            now += wait;
            let name = format!("p{number}");
            let own = prioritized(&name, i32::try_from(number).unwrap());
            match step {
                0 | 1 => {
                    queue.add(own, (step == 1).then_some("SchedulingGates"), seconds(now));
                    known.insert(name);
                }
                2 => {
                    queue.remove(&name);
                    known.remove(&name);
                    flying.retain(|other| *other != name);
                }
                3 | 4 => flying.extend(popped(&mut queue, now)),
                5 => if let Some(name) = flying.pop() {
                    queue.fail(&name, rejected(), seconds(now));
                }
                6 => if let Some(name) = flying.pop() {
                    queue.fail(&name, Failure::Error, seconds(now));
                }
                7 => queue.requeue("NodeAdd", seconds(now), |own| own.pod.priority % 2 == 0),
                _ => if known.contains(&name) {
                    queue.update(own, None, ("UnschedulablePodUpdate", number % 2 == 0), seconds(now));
                }
            }
            let places: usize = queue.sizes().iter().sum();
            let in_flight = queue.pods.values().filter(|own| own.place == Place::InFlight).count();
            prop_assert_eq!(places + in_flight, known.len());
            prop_assert_eq!(in_flight, flying.len());
        }
        for name in flying.drain(..) {
            queue.fail(&name, rejected(), seconds(now));
        }
        for name in &known {
            let own = queue.get(name).unwrap().pod.clone();
            queue.update(own, None, ("UnschedulablePodUpdate", false), seconds(now));
        }
        now += 1000;
        queue.flush(seconds(now));
        let mut out = BTreeSet::new();
        while let Some(name) = popped(&mut queue, now) {
            prop_assert!(out.insert(name));
        }
        prop_assert_eq!(out, known);
    }
}
