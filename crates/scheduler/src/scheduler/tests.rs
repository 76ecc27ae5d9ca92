//! The whole without I/O.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::hash_map::Entry;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::framework::Filters;
use crate::model::{Budget, Claim, StorageClass};
use crate::plugins::preemption::victims;
use crate::testing::{World, atom, bound, merge, messages, node, pod, profile};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn scheduler_binds_pods_and_counts_them() {
    let mut world = World::new();
    for name in ["n1", "n2"] {
        world.add_node(node(name, 2, json!({})));
    }
    for number in 0..4 {
        world.add_pod(pod(&format!("p{number}"), "1", json!({})));
    }
    let bound = bound(&world.settle());
    assert_eq!(bound.len(), 4);
    for name in ["n1", "n2"] {
        assert_eq!(bound.iter().filter(|(_, node)| node == name).count(), 2, "{bound:?}");
    }
    world.add_pod(pod("late", "1", json!({})));
    assert_eq!(
        messages(&world.settle()),
        [
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        ]
    );
    world.scheduler.tick(world.now);
    let page = world.registry.text();
    for line in [
        "scheduler_schedule_attempts_total{result=\"scheduled\",profile=\"default-scheduler\"} 4",
        "scheduler_schedule_attempts_total{result=\"unschedulable\",profile=\"default-scheduler\"} 1",
        "scheduler_pending_pods{queue=\"unschedulable\"} 1",
        "scheduler_cache_size{type=\"pods\"} 4",
        "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 1",
        "scheduler_plugin_evaluation_total{plugin=\"NodeResourcesFit\",extension_point=\"Filter\",profile=\"default-scheduler\"} 5",
        "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"} 2",
        "scheduler_event_handling_duration_seconds_count{event=\"UnschedulablePodAdd\"} 5",
        "scheduler_event_handling_duration_seconds_count{event=\"AssignedPodAdd\"} 4",
        "scheduler_inflight_events{event=\"PodPopped\"} 0",
        "scheduler_batch_attempts_total{profile=\"default-scheduler\",result=\"no_hint\"} 5",
        "scheduler_batch_cache_flushed_total{profile=\"default-scheduler\",reason=\"pod_not_batchable\"} ",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreBindPreFlight\",status=\"Skip\",profile=\"default-scheduler\"} 4",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreBind\",status=\"Success\",profile=\"default-scheduler\"} 4",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PostBind\",status=\"Success\",profile=\"default-scheduler\"} 4",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreEnqueue\",status=\"Success\",profile=\"default-scheduler\"} 5",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreFilter\",status=\"Success\",profile=\"default-scheduler\"} 5",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Filter\",status=\"Success\",profile=\"default-scheduler\"} 5",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PostFilter\",status=\"Unschedulable\",profile=\"default-scheduler\"} 1",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Reserve\",status=\"Success\",profile=\"default-scheduler\"} 4",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Bind\",status=\"Success\",profile=\"default-scheduler\"} 4",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[test]
fn scheduler_times_plugins_in_some_attempts_and_counts_rejections_until_they_end() {
    let mut world = World::new();
    world.add_node(node("n1", 100, json!({})));
    for number in 0..100 {
        world.add_pod(pod(&format!("p{number}"), "1", json!({})));
    }
    assert_eq!(bound(&world.settle()).len(), 100);
    // the value of the only series with these labels
    let value = |world: &World, series: &str| -> f64 {
        let page = world.registry.text();
        let line = page.lines().find(|line| line.starts_with(series));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    let timed = value(
        &world,
        "scheduler_plugin_execution_duration_seconds_count{plugin=\"NodeResourcesFit\",extension_point=\"Filter\"",
    );
    assert!(timed > 0.0 && timed < 100.0, "{timed}");
    world.add_pod(pod("late", "1", json!({})));
    world.settle();
    let rejected =
        |world: &World| value(world, "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\"");
    assert!((rejected(&world) - 1.0).abs() < f64::EPSILON);
    world.remove_pod("late");
    assert!(rejected(&world).abs() < f64::EPSILON);
}

#[test]
fn scheduler_reports_a_pod_that_fits_nowhere_and_tries_it_when_a_node_comes() {
    let mut world = World::new();
    world.add_pod(pod("p", "1", json!({})));
    let actions = world.settle();
    let [Action::Report { condition, message, note, nomination, .. }] = &*actions else {
        panic!("{actions:?}")
    };
    assert_eq!(*condition, Some("Unschedulable"));
    assert_eq!(message, "no nodes available to schedule pods");
    assert_eq!(note.as_ref(), Some(message));
    assert_eq!(*nomination, None);

    // a node that cannot take it does not even cause an attempt
    world.now += seconds(20);
    let tainted = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    world.add_node(node("n1", 4, tainted.clone()));
    assert_eq!(
        messages(&world.settle()),
        [
            "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
        ]
    );
    world.now += seconds(20);
    world.add_node(node("n2", 4, tainted));
    assert!(world.settle().is_empty());
    world.add_node(node("n2", 4, json!({})));
    assert_eq!(bound(&world.settle()), [("p".into(), "n2".into())]);
}

#[test]
fn scheduler_does_not_report_the_same_twice() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    world.add_pod(pod("p", "2", json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}})));
    let actions = world.settle();
    let [Action::Report { condition, note, .. }] = &*actions else { panic!("{actions:?}") };
    assert_eq!(*condition, None);
    assert_eq!(note.as_deref(), Some(message));
}

