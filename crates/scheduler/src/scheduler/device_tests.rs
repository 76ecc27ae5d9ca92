//! Pods with claims for devices, from the queue to the binding.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use serde_json::{Value, json};

use super::*;
use crate::model::{DeviceClass, Readiness, ResourceSlice};
use crate::testing::{World, atom, bound, merge, messages, node, pod};

/// A claim for a device of class `gpu`.
fn claim(name: &str, more: Value) -> ResourceClaim {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "10"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {
            "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]}},
    });
    merge(&mut claim, more);
    ResourceClaim::new(&serde_json::from_value(claim).unwrap())
}

fn pod_with(name: &str, claim: &str) -> Arc<Pod> {
    pod(
        name,
        "1",
        json!({"spec": {"resourceClaims": [
        {"name": "gpu", "resourceClaimName": claim}]}}),
    )
}

struct Devices(World);

impl Devices {
    /// Nodes with one device each.
    fn new(nodes: &[&str]) -> Self {
        let mut own = Self(World::new());
        for name in nodes {
            own.0.add_node(node(name, 8, json!({})));
            let slice = json!({"metadata": {"name": name}, "spec": {
                "driver": "gpu.example.com", "nodeName": name, "devices": [{"name": "gpu-0"}],
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}});
            let slice = ResourceSlice::new(&serde_json::from_value(slice).unwrap());
            own.0.apply(Change::ResourceSlice(atom(name), Some(Box::new(slice))));
        }
        own.class();
        own
    }

    fn class(&mut self) {
        let class = json!({"metadata": {"name": "gpu"}, "spec": {}});
        let class = DeviceClass::new(&serde_json::from_value(class).unwrap());
        self.0.apply(Change::DeviceClass(atom("gpu"), Some(Box::new(class))));
    }

    fn set(&mut self, claim: ResourceClaim) {
        self.0.apply(Change::ResourceClaim(claim.key.clone(), Some(Box::new(claim))));
    }

    /// What the API makes of the reservations of an action.
    fn write(&self, action: &Action) -> Vec<ResourceClaim> {
        let Action::PreBind { pod, devices, .. } = action else { panic!("{action:?}") };
        let written = |own: &DeviceReservation| {
            let mut new = self.0.scheduler.objects.resource_claims[&own.claim].clone();
            new.version += 1;
            if let Some(allocation) = &own.allocation {
                let nodes = allocation.node_selector.as_ref();
                new.nodes = nodes.map(crate::model::NodeSelector::new);
                new.allocation = Some(allocation.clone());
            }
            new.consumers = new.consumers.iter().cloned().chain([(*pod.uid).into()]).collect();
            new
        };
        devices.iter().map(written).collect()
    }

    /// The action that prepares the next pod.
    fn pre_bind(&mut self) -> Action {
        let mut actions = self.0.attempt();
        assert_eq!(actions.len(), 1, "{actions:?}");
        actions.remove(0)
    }

    fn prepare(&mut self, action: &Action) -> Vec<Action> {
        let Action::PreBind { pod, .. } = action else { panic!("{action:?}") };
        let outcome = Outcome::Prepared(pod.uid.clone(), self.write(action));
        self.0.scheduler.outcome(outcome, self.0.now);
        self.0.scheduler.take_actions()
    }
}

#[test]
fn devices_are_reserved_before_the_pod_is_bound_and_wait_for_each_other() {
    let mut world = Devices::new(&["n1"]);
    world.set(claim("c1", json!({})));
    world.set(claim("c2", json!({})));
    world.0.add_pod(pod_with("p1", "c1"));
    let first = world.pre_bind();
    world.0.add_pod(pod_with("p2", "c2"));
    world.0.add_pod(pod_with("p3", "c1"));
    let rejected = messages(&world.0.attempt());
    assert_eq!(
        rejected,
        [
            "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
        ]
    );
    let rejected = messages(&world.0.attempt());
    assert!(
        rejected[0].starts_with("0/1 nodes are available: resource claim default/c1 is in the process of being allocated."),
        "{rejected:?}"
    );
    let actions = world.prepare(&first);
    assert_eq!(bound(&actions), [("p1".to_owned(), "n1".to_owned())]);
    // The other pod shares the claim as soon as it is allocated.
    world.0.now += Duration::from_secs(20);
    let third = world.pre_bind();
    let Action::PreBind { pod, devices, .. } = &third else { panic!("{third:?}") };
    assert_eq!((&*pod.name, devices[0].allocation.is_none()), ("p3", true));
    assert_eq!(bound(&world.prepare(&third)), [("p3".to_owned(), "n1".to_owned())]);
    for uid in ["p1", "p3"] {
        world.0.scheduler.outcome(Outcome::Bound(uid.into()), world.0.now);
    }
    // The device comes free with its claim.
    let freed = claim("c1", json!({"metadata": {"resourceVersion": "20"}}));
    world.set(freed);
    world.0.now += Duration::from_secs(20);
    let second = world.pre_bind();
    assert_eq!(bound(&world.prepare(&second)), [("p2".to_owned(), "n1".to_owned())]);
}

