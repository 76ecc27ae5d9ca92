//! Tables of what claims get, and properties of any.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::{merge, node};

/// Slices, classes and claims of a test.
struct World {
    slices: Vec<ResourceSlice>,
    classes: HashMap<Atom, DeviceClass>,
    used: UsedDevices,
}

/// A device with attributes.
fn device(name: &str, more: Value) -> Value {
    let mut device = json!({"name": name});
    merge(&mut device, more);
    device
}

fn slice(name: &str, more: Value) -> ResourceSlice {
    let mut slice = json!({
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        },
    });
    merge(&mut slice, more);
    ResourceSlice::new(&serde_json::from_value(slice).unwrap())
}

fn claim(name: &str, devices: Value) -> ResourceClaim {
    let claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": devices},
    });
    ResourceClaim::new(&serde_json::from_value(claim).unwrap())
}

/// A request for so many devices of class `gpu`.
fn request(name: &str, more: Value) -> Value {
    let mut request = json!({"name": name, "exactly": {
        "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}});
    merge(&mut request["exactly"], more);
    request
}

impl World {
    fn new(slices: Vec<ResourceSlice>) -> Self {
        let class = json!({"metadata": {"name": "gpu"}, "spec": {}});
        let class = DeviceClass::new(&serde_json::from_value(class).unwrap());
        Self { slices, classes: [(class.name.clone(), class)].into(), used: UsedDevices::default() }
    }

    /// One slice of node `n1` with these devices.
    fn of(devices: Value) -> Self {
        Self::new(vec![slice("s", json!({"spec": {"devices": devices}}))])
    }

    fn results(
        &self,
        on: &str,
        claims: &[&ResourceClaim],
    ) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        let allocator = Allocator::new(self.slices.iter(), &self.classes, &self.used);
        allocator.allocate(&node(on, 1, json!({"metadata": {"labels": {"zone": "a"}}})), claims)
    }

    /// Requests with devices of all claims in a line, or the error.
    fn devices(&self, on: &str, claims: &[&ResourceClaim]) -> String {
        match self.results(on, claims) {
            Err(error) => error.to_string(),
            Ok(None) => "none".to_owned(),
            Ok(Some(all)) => {
                let all = all.iter().map(|own| {
                    let results = own.devices.as_ref().unwrap().results.as_ref().unwrap();
                    let results =
                        results.iter().map(|one| format!("{}={}", one.request, one.device));
                    results.collect::<Vec<_>>().join(" ")
                });
                all.collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn take(&mut self, claim: &ResourceClaim) {
        for own in self.results("n1", &[claim]).unwrap().unwrap() {
            self.used.add(&own);
        }
    }
}

fn three() -> Value {
    json!([device("a", json!({})), device("b", json!({})), device("c", json!({}))])
}

#[test]
fn devices_are_allocated_by_count_and_once() {
    let mut world = World::of(three());
    let two = claim("two", json!({"requests": [request("r", json!({"count": 2}))]}));
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    assert_eq!(world.devices("n1", &[&two]), "r=a r=b");
    assert_eq!(world.devices("n1", &[&two, &one]), "r=a r=b, r=c");
    assert_eq!(world.devices("n1", &[&two, &two]), "none");
    assert_eq!(world.devices("n2", &[&one]), "none");
    world.take(&two);
    assert_eq!(world.devices("n1", &[&one]), "r=c");
    assert_eq!(world.devices("n1", &[&two]), "none");
    let admin = claim("admin", json!({"requests": [request("r", json!({"adminAccess": true}))]}));
    assert_eq!(world.devices("n1", &[&admin, &one]), "r=a, r=c");
    world.take(&admin);
    assert_eq!(world.devices("n1", &[&admin]), "r=a", "admin access takes nothing");
    let many = claim("many", json!({"requests": [request("r", json!({"count": 33}))]}));
    assert_eq!(
        world.devices("n1", &[&many]),
        "claim default/many: number of requested devices 33 exceeds the claim limit of 32"
    );
    let other = claim("x", json!({"requests": [request("r", json!({"deviceClassName": "y"}))]}));
    assert!(world.devices("n1", &[&other]).contains("could not retrieve device class y"));
}

#[test]
fn devices_of_pools_with_binding_conditions_are_taken_last() {
    let pool = |name: &str, device: Value| {
        slice(
            name,
            json!({"spec": {"devices": [device],
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}}),
        )
    };
    let world = World::new(vec![
        pool("p1", device("a", json!({"bindingConditions": ["Attached"]}))),
        pool("p2", device("b", json!({}))),
    ]);
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    assert_eq!(world.devices("n1", &[&one]), "r=b");
    assert_eq!(world.devices("n1", &[&one, &one]), "r=b, r=a");
}

#[test]
fn devices_are_all_allocated_or_none() {
    let all = claim(
        "all",
        json!({"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]}),
    );
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    let mut world = World::of(three());
    assert_eq!(world.devices("n1", &[&all]), "r=a r=b r=c");
    assert_eq!(world.devices("n2", &[&all]), "none");
    world.take(&one);
    assert_eq!(world.devices("n1", &[&all]), "none");
    let same = claim(
        "same",
        json!({
            "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}],
            "constraints": [{"matchAttribute": "gpu.example.com/model"}],
        }),
    );
    let world = World::of(three());
    assert_eq!(
        world.devices("n1", &[&same]),
        "claim default/same, request r: cannot add device gpu.example.com/n1/a because a claim constraint would not be satisfied"
    );
    let half = json!({"spec": {"devices": three(), "pool": {"resourceSliceCount": 2}}});
    let world = World::new(vec![slice("s", half)]);
    assert_eq!(
        world.devices("n1", &[&all]),
        "claim default/all, request r: asks for all devices, but resource pool gpu.example.com/n1 is currently being updated"
    );
    assert_eq!(world.devices("n1", &[&one]), "none", "nothing comes of an incomplete pool");
}

#[test]
fn devices_meet_constraints() {
    let model = |name: &str, model: &str, uuid: i64| {
        device(
            name,
            json!({"attributes": {
            "model": {"string": model}, "gpu.example.com/slot": {"int": uuid}}}),
        )
    };
    let world = World::of(json!([
        model("a", "x", 1),
        model("b", "y", 1),
        model("c", "y", 2),
        device("d", json!({}))
    ]));
    let with = |constraint: Value| {
        claim(
            "c",
            json!({
                "requests": [request("r", json!({})), request("s", json!({}))],
                "constraints": [constraint],
            }),
        )
    };
    let table = [
        (json!({"matchAttribute": "gpu.example.com/model"}), "r=b s=c"),
        (json!({"distinctAttribute": "gpu.example.com/model"}), "r=a s=b"),
        (json!({"matchAttribute": "gpu.example.com/slot"}), "r=a s=b"),
        (json!({"matchAttribute": "other.example.com/model"}), "none"),
        (json!({"matchAttribute": "other.example.com/model", "requests": ["t"]}), "r=a s=b"),
        (
            json!({}),
            "claim default/c, constraint #0: empty constraint (unsupported constraint type?)",
        ),
    ];
    for (constraint, expected) in table {
        assert_eq!(world.devices("n1", &[&with(constraint.clone())]), expected, "{constraint}");
    }
}

#[test]
fn devices_are_of_the_first_alternative_that_can_be_had() {
    let alternative = |name: &str, count: i64| {
        json!({"name": name, "deviceClassName": "gpu",
        "allocationMode": "ExactCount", "count": count})
    };
    let list = |counts: &[i64]| {
        let all: Vec<_> =
            counts.iter().map(|count| alternative(&format!("x{count}"), *count)).collect();
        json!({"name": "r", "firstAvailable": all})
    };
    let mut world = World::of(three());
    let most = claim("most", json!({"requests": [list(&[4, 2, 1])]}));
    assert_eq!(world.devices("n1", &[&most]), "r/x2=a r/x2=b");
    // The first alternative would leave none for the other request.
    let both = claim("both", json!({"requests": [list(&[3, 2]), request("s", json!({}))]}));
    assert_eq!(world.devices("n1", &[&both]), "r/x2=a r/x2=b s=c");
    // An alternative that a claim cannot hold is passed over.
    let huge = claim("huge", json!({"requests": [list(&[40, 1])]}));
    assert_eq!(world.devices("n1", &[&huge]), "r/x1=a");
    world.take(&both);
    assert_eq!(world.devices("n1", &[&most]), "none");
}

#[test]
fn devices_with_taints_need_tolerations() {
    let taint = |effect: &str| json!({"taints": [{"key": "k", "value": "v", "effect": effect}]});
    let world = World::of(json!([
        device("a", taint("NoSchedule")),
        device("b", taint("NoExecute")),
        device("c", taint("None"))
    ]));
    let with = |tolerations: Value| {
        let request = request("r", json!({"tolerations": tolerations}));
        claim("c", json!({"requests": [request]}))
    };
    let table = [
        (json!([]), "r=c"),
        (json!([{"key": "k", "operator": "Exists"}]), "r=a"),
        (json!([{"key": "k", "value": "v", "effect": "NoExecute"}]), "r=b"),
        (json!([{"key": "k", "value": "other"}]), "r=c"),
        (json!([{"operator": "Exists"}]), "r=a"),
    ];
    for (tolerations, expected) in table {
        assert_eq!(world.devices("n1", &[&with(tolerations.clone())]), expected, "{tolerations}");
    }
}

#[test]
fn devices_reach_nodes_by_name_selector_or_all() {
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    let selector = |zone: &str| {
        json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": [zone]}]}]})
    };
    let table = [
        (
            json!({}),
            "n1",
            true,
            json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}),
        ),
        (json!({}), "n2", false, Value::Null),
        (json!({"nodeName": null, "allNodes": true}), "n2", true, Value::Null),
        (json!({"nodeName": null, "nodeSelector": selector("a")}), "n2", true, selector("a")),
        (json!({"nodeName": null, "nodeSelector": selector("b")}), "n2", false, Value::Null),
        (json!({"nodeName": null}), "n1", false, Value::Null),
    ];
    for (spec, on, fits, expected) in table {
        let mut own = json!({"spec": {"devices": [device("a", json!({}))]}});
        merge(&mut own["spec"], spec.clone());
        let world = World::new(vec![slice("s", own)]);
        let found = world.results(on, &[&one]).unwrap();
        assert_eq!(found.is_some(), fits, "{spec} {on}");
        if let Some(found) = found {
            assert_eq!(json!(found[0].node_selector), expected, "{spec} {on}");
        }
    }
    let own = json!({"spec": {"nodeName": null, "perDeviceNodeSelection": true, "devices": [
        device("a", json!({"nodeName": "n1"})), device("b", json!({"allNodes": true}))]}});
    let world = World::new(vec![slice("s", own)]);
    assert_eq!(world.devices("n1", &[&one]), "r=a");
    assert_eq!(world.devices("n2", &[&one]), "r=b");
}

#[test]
fn devices_of_older_generations_and_of_contradicting_pools_are_left_out() {
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    let with = |name: &str, generation: i64, device: &str| {
        slice(
            name,
            json!({"spec": {
            "pool": {"generation": generation}, "devices": [{"name": device}]}}),
        )
    };
    let world = World::new(vec![with("s1", 1, "old"), with("s2", 2, "new")]);
    assert_eq!(world.devices("n1", &[&one]), "r=new");
    let elsewhere = json!({"spec": {"nodeName": "n2", "pool": {"generation": 2}}});
    let world = World::new(vec![with("s1", 1, "old"), slice("s2", elsewhere)]);
    assert_eq!(world.devices("n1", &[&one]), "none");
    let twice = json!({"spec": {"devices": [{"name": "a"}, {"name": "a"}]}});
    let world = World::new(vec![slice("s", twice)]);
    assert_eq!(world.devices("n1", &[&one]), "invalid resource pools were encountered");
}

#[test]
fn devices_share_counters_of_their_pool() {
    let part = |name: &str, memory: &str| {
        device(
            name,
            json!({"consumesCounters": [
            {"counterSet": "gpu-1", "counters": {"memory": {"value": memory}}}]}),
        )
    };
    let counters = json!({"spec": {
        "pool": {"resourceSliceCount": 2},
        "sharedCounters": [{"name": "gpu-1", "counters": {"memory": {"value": "40Gi"}}}]}});
    let devices = json!({"spec": {
        "pool": {"resourceSliceCount": 2},
        "devices": [part("whole", "40Gi"), part("half-1", "20Gi"), part("half-2", "20Gi")]}});
    let mut world = World::new(vec![slice("c", counters), slice("d", devices)]);
    let one = claim("one", json!({"requests": [request("r", json!({}))]}));
    let two = claim("two", json!({"requests": [request("r", json!({"count": 2}))]}));
    assert_eq!(world.devices("n1", &[&one]), "r=whole");
    assert_eq!(world.devices("n1", &[&two]), "r=half-1 r=half-2");
    world.take(&one);
    assert_eq!(world.devices("n1", &[&one]), "none");
}

#[test]
fn devices_with_capacity_are_shared_until_it_is_used() {
    let mut world = World::of(json!([device(
        "nic",
        json!({
        "allowMultipleAllocations": true,
        "capacity": {"bandwidth": {"value": "10G", "requestPolicy": {
            "default": "1G", "validRange": {"min": "1G", "max": "8G", "step": "1G"}}}}})
    )]));
    let with = |amount: &str| {
        let capacity = json!({"capacity": {"requests": {"bandwidth": amount}}});
        claim(amount, json!({"requests": [request("r", capacity)]}))
    };
    let taken = world.results("n1", &[&with("5500M")]).unwrap().unwrap();
    let result = json!(taken[0].devices.as_ref().unwrap().results.as_ref().unwrap()[0]);
    assert_eq!(result["consumedCapacity"]["bandwidth"], "6000000000", "rounded up to a step");
    assert_eq!(result["shareID"].as_str().unwrap().len(), 36);
    world.take(&with("5500M"));
    assert_eq!(world.devices("n1", &[&with("5G")]), "none");
    assert_eq!(world.devices("n1", &[&with("9G")]), "none", "more than the policy allows");
    assert_eq!(world.devices("n1", &[&with("2G"), &with("1G")]), "r=nic, r=nic");
    let plain = claim("plain", json!({"requests": [request("r", json!({}))]}));
    world.take(&with("4G"));
    assert_eq!(world.devices("n1", &[&plain]), "none");
    let other = json!({"capacity": {"requests": {"x": "1"}}});
    let other = claim("other", json!({"requests": [request("r", other)]}));
    assert_eq!(world.devices("n1", &[&other]), "none");
}

#[test]
fn devices_come_with_the_configuration_of_class_and_claim() {
    let mut world = World::of(three());
    let opaque =
        |text: &str| json!({"opaque": {"driver": "gpu.example.com", "parameters": {"of": text}}});
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"config": [opaque("class")]}});
    let class = DeviceClass::new(&serde_json::from_value(class).unwrap());
    world.classes.insert(class.name.clone(), class);
    let mut named = opaque("s");
    named["requests"] = json!(["s"]);
    let mut absent = opaque("absent");
    absent["requests"] = json!(["t"]);
    let own = claim(
        "c",
        json!({
            "requests": [request("r", json!({})), request("s", json!({}))],
            "config": [opaque("all"), named, absent],
        }),
    );
    let found = world.results("n1", &[&own]).unwrap().unwrap();
    let config = json!(found[0].devices.as_ref().unwrap().config);
    let all: Vec<_> = config
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            format!("{} {} {}", one["source"], one["requests"], one["opaque"]["parameters"]["of"])
        })
        .collect();
    assert_eq!(
        all,
        [
            "\"FromClass\" [\"r\",\"s\"] \"class\"",
            "\"FromClaim\" null \"all\"",
            "\"FromClaim\" [\"s\"] \"s\"",
        ]
    );
}