#[test]
fn scheduler_leaves_pods_of_others_and_gated_ones() {
    let mut world = World::new();
    world.add_node(node("n1", 4, json!({})));
    world.add_pod(pod("other", "1", json!({"spec": {"schedulerName": "other"}})));
    world.add_pod(pod("gated", "1", json!({"spec": {"schedulingGates": [{"name": "g"}]}})));
    assert!(world.settle().is_empty());
    world.add_pod(pod("gated", "1", json!({})));
    assert_eq!(bound(&world.settle()), [("gated".into(), "n1".into())]);
}

#[test]
fn scheduler_skips_pods_that_are_being_deleted() {
    let mut world = World::new();
    world.add_node(node("n1", 4, json!({})));
    world.add_pod(pod(
        "p",
        "1",
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    ));
    let actions = world.settle();
    let [Action::Report { condition: None, note, .. }] = &*actions else { panic!("{actions:?}") };
    assert_eq!(note.as_deref(), Some("skip schedule deleting pod: default/p"));
}

#[test]
fn scheduler_tries_again_when_a_binding_fails() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    world.add_pod(pod("p", "1", json!({})));
    world.add_pod(pod("q", "1", json!({})));
    assert_eq!(bound(&world.attempt()), [("p".into(), "n1".into())]);
    // the room is taken until then
    assert_eq!(messages(&world.attempt()).len(), 1);
    world.scheduler.outcome(Outcome::Failed("p".into(), "no".into()), world.now);
    let actions = world.scheduler.take_actions();
    let [Action::Report { condition, message, .. }] = &*actions else { panic!("{actions:?}") };
    assert_eq!((*condition, message.as_str()), (Some("SchedulerError"), "no"));
    assert_eq!(bound(&world.attempt()), [("q".into(), "n1".into())]);
    world.remove_pod("q");
    world.now += seconds(2);
    assert_eq!(bound(&world.settle()), [("p".into(), "n1".into())]);
}

#[test]
fn scheduler_gives_up_pods_that_are_deleted_while_they_are_bound() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    world.add_pod(pod("p", "1", json!({})));
    assert_eq!(bound(&world.attempt()).len(), 1);
    world.remove_pod("p");
    world.scheduler.outcome(Outcome::Failed("p".into(), "not found".into()), world.now);
    assert!(world.settle().is_empty());
    world.add_pod(pod("q", "1", json!({})));
    assert_eq!(bound(&world.settle()), [("q".into(), "n1".into())]);
}