#[test]
fn devices_are_given_back_when_the_pod_is_not_bound() {
    let mut world = Devices::new(&["n1"]);
    world.set(claim("c1", json!({})));
    world.set(claim("c2", json!({})));
    world.0.add_pod(pod_with("p1", "c1"));
    let action = world.pre_bind();
    let uid: Uid = "p1".into();
    // One claim is written, and the pod fails all the same: its device stays taken.
    let outcome = Outcome::Unprepared(uid, "no".to_owned(), world.write(&action));
    world.0.scheduler.outcome(outcome, world.0.now);
    let actions = world.0.scheduler.take_actions();
    let key = |name: &str| ClaimKey { namespace: atom("default"), name: atom(name) };
    assert!(
        matches!(&actions[0], Action::Unreserve { claims, .. } if claims[0] == (key("c1"), "c1".into())),
        "{actions:?}"
    );
    world.0.remove_pod("p1");
    world.0.add_pod(pod_with("p2", "c2"));
    assert!(messages(&world.0.attempt())[0].contains("1 cannot allocate all claims"));
    // One whose claims were not written gives the device back at once.
    let mut world = Devices::new(&["n1"]);
    world.set(claim("c1", json!({})));
    world.set(claim("c2", json!({})));
    world.0.add_pod(pod_with("p1", "c1"));
    world.pre_bind();
    world.0.scheduler.outcome(Outcome::Failed("p1".into(), "no".to_owned()), world.0.now);
    world.0.scheduler.take_actions();
    world.0.remove_pod("p1");
    world.0.add_pod(pod_with("p2", "c2"));
    let action = world.pre_bind();
    assert!(!world.prepare(&action).is_empty());
}

/// Nodes with one device each that has a binding condition, and the claim `c1` of pod `p1`, which is
/// reserved; what follows of that.
fn waiting(nodes: &[&str]) -> (Devices, ResourceClaim, Vec<Action>) {
    let mut world = Devices::new(nodes);
    for name in nodes {
        let slice = json!({"metadata": {"name": name}, "spec": {
            "driver": "gpu.example.com", "nodeName": name,
            "devices": [{"name": "gpu-0", "bindsToNode": true, "bindingConditions": ["Attached"],
                "bindingFailureConditions": ["Broken"]}],
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}});
        let slice = ResourceSlice::new(&serde_json::from_value(slice).unwrap());
        world.0.apply(Change::ResourceSlice(atom(name), Some(Box::new(slice))));
    }
    world.set(claim("c1", json!({})));
    world.0.add_pod(pod_with("p1", "c1"));
    let action = world.pre_bind();
    let Action::PreBind { devices, waits, .. } = &action else { panic!("{action:?}") };
    assert!(*waits);
    let results = devices[0].allocation.as_ref().unwrap().devices.clone().unwrap().results.unwrap();
    assert_eq!(results[0].binding_conditions, Some(vec!["Attached".to_owned()]));
    assert_eq!(results[0].binding_failure_conditions, Some(vec!["Broken".to_owned()]));
    let written = with_conditions(&results[0].pool, "11", json!([]));
    let outcome = Outcome::Prepared("p1".into(), vec![written.clone()]);
    world.0.scheduler.outcome(outcome, world.0.now);
    let actions = world.0.scheduler.take_actions();
    (world, written, actions)
}