#[test]
fn devices_search_ends_when_it_takes_too_long() {
    let devices: Vec<_> = (0..64)
        .map(|number| {
            device(
                &format!("d{number}"),
                json!({
        "attributes": {"slot": {"int": number}}}),
            )
        })
        .collect();
    let world = World::of(devices.into());
    // No two devices have the same slot, which the search sees only by trying.
    let requests: Vec<_> =
        (0..20).map(|number| request(&format!("r{number}"), json!({}))).collect();
    let pairs: Vec<_> = (0..10)
        .map(|pair| {
            json!({"distinctAttribute": "gpu.example.com/slot",
        "requests": [format!("r{pair}")]})
        })
        .chain([json!({
        "matchAttribute": "gpu.example.com/slot", "requests": ["r18", "r19"]})])
        .collect();
    let own = claim("c", json!({"requests": requests, "constraints": pairs}));
    let mut allocator = Allocator::new(world.slices.iter(), &world.classes, &world.used);
    allocator.max_steps = 1000;
    let found = allocator.allocate(&node("n1", 1, json!({})), &[&own]);
    assert_eq!(found, Err(AllocationError::TooLong));
}

#[test]
fn devices_are_selected_by_expressions() {
    let large = json!({
        "attributes": {
            "model": {"string": "a100"}, "other.example.com/index": {"int": 3}, "ecc": {"bool": true},
            "driverVersion": {"version": "1.10.0"},
        },
        "capacity": {"memory": {"value": "40Gi"}},
    });
    let small = json!({
        "attributes": {"model": {"string": "t4"}}, "capacity": {"memory": {"value": "16Gi"}},
    });
    let devices = json!([device("small", small), device("large", large)]);
    let world = World::new(vec![slice("s", json!({"spec": {"devices": devices}}))]);
    for (expression, expected) in [
        ("true", "r=small"),
        ("false", "none"),
        ("device.driver == 'gpu.example.com'", "r=small"),
        ("device.attributes['gpu.example.com'].model == 'a100'", "r=large"),
        ("device.attributes['other.example.com'].?index.orValue(0) > 2", "r=large"),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('20Gi')) > 0", "r=large"),
        (
            "'driverVersion' in device.attributes['gpu.example.com'] && \
             device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.9.0'))",
            "r=large",
        ),
        ("has(device.attributes['none.example.com'].model)", "none"),
        ("'none.example.com' in device.attributes", "none"),
        ("device.allowMultipleAllocations", "none"),
        (
            "device.attributes['gpu.example.com'].nothing == 1",
            "claim default/c: selector #0: CEL runtime error: no such key: nothing",
        ),
    ] {
        let selectors = json!({"selectors": [{"cel": {"expression": expression}}]});
        let own = claim("c", json!({"requests": [request("r", selectors)]}));
        assert_eq!(world.devices("n1", &[&own]), expected, "{expression}");
    }
    for (expression, expected) in [
        ("device.nothing", "undefined field"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("1 +", "Syntax error"),
    ] {
        let selectors = json!({"selectors": [{"cel": {"expression": expression}}]});
        let own = claim("c", json!({"requests": [request("r", selectors)]}));
        let found = world.devices("n1", &[&own]);
        assert!(found.starts_with("claim default/c: selector #0: CEL compile error: "), "{found}");
        assert!(found.contains(expected), "{found}");
    }
}