#[test]
fn scheduler_leaves_a_pod_that_is_bound_in_spite_of_an_error() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    world.add_pod(pod("p", "1", json!({})));
    assert_eq!(bound(&world.attempt()).len(), 1);
    world.add_pod(pod("p", "1", json!({"spec": {"nodeName": "n1"}})));
    world.scheduler.outcome(Outcome::Failed("p".into(), "timeout".into()), world.now);
    world.now += seconds(60);
    assert!(world.settle().is_empty());
    world.add_pod(pod("q", "1", json!({})));
    assert_eq!(messages(&world.settle()).len(), 1);
}

#[test]
fn scheduler_looks_at_named_nodes_only() {
    let mut world = World::new();
    for name in ["n1", "n2", "n3"] {
        world.add_node(node(name, 1, json!({})));
    }
    let affinity = |name: &str| {
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}}})
    };
    world.add_pod(pod("p", "1", affinity("n2")));
    assert_eq!(bound(&world.settle()), [("p".into(), "n2".into())]);
    world.add_pod(pod("q", "1", affinity("n2")));
    assert_eq!(
        messages(&world.settle()),
        [
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims to deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
        ]
    );
}

#[test]
fn scheduler_searches_enough_nodes_and_goes_on_where_it_stopped() {
    for (percentage, total, expected) in [
        (0, 50, 50),
        (0, 100, 100),
        (0, 1000, 420),
        (0, 6000, 300),
        (0, 5000, 500),
        (10, 5000, 500),
        (100, 5000, 5000),
        (1, 5000, 100),
    ] {
        assert_eq!(enough_nodes(percentage, total), expected, "{percentage} {total}");
    }
    let mut world = World::new();
    for number in 0..200 {
        world.add_node(node(&format!("n{number:03}"), 1, json!({})));
    }
    world.add_pod(pod("p", "1", json!({})));
    let attempt = world.scheduler.begin(world.now).unwrap();
    // 50 - 200/125 percent of 200 are fewer than the least number
    assert_eq!(attempt.fitting, (0..100).collect::<Vec<_>>());
    world.scheduler.finish(attempt, Vec::new(), None, world.now);
    world.add_pod(pod("q", "1", json!({})));
    assert_eq!(world.scheduler.begin(world.now).unwrap().fitting, (100..200).collect::<Vec<_>>());
}

#[test]
fn scheduler_looks_at_all_nodes_when_extenders_reject_the_nominated_one() {
    let mut world = World::new();
    for name in ["n1", "n2", "n3"] {
        world.add_node(node(name, 1, json!({})));
    }
    let nominated = json!({"status": {"nominatedNodeName": "n2"}});
    world.add_pod(pod("p", "1", nominated));
    let mut attempt = world.scheduler.begin(world.now).unwrap();
    assert_eq!(attempt.fitting, [1]);
    assert!(!world.scheduler.widen(&mut attempt), "it is not rejected");
    world.scheduler.finish(attempt, Vec::new(), None, world.now);
    let nominated = json!({"status": {"nominatedNodeName": "n1"}});
    world.add_pod(pod("q", "1", nominated));
    let mut attempt = world.scheduler.begin(world.now).unwrap();
    assert_eq!(attempt.fitting, [0]);
    attempt.fitting.clear();
    assert!(world.scheduler.widen(&mut attempt));
    assert_eq!(attempt.fitting, [0, 2]);
    attempt.fitting.clear();
    assert!(!world.scheduler.widen(&mut attempt), "all were looked at");
}

#[test]
fn preemption_makes_room_and_waits_for_it() {
    let mut world = World::new();
    world.add_node(node("n1", 2, json!({})));
    for name in ["a", "b"] {
        world.add_pod(pod(name, "1", json!({"spec": {"nodeName": "n1", "priority": 1}})));
    }
    world.add_pod(pod("p", "1", json!({"spec": {"priority": 10}})));
    let actions = world.settle();
    let [
        Action::Report { nomination, condition, message, .. },
        Action::Preempt { pod: own, node, victims, .. },
    ] = &*actions
    else {
        panic!("{actions:?}")
    };
    assert_eq!(*nomination, Some(Some(atom("n1"))));
    assert_eq!(
        (*condition, message.as_str()),
        (Some("Unschedulable"), "0/1 nodes are available: 1 Insufficient cpu.")
    );
    assert_eq!((&*own.name, node.as_str(), victims.len()), ("p", "n1", 1));
    let victim = victims[0].uid.clone();
    // nobody of lower priority takes the room meanwhile
    world.scheduler.outcome(Outcome::Preempted("p".into(), true), world.now);
    world.remove_pod(&victim);
    world.add_pod(pod("low", "1", json!({"spec": {"priority": 5}})));
    let actions = world.settle();
    assert_eq!(bound(&actions), [("p".into(), "n1".into())]);
    assert_eq!(messages(&actions).len(), 1);
}