/// The claim `c1` with a device of that pool, which has these conditions.
fn with_conditions(pool: &str, version: &str, conditions: Value) -> ResourceClaim {
    let id = json!({"driver": "gpu.example.com", "pool": pool, "device": "gpu-0"});
    let mut result = json!({"request": "r", "bindingConditions": ["Attached"],
        "bindingFailureConditions": ["Broken"]});
    let mut device = json!({ "conditions": conditions });
    merge(&mut result, id.clone());
    merge(&mut device, id);
    claim(
        "c1",
        json!({
            "metadata": {"resourceVersion": version},
            "status": {
                "allocation": {"allocationTimestamp": "1970-01-01T00:00:01Z",
                    "devices": {"results": [result]},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": [pool]}]}]}},
                "devices": [device],
                "reservedFor": [{"resource": "pods", "name": "p1", "uid": "p1"}],
            },
        }),
    )
}

fn condition(type_: &str, status: &str) -> Value {
    json!({"type": type_, "status": status, "reason": "Because", "message": "it is so",
        "lastTransitionTime": "1970-01-01T00:00:01Z"})
}

#[test]
fn devices_with_binding_conditions_are_waited_for() {
    let (mut world, written, actions) = waiting(&["n1"]);
    assert_eq!(actions, [], "it waits");
    assert_eq!(written.readiness, Readiness::Pending);
    world.set(with_conditions("n1", "12", json!([condition("Attached", "False")])));
    assert_eq!(world.0.scheduler.take_actions(), []);
    world.0.now += Duration::from_secs(599);
    world.0.scheduler.tick(world.0.now);
    world.set(with_conditions("n1", "13", json!([condition("Attached", "True")])));
    let actions = world.0.scheduler.take_actions();
    assert_eq!(bound(&actions), [("p1".to_owned(), "n1".to_owned())]);
    assert_counted(&world, "success", 599);
}

/// A device with conditions was waited for that many seconds, with that status.
fn assert_counted(world: &Devices, status: &str, seconds: u64) {
    let page = world.0.registry.text();
    let labels =
        format!("{{profile=\"default-scheduler\",driver=\"gpu.example.com\",status=\"{status}\"}}");
    for line in [
        format!("scheduler_dra_bindingconditions_allocations_total{labels} 1\n"),
        format!("scheduler_dra_bindingconditions_wait_duration_seconds_sum{labels} {seconds}\n"),
    ] {
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[test]
fn devices_that_are_not_prepared_are_given_back() {
    let broken = json!([condition("Attached", "True"), condition("Broken", "True")]);
    for (conditions, wait, status, expected) in [
        (
            broken,
            0,
            "failure",
            "device binding failed: claim=c1, reason=Because, message=\"it is so\"",
        ),
        (json!([]), 602, "timeout", "device binding timeout: claim=c1"),
    ] {
        let (mut world, ..) = waiting(&["n1"]);
        world.0.now += Duration::from_secs(wait);
        world.set(with_conditions("n1", "12", conditions));
        world.0.scheduler.tick(world.0.now);
        let actions = world.0.scheduler.take_actions();
        let expected = format!("running PreBind plugin \"DynamicResources\": {expected}");
        assert_eq!(messages(&actions), [expected]);
        assert_counted(&world, status, wait);
        // The next attempt frees the claim, so that it may get other devices.
        world.0.now += Duration::from_secs(20);
        let actions = world.0.attempt();
        let frees = actions.iter().any(|action| matches!(action, Action::Deallocate { .. }));
        assert!(frees, "{actions:?}");
        assert!(
            messages(&actions)[0].starts_with(
                "0/1 nodes are available: 1 resourceclaim not available on the node. deallocation of ResourceClaim completed"
            ),
            "{actions:?}"
        );
    }
}

#[test]
fn devices_that_were_reserved_before_are_waited_for_no_longer_than_is_left() {
    // Another scheduler goes on with the pod.
    let mut other = Devices::new(&["n1"]);
    other.0.now += Duration::from_secs(500);
    other.set(with_conditions("n1", "12", json!([])));
    other.0.add_pod(pod_with("p1", "c1"));
    let action = other.pre_bind();
    assert!(matches!(&action, Action::PreBind { devices, waits: true, .. } if devices.is_empty()));
    assert_eq!(other.prepare(&action), []);
    other.0.now += Duration::from_secs(98);
    other.0.scheduler.tick(other.0.now);
    assert_eq!(other.0.scheduler.take_actions(), []);
    other.0.now += Duration::from_secs(5);
    other.0.scheduler.tick(other.0.now);
    assert_eq!(messages(&other.0.scheduler.take_actions()).len(), 1);
}

/// The class `gpu` serves the extended resource `example.com/gpu`, of which the pod requests one.
fn extended(nodes: &[&str]) -> Devices {
    let mut world = Devices::new(nodes);
    let class = json!({"metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "example.com/gpu"}});
    let class = DeviceClass::new(&serde_json::from_value(class).unwrap());
    world.0.apply(Change::DeviceClass(atom("gpu"), Some(Box::new(class))));
    world
}

fn extended_pod(name: &str, resource: &str) -> Arc<Pod> {
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "1", resource: "1"}}}]);
    pod(name, "1", json!({"spec": {"containers": containers}}))
}