fn counts() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    // Claims as counts of their requests; whether they have admin access.
    prop::collection::vec((prop::collection::vec(1u8..4, 1..3), prop::bool::weighted(0.1)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No device is allocated twice, whatever claims come and go, and all get what they ask for.
    #[test]
    fn devices_are_never_allocated_twice(
        sizes in prop::collection::vec(0usize..4, 1..4),
        claims in counts(),
        released in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let slices = sizes.iter().enumerate().map(|(index, size)| {
            let devices: Vec<_> =
                (0..*size).map(|number| device(&format!("d{number}"), json!({}))).collect();
            let name = format!("pool-{index}");
            slice(&name, json!({"spec": {"pool": {"name": name}, "devices": devices}}))
        });
        let mut world = World::new(slices.collect());
        let total: usize = sizes.iter().sum();
        let mut held: Vec<(AllocationResult, bool)> = Vec::new();
        for (number, (counts, is_admin)) in claims.iter().enumerate() {
            let requests: Vec<_> = counts.iter().enumerate().map(|(index, count)| {
                let more = json!({"count": count, "adminAccess": is_admin});
                request(&format!("r{index}"), more)
            }).collect();
            let own = claim(&format!("c{number}"), json!({"requests": requests}));
            let wanted: usize = counts.iter().map(|count| usize::from(*count)).sum();
            let used: usize = held.iter().filter(|(_, is_admin)| !is_admin).map(|(own, _)| {
                own.devices.as_ref().unwrap().results.as_ref().unwrap().len()
            }).sum();
            let left = if *is_admin { total } else { total - used };
            let found = world.results("n1", &[&own]).unwrap();
            prop_assert_eq!(found.is_some(), wanted <= left, "{} of {}", wanted, left);
            if let Some(mut found) = found {
                let found = found.remove(0);
                world.used.add(&found);
                held.push((found, *is_admin));
            }
            let mut seen = HashSet::new();
            for (own, is_admin) in &held {
                let mut of_claim = HashSet::new();
                for one in own.devices.as_ref().unwrap().results.as_ref().unwrap() {
                    let id = format!("{}/{}", one.pool, one.device);
                    prop_assert!(of_claim.insert(id.clone()), "twice in a claim: {}", id);
                    prop_assert!(*is_admin || seen.insert(id.clone()), "allocated twice: {}", id);
                }
            }
            if let Some(index) = released.get(number).filter(|_| !held.is_empty()) {
                let (gone, _) = held.remove(index.index(held.len()));
                world.used.remove(&gone);
            }
        }
        for (own, _) in &held {
            world.used.remove(own);
        }
        prop_assert!(world.used.is_empty());
    }
}