#[test]
fn preemption_is_not_for_pods_that_may_not() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    world.add_pod(pod("a", "1", json!({"spec": {"nodeName": "n1"}})));
    world.add_pod(pod("p", "1", json!({"spec": {"priority": 10, "preemptionPolicy": "Never"}})));
    assert_eq!(
        messages(&world.settle()),
        [
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        ]
    );
}

#[test]
fn preemption_waits_for_pods_that_are_on_their_way_out() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    world.add_pod(pod("a", "1", json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1"},
        "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
    })));
    world.add_pod(pod(
        "p",
        "1",
        json!({"spec": {"priority": 10}, "status": {"nominatedNodeName": "n1"}}),
    ));
    assert_eq!(
        messages(&world.settle()),
        [
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node."
        ]
    );
}

#[test]
fn preemption_prefers_the_node_that_costs_least() {
    let candidate = |node: &str, violations: usize, pods: &[(i32, i64)]| Candidate {
        node: atom(node),
        violations,
        victims: pods
            .iter()
            .map(|(priority, started)| {
                let mut own = (*pod("v", "1", json!({"spec": {"priority": priority}}))).clone();
                own.started = Some(*started);
                Arc::new(own)
            })
            .collect(),
    };
    for (candidates, expected) in [
        (vec![candidate("a", 1, &[(1, 0)]), candidate("b", 0, &[(5, 0)])], "b"),
        (vec![candidate("a", 0, &[(5, 0)]), candidate("b", 0, &[(4, 0), (4, 0)])], "b"),
        (vec![candidate("a", 0, &[(5, 0), (3, 0)]), candidate("b", 0, &[(5, 0), (2, 0)])], "b"),
        (vec![candidate("a", 0, &[(5, 0), (-7, 0)]), candidate("b", 0, &[(5, 0)])], "b"),
        (vec![candidate("a", 0, &[(5, 10)]), candidate("b", 0, &[(5, 20)])], "b"),
    ] {
        assert_eq!(cheapest(candidates.clone()).unwrap().node, atom(expected), "{candidates:?}");
    }
    assert_eq!(cheapest(Vec::new()), None);
}

#[test]
fn preemption_spares_pods_that_a_budget_protects() {
    let mut world = World::new();
    for (name, app) in [("n1", "guarded"), ("n2", "free")] {
        world.add_node(node(name, 1, json!({})));
        world.add_pod(pod(
            app,
            "1",
            json!({"metadata": {"labels": {"app": app}}, "spec": {"nodeName": name}}),
        ));
    }
    let budget = Budget::new(&serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    })).unwrap());
    let key = ClaimKey { namespace: atom("default"), name: atom("b") };
    world.apply(Change::Budget(key, Some(budget)));
    world.add_pod(pod("p", "1", json!({"spec": {"priority": 10}})));
    let actions = world.settle();
    let victims: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Preempt { victims, .. } => Some(&*victims[0].name),
            _ => None,
        })
        .collect();
    assert_eq!(victims, ["free"]);
}