/// What the API makes of the special claim of an action.
fn made(action: &Action, version: &str) -> ResourceClaim {
    let Action::PreBind { pod, devices, .. } = action else { panic!("{action:?}") };
    let special = devices[0].special.clone().unwrap();
    let name = format!("{}-extended-resources-x", pod.name);
    let made = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": version,
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name,
                "uid": &*pod.uid, "controller": true}]},
        "spec": {"devices": {"requests": special.requests}},
        "status": {"allocation": devices[0].allocation.as_deref(),
            "reservedFor": [{"resource": "pods", "name": pod.name, "uid": &*pod.uid}]},
    });
    ResourceClaim::new(&serde_json::from_value(made).unwrap())
}

#[test]
fn devices_serve_extended_resources() {
    for resource in ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"] {
        let mut world = extended(&["n1"]);
        world.0.add_pod(extended_pod("p1", resource));
        let action = world.pre_bind();
        let Action::PreBind { devices, .. } = &action else { panic!("{action:?}") };
        let special = devices[0].special.clone().unwrap();
        assert_eq!(special.requests[0].name, "container-0-request-1");
        assert_eq!(special.mappings[0].resource_name, resource);
        // The pod is bound when the claim that was made is seen.
        let claim = made(&action, "5");
        let outcome = Outcome::Prepared("p1".into(), vec![claim.clone()]);
        world.0.scheduler.outcome(outcome, world.0.now);
        assert_eq!(world.0.scheduler.take_actions(), []);
        world.set(claim);
        let actions = world.0.scheduler.take_actions();
        assert_eq!(bound(&actions), [("p1".to_owned(), "n1".to_owned())]);
        world.0.scheduler.outcome(Outcome::Bound("p1".into()), world.0.now);
        // The only device is taken.
        world.0.add_pod(extended_pod("p2", resource));
        let rejected = messages(&world.0.attempt());
        assert!(rejected[0].contains("1 cannot allocate all claims"), "{rejected:?}");
    }
}

#[test]
fn devices_leave_extended_resources_to_nodes_that_have_them() {
    let mut world = extended(&["n1"]);
    let own = json!({"status": {"allocatable": {"example.com/gpu": "1"}}});
    world.0.add_node(node("n1", 8, own));
    world.0.add_pod(extended_pod("p1", "example.com/gpu"));
    assert_eq!(bound(&world.0.attempt()), [("p1".to_owned(), "n1".to_owned())]);
    world.0.scheduler.outcome(Outcome::Bound("p1".into()), world.0.now);
    world.0.add_pod(extended_pod("p2", "example.com/gpu"));
    let rejected = messages(&world.0.attempt());
    assert!(rejected[0].contains("1 Insufficient example.com/gpu"), "{rejected:?}");
    // Nobody serves this one.
    world.0.add_pod(extended_pod("p3", "example.com/tpu"));
    let rejected = messages(&world.0.attempt());
    assert!(rejected[0].contains("1 Insufficient example.com/tpu"), "{rejected:?}");
}

#[test]
fn devices_for_extended_resources_are_given_back_when_the_pod_is_not_bound() {
    let mut world = extended(&["n1"]);
    world.0.add_pod(extended_pod("p1", "example.com/gpu"));
    let action = world.pre_bind();
    let claim = made(&action, "5");
    let outcome = Outcome::Unprepared("p1".into(), "no".to_owned(), vec![claim.clone()]);
    world.0.scheduler.outcome(outcome, world.0.now);
    let delete = Action::DeleteClaim { claim: claim.key.clone(), uid: claim.uid.clone() };
    let actions = world.0.scheduler.take_actions();
    assert!(actions.contains(&delete), "{actions:?}");
    assert!(!actions.iter().any(|own| matches!(own, Action::Unreserve { .. })), "{actions:?}");
    // One that is left all the same, as by a scheduler that was killed, is deleted by the next attempt.
    world.set(claim);
    world.0.now += Duration::from_secs(20);
    let actions = world.0.attempt();
    assert!(actions.contains(&delete), "{actions:?}");
    let message = &messages(&actions)[0];
    assert!(
        message.starts_with("0/1 nodes are available: 1 cannot schedule extended resource claim. deletion of ResourceClaim completed"),
        "{message}"
    );
}