fn with_claim(world: &mut World, more: Value) {
    let class: StorageClass = StorageClass::new(&serde_json::from_value(json!({
        "metadata": {"name": "wait"}, "provisioner": "driver", "volumeBindingMode": "WaitForFirstConsumer"})).unwrap());
    world.apply(Change::Class(atom("wait"), Some(class)));
    let mut all = json!({
        "metadata": {"name": "c", "namespace": "default", "uid": "c", "resourceVersion": "7"},
        "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    merge(&mut all, more);
    let claim = Claim::new(&serde_json::from_value(all).unwrap());
    world.apply(Change::Claim(claim.key.clone(), Some(Box::new(claim))));
}

#[test]
fn volumes_are_bound_before_their_pod() {
    let mut world = World::new();
    world.add_node(node("n1", 1, json!({})));
    let own = pod(
        "p",
        "1",
        json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
    );
    world.add_pod(own);
    assert_eq!(messages(&world.settle()).len(), 1);
    world.now += seconds(5);
    with_claim(&mut world, json!({}));
    let actions = world.settle();
    let [Action::PreBind { node, claims, volumes, .. }] = &*actions else { panic!("{actions:?}") };
    assert_eq!((node.as_str(), volumes.len()), ("n1", 0));
    assert_eq!(
        claims.iter().map(|(key, version)| format!("{key} {version}")).collect::<Vec<_>>(),
        ["default/c 7"]
    );
    world.scheduler.outcome(Outcome::Prepared("p".into(), Vec::new()), world.now);
    assert!(world.settle().is_empty());
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    with_claim(&mut world, selected.clone());
    assert!(world.settle().is_empty());
    let mut done = selected;
    merge(
        &mut done,
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "pv"}}),
    );
    with_claim(&mut world, done);
    assert_eq!(bound(&world.settle()), [("p".into(), "n1".into())]);
}

/// A pod on a node of one CPU whose volume is being provisioned.
fn preparing(world: &mut World) -> Vec<Action> {
    world.add_node(node("n1", 1, json!({})));
    with_claim(world, json!({}));
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
    world.add_pod(pod("p", "1", json!({"spec": {"volumes": [volume]}})));
    world.attempt()
}

#[test]
fn volumes_are_waited_for_with_the_node_in_the_status_of_their_pod() {
    for is_enabled in [true, false] {
        let mut world = World::new();
        let settings = Settings { nominates_expected: is_enabled, ..Settings::default() };
        let metrics = Metrics::new(&longshore_metrics::Registry::default());
        world.scheduler = Scheduler::new(vec![profile()], settings, metrics);
        let actions = preparing(&mut world);
        let [Action::PreBind { nominates, .. }] = &*actions else { panic!("{actions:?}") };
        assert_eq!(*nominates, is_enabled);
        // The status is cleared though it is not known yet that it was written.
        world.scheduler.outcome(Outcome::Failed("p".into(), "refused".into()), world.now);
        let actions = world.scheduler.take_actions();
        let [Action::Report { nomination, .. }] = &*actions else { panic!("{actions:?}") };
        assert_eq!(*nomination, is_enabled.then_some(None));
    }
}

#[test]
fn preemption_takes_the_node_from_a_pod_that_is_not_bound_yet() {
    for is_prepared in [true, false] {
        let mut world = World::new();
        preparing(&mut world);
        let prepared = Outcome::Prepared("p".into(), Vec::new());
        if is_prepared {
            world.scheduler.outcome(prepared.clone(), world.now);
        }
        world.add_pod(pod("high", "1", json!({"spec": {"priority": 10}})));
        let mut actions = world.attempt();
        if !is_prepared {
            // What is being asked for is asked for in any case.
            world.scheduler.outcome(prepared, world.now);
            actions.extend(world.scheduler.take_actions());
        }
        let preempted = actions.iter().find_map(|action| match action {
            Action::Preempt { pod, victims, unbound, .. } => Some((pod, victims, unbound)),
            _ => None,
        });
        let (own, victims, unbound) = preempted.unwrap();
        assert_eq!((&*own.name, victims.len(), unbound.len()), ("high", 0, 1));
        let canceled =
            "running PreBind plugin \"VolumeBinding\": binding volumes: context canceled";
        assert!(messages(&actions).contains(&canceled.to_owned()), "{actions:?}");
        world.scheduler.outcome(Outcome::Preempted("high".into(), true), world.now);
        assert_eq!(bound(&world.settle()), [("high".into(), "n1".into())]);
        let page = world.registry.text();
        let count = "scheduler_volume_scheduling_stage_error_total{operation=\"bind\"} 1";
        assert!(page.contains(count), "{page}");
    }
}