#[test]
fn devices_gate_pods_until_their_claims_are_made() {
    let mut world = Devices::new(&["n1"]);
    let template = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
    let spec = json!({"spec": {"resourceClaims": template}});
    world.0.add_pod(pod("p", "1", spec.clone()));
    assert_eq!(world.0.attempt(), [], "it is not tried");
    assert_eq!(world.0.scheduler.pending(), [0, 0, 0, 1]);
    let mut named = spec;
    named["status"] = json!({"resourceClaimStatuses": [
        {"name": "gpu", "resourceClaimName": "p-gpu-x"}]});
    world.0.add_pod(pod("p", "1", named));
    assert_eq!(world.0.scheduler.pending(), [0, 0, 0, 1]);
    let owners = |uid: &str| {
        json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]}})
    };
    world.set(claim("p-gpu-x", owners("another")));
    assert_eq!(world.0.scheduler.pending(), [0, 0, 0, 1]);
    let mut own = owners("p");
    own["metadata"]["resourceVersion"] = "11".into();
    world.set(claim("p-gpu-x", own));
    let action = world.pre_bind();
    assert_eq!(bound(&world.prepare(&action)), [("p".to_owned(), "n1".to_owned())]);
}

#[test]
fn devices_reject_pods_in_upstreams_words() {
    let allocated = |name: &str, on: &str, more: Value| {
        let mut status = json!({"allocation": {
            "devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": on, "device": "gpu-0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [on]}]}]}}});
        merge(&mut status, more);
        claim(name, json!({ "status": status }))
    };
    let class = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {
        "deviceClassName": "tpu", "allocationMode": "ExactCount", "count": 1}}]}}});
    let mode = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {
        "deviceClassName": "gpu", "allocationMode": "Some", "count": 1}}]}}});
    let used = json!({"reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]});
    let unhelpful =
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let table = [
        (claim("c", class), format!("0/1 nodes are available: request r: device class tpu does not exist. no new claims to deallocate, {unhelpful}")),
        (allocated("c", "n2", used), format!("0/1 nodes are available: 1 resourceclaim not available on the node. still not schedulable, {unhelpful}")),
        (allocated("c", "n2", json!({})), format!("0/1 nodes are available: 1 resourceclaim not available on the node. deallocation of ResourceClaim completed, {unhelpful}")),
        (claim("c", mode), "running \"DynamicResources\" filter plugin: claim default/c, request r: unsupported count mode Some".to_owned()),
    ];
    for (claim, expected) in table {
        let mut world = Devices::new(&["n1"]);
        world.set(claim);
        world.0.add_pod(pod_with("p", "c"));
        let actions = world.0.attempt();
        assert_eq!(messages(&actions).join("\n"), expected);
        let frees = actions.iter().any(|action| matches!(action, Action::Deallocate { .. }));
        assert_eq!(frees, expected.contains("deallocation of ResourceClaim"), "{actions:?}");
    }
}

#[test]
fn devices_prefer_nodes_with_the_first_alternative() {
    let mut world = Devices::new(&["n1", "n2"]);
    let list = |count: i64| {
        json!({"name": format!("x{count}"), "deviceClassName": "gpu",
        "allocationMode": "ExactCount", "count": count})
    };
    let two = json!({"metadata": {"name": "n2"}, "spec": {
        "driver": "gpu.example.com", "nodeName": "n2", "devices": [{"name": "a"}, {"name": "b"}],
        "pool": {"name": "n2", "generation": 2, "resourceSliceCount": 1}}});
    let two = ResourceSlice::new(&serde_json::from_value(two).unwrap());
    world.0.apply(Change::ResourceSlice(atom("n2"), Some(Box::new(two))));
    for number in 0..3 {
        // The sizes of nodes say nothing else: all are equal.
        let name = format!("c{number}");
        world.set(claim(
            &name,
            json!({"spec": {"devices": {"requests": [
            {"name": "r", "firstAvailable": [list(2), list(1)]}]}}}),
        ));
    }
    world.0.add_pod(pod_with("p0", "c0"));
    let action = world.pre_bind();
    assert_eq!(bound(&world.prepare(&action)), [("p0".to_owned(), "n2".to_owned())]);
    world.0.add_pod(pod_with("p1", "c1"));
    let action = world.pre_bind();
    assert_eq!(bound(&world.prepare(&action)), [("p1".to_owned(), "n1".to_owned())]);
}

#[test]
fn devices_stay_taken_when_an_older_version_of_the_claim_comes_late() {
    let mut world = Devices::new(&["n1"]);
    world.set(claim("c1", json!({})));
    world.set(claim("c2", json!({})));
    world.0.add_pod(pod_with("p1", "c1"));
    let action = world.pre_bind();
    assert_eq!(bound(&world.prepare(&action)).len(), 1);
    world.0.scheduler.outcome(Outcome::Bound("p1".into()), world.0.now);
    // The watch shows what was before.
    world.set(claim("c1", json!({})));
    world.0.add_pod(pod_with("p2", "c2"));
    assert!(messages(&world.0.attempt())[0].contains("1 cannot allocate all claims"));
}