#[test]
fn volumes_that_cannot_be_provisioned_or_take_too_long_free_their_pod() {
    for is_late in [false, true] {
        let mut world = World::new();
        world.add_node(node("n1", 1, json!({})));
        with_claim(&mut world, json!({}));
        world.add_pod(pod("p", "1", json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}})));
        assert_eq!(world.attempt().len(), 1);
        world.scheduler.outcome(Outcome::Prepared("p".into(), Vec::new()), world.now);
        with_claim(
            &mut world,
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}}),
        );
        let expected = if is_late {
            world.now += seconds(601);
            world.scheduler.tick(world.now);
            "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded"
        } else {
            with_claim(&mut world, json!({}));
            "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"c\""
        };
        assert_eq!(messages(&world.scheduler.take_actions()), [expected]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Victims are of lower priority, they suffice, and each of them is needed.
    #[test]
    fn preemption_takes_no_more_than_it_needs(
        pods in prop::collection::vec((1u32..5, 0i32..6), 1..10),
        own in (1u32..8, 0i32..7),
    ) {
        let mut world = World::new();
        world.add_node(node("n1", 8, json!({})));
        let mut used = 0;
        for (index, (cpu, priority)) in pods.iter().enumerate() {
            if used + cpu <= 8 {
                used += cpu;
                world.add_pod(pod(&format!("o{index}"), &cpu.to_string(), json!({"spec": {"nodeName": "n1", "priority": priority}})));
            }
        }
        let (cpu, priority) = own;
        let own = pod("p", &cpu.to_string(), json!({"spec": {"priority": priority}}));
        world.scheduler.cache.update(&mut world.scheduler.snapshot);
        let cycle = Cycle { pod: &own, snapshot: &world.scheduler.snapshot, objects: &world.scheduler.objects, nominated: &world.scheduler.queue.nominated, recorder: Default::default() };
        let profile = profile();
        let mut filters = Filters::prepare(&profile, cycle).unwrap();
        let info = world.scheduler.snapshot.node(&atom("n1")).unwrap();
        let lower: u32 = info.pods.iter().filter(|pod| pod.priority < priority).map(|pod| u32::try_from(pod.requests.milli_cpu / 1000).unwrap()).sum();
        match victims(cycle, &mut filters, info, &[]) {
            Err(_) => prop_assert!(lower == 0 || 8 - used + lower < cpu),
            Ok(candidate) => {
                let mut rest = (**info).clone();
                for victim in &candidate.victims {
                    prop_assert!(victim.priority < priority);
                    rest.remove(&victim.uid);
                }
                prop_assert!(filters.check(cycle, &rest).is_ok());
                for victim in &candidate.victims {
                    let mut without = rest.clone();
                    without.add(victim.clone());
                    prop_assert!(filters.check(cycle, &without).is_err(), "{} is spared for nothing", victim.name);
                }
            }
        }
    }

    /// Whatever pods and nodes come and go, no node is filled beyond what it has.
    #[test]
    fn scheduler_never_overcommits(steps in prop::collection::vec((0u8..4, 0u8..6, 1u32..4), 1..40)) {
        let mut world = World::new();
        let mut hosts: HashMap<String, (String, u32)> = HashMap::new();
        for (step, number, amount) in steps {
            world.now += seconds(15);
            match step {
                0 => world.add_node(node(&format!("n{}", number % 3), 4, json!({}))),
                1 => {
                    let name = format!("p{number}");
                    if let Entry::Vacant(vacant) = hosts.entry(name.clone()) {
                        world.add_pod(pod(&name, &amount.to_string(), json!({})));
                        vacant.insert((String::new(), amount));
                    }
                }
                _ => {
                    let name = format!("p{number}");
                    world.remove_pod(&name);
                    hosts.remove(&name);
                }
            }
            for (pod, node) in bound(&world.settle()) {
                hosts.get_mut(&pod).unwrap().0 = node;
            }
            let mut sums: HashMap<&str, u32> = HashMap::new();
            for (host, amount) in hosts.values() {
                *sums.entry(host).or_default() += amount;
            }
            sums.remove("");
            prop_assert!(sums.values().all(|sum| *sum <= 4), "{sums:?}");
        }
    }
}
