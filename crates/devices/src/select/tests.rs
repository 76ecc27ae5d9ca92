use k8s_openapi::api::core::v1::Pod;
use longshore_topology::{DeviceProvider, DeviceRefusal, Hint};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::state::{Device, State};
use crate::v1beta1::{ContainerAllocateResponse, DevicePluginOptions};

const GPU: &str = "example.com/gpu";
const NIC: &str = "example.com/nic";

/// A device: its ID, whether it is healthy, NUMA nodes.
type Listed<'a> = (&'a str, bool, Option<&'a [i64]>);

/// A state with these devices by resource.
fn state(resources: &[(&str, &[Listed<'_>])], prefers: bool) -> Mutex<State> {
    let mut state = State::default();
    for (resource, devices) in resources {
        let options = DevicePluginOptions {
            get_preferred_allocation_available: prefers,
            ..DevicePluginOptions::default()
        };
        let generation = state.connected(resource, options);
        let devices = devices.iter().map(|(id, healthy, nodes)| {
            let health = if *healthy { "Healthy" } else { "Unhealthy" };
            let nodes = nodes.map(<[i64]>::to_vec);
            ((*id).to_owned(), Device { health: health.to_owned(), nodes })
        });
        state.listed(resource, generation, devices.collect());
    }
    Mutex::new(state)
}

fn simple(ids: &[&str]) -> Mutex<State> {
    let devices: Vec<_> = ids.iter().map(|id| (*id, true, None)).collect();
    state(&[(GPU, &devices)], false)
}

fn container(name: &str, limits: Value) -> Value {
    json!({"name": name, "resources": {"limits": limits, "requests": limits}})
}

fn pod(uid: &str, init: &[Value], containers: &[Value]) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default"},
        "spec": {"initContainers": init, "containers": containers},
    }))
    .unwrap()
}

fn one(uid: &str, count: u32) -> Pod {
    pod(uid, &[], &[container("c", json!({GPU: count}))])
}

static NODES: NumaNodes = NumaNodes::new(|| vec![0, 1]);

/// Chooses for all containers of a pod, and commits.
fn choose(state: &Mutex<State>, pod: &Pod, nodes: Option<NumaMask>) -> Result<(), String> {
    let preferences = Preferences::default();
    let mut selection = Selection::new(state.lock(), pod, &preferences, &NODES);
    for (_, container) in spec::containers(pod.spec.as_ref().unwrap()) {
        selection.allocate(&container.name, nodes).map_err(|refusal| refusal.to_string())?;
    }
    selection.commit();
    Ok(())
}

fn held(state: &Mutex<State>, uid: &str, container: &str) -> Vec<String> {
    let state = state.lock();
    let holding = state.holding(uid, container, GPU);
    holding.map(|own| own.ids().into_iter().collect()).unwrap_or_default()
}

fn unexpected(why: &str) -> Result<(), String> {
    Err(format!("Allocate failed due to {why}, which is unexpected"))
}

#[test]
fn device_choice_takes_free_healthy_ones() {
    let state = state(&[(GPU, &[("a", false, None), ("b", true, None), ("c", true, None)])], false);
    choose(&state, &one("1", 1), None).unwrap();
    assert_eq!(held(&state, "1", "c"), ["b"]);
    choose(&state, &one("2", 1), None).unwrap();
    assert_eq!(held(&state, "2", "c"), ["c"]);
    let expected = "requested number of devices unavailable for example.com/gpu. Requested: 1, \
                    Available: 0";
    assert_eq!(choose(&state, &one("3", 1), None), unexpected(expected));
    assert!(held(&state, "3", "c").is_empty());
    state.lock().release("1");
    assert_eq!(choose(&state, &one("3", 1), None), Ok(()));
}

#[test]
fn device_choice_is_refused_with_texts_of_upstream() {
    let none = state(&[(GPU, &[("a", false, None)])], false);
    let expected = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(choose(&none, &one("1", 1), None), unexpected(expected));

    let state = simple(&["a", "b"]);
    choose(&state, &one("1", 1), None).unwrap();
    let expected = "pod \"1\" container \"c\" changed request for resource \"example.com/gpu\" from \
                    1 to 2";
    assert_eq!(choose(&state, &one("1", 2), None), unexpected(expected));
    assert_eq!(held(&state, "1", "c"), ["a"], "it keeps what it has");
    assert_eq!(choose(&state, &one("1", 1), None), Ok(()), "again for the same");

    let generation = state.lock().resources[GPU].endpoint.generation;
    let healthy = |id: &str| (id.to_owned(), Device { health: "Healthy".to_owned(), nodes: None });
    state.lock().listed(GPU, generation, [healthy("b")].into());
    let expected = "previously allocated devices are no longer healthy; cannot allocate unhealthy \
                    devices example.com/gpu";
    assert_eq!(choose(&state, &one("1", 1), None), unexpected(expected));

    // Held by a pod, and its plugin is not registered any more.
    state.lock().resources.clear();
    let expected = "cannot allocate unregistered device example.com/gpu";
    assert_eq!(choose(&state, &one("2", 1), None), unexpected(expected));
}

#[test]
fn device_choice_ignores_resources_that_no_plugin_has() {
    let state = simple(&["a"]);
    let other = pod("1", &[], &[container("c", json!({NIC: 3, "cpu": 1, GPU: 0}))]);
    assert_eq!(choose(&state, &other, None), Ok(()));
    assert!(state.lock().pods.is_empty());
    let mut backed = one("2", 1);
    backed.status = serde_json::from_value(json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "claim",
        "requestMappings": [{"containerName": "c", "resourceName": GPU, "requestName": "r"}],
    }}))
    .unwrap();
    assert_eq!(choose(&state, &backed, None), Ok(()));
    assert!(state.lock().pods.is_empty(), "devices of a claim stand for it");
}

#[test]
fn device_choice_of_init_containers_is_used_again_and_that_of_sidecars_is_not() {
    let mut sidecar = container("s", json!({GPU: 1}));
    sidecar["restartPolicy"] = json!("Always");
    let init = [container("i", json!({GPU: 2})), sidecar, container("j", json!({GPU: 1}))];
    let own = pod("1", &init, &[container("c", json!({GPU: 1})), container("d", json!({GPU: 1}))]);
    let state = simple(&["a", "b", "c"]);
    choose(&state, &own, None).unwrap();
    assert_eq!(held(&state, "1", "i"), ["a", "b"]);
    assert_eq!(held(&state, "1", "s"), ["a"]);
    assert_eq!(held(&state, "1", "j"), ["b"]);
    assert_eq!(held(&state, "1", "c"), ["b"]);
    assert_eq!(held(&state, "1", "d"), ["c"]);
}

#[test]
fn device_choice_is_undone_unless_it_is_committed() {
    let state = simple(&["a", "b"]);
    let preferences = Preferences::default();
    let own = one("1", 1);
    let mut selection = Selection::new(state.lock(), &own, &preferences, &NODES);
    selection.allocate("c", None).unwrap();
    drop(selection);
    assert!(state.lock().pods.is_empty());

    choose(&state, &own, None).unwrap();
    let more = pod("1", &[], &[container("c", json!({GPU: 1})), container("d", json!({GPU: 1}))]);
    let mut selection = Selection::new(state.lock(), &more, &preferences, &NODES);
    selection.allocate("c", None).unwrap();
    selection.allocate("d", None).unwrap();
    drop(selection);
    assert_eq!(held(&state, "1", "c"), ["a"]);
    assert!(held(&state, "1", "d").is_empty());
}

#[test]
fn device_choice_says_whether_plugins_have_to_allocate() {
    let state = simple(&["a"]);
    let preferences = Preferences::default();
    let own = one("1", 1);
    let commit = || {
        let mut selection = Selection::new(state.lock(), &own, &preferences, &NODES);
        selection.allocate("c", None).unwrap();
        selection.commit()
    };
    assert!(commit());
    if let Some(holding) = state.lock().pods.get_mut("1").and_then(|own| own.get_mut("c")) {
        holding.get_mut(GPU).unwrap().response = Some(ContainerAllocateResponse::default());
    }
    assert!(!commit(), "it has them already");
}

#[test]
fn device_choice_prefers_the_nodes_of_the_hint() {
    let devices: &[Listed<'_>] = &[
        ("a", true, Some(&[0])),
        ("b", true, Some(&[1])),
        ("c", true, None),
        ("d", true, Some(&[0, 1])),
        ("e", true, Some(&[1])),
    ];
    let mask = |nodes: &[u32]| Some(nodes.iter().copied().collect::<NumaMask>());
    for (nodes, count, expected) in [
        (None, 2, &["a", "b"][..]),
        (mask(&[1]), 1, &["b"]),
        (mask(&[1]), 3, &["b", "d", "e"]),
        (mask(&[1]), 4, &["a", "b", "d", "e"]),
        (mask(&[0]), 3, &["a", "b", "d"]),
        (mask(&[0]), 5, &["a", "b", "c", "d", "e"]),
    ] {
        let state = state(&[(GPU, devices)], false);
        choose(&state, &one("1", count), nodes).unwrap();
        assert_eq!(held(&state, "1", "c"), expected, "{nodes:?} {count}");
    }
}

/// Chooses with answers of the plugin; returns the questions.
fn ask(
    state: &Mutex<State>,
    pod: &Pod,
    nodes: Option<NumaMask>,
    answer: impl Fn(&Query) -> Preference,
) -> (Vec<Query>, Result<(), String>) {
    let mut preferences = Preferences::default();
    let mut queries = Vec::new();
    loop {
        let query = {
            let mut selection = Selection::new(state.lock(), pod, &preferences, &NODES);
            let containers = spec::containers(pod.spec.as_ref().unwrap());
            let names: Vec<String> = containers.map(|(_, own)| own.name.clone()).collect();
            let outcome = names.iter().try_for_each(|name| selection.allocate(name, nodes));
            match outcome {
                Ok(()) => {
                    selection.commit();
                    return (queries, Ok(()));
                }
                Err(DeviceRefusal::Unanswered) => selection.query().unwrap(),
                Err(refusal) => return (queries, Err(refusal.to_string())),
            }
        };
        assert!(state.lock().pods.is_empty(), "undone until the plugin has answered");
        queries.push(query.clone());
        let preference = answer(&query);
        preferences.add(query, preference);
    }
}

fn ids(ids: &[&str]) -> Preference {
    Preference::Devices(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[test]
fn device_choice_follows_the_plugin() {
    let devices = ["a", "b", "c", "d"].map(|id| (id, true, None));
    let state = || state(&[(GPU, &devices)], true);
    for (answer, expected) in [
        (ids(&["d", "b"]), &["b", "d"][..]),
        (ids(&["d"]), &["a", "d"]),
        (ids(&[]), &["a", "b"]),
        (ids(&["x", "y"]), &["a", "b"]),
        (ids(&["d", "d", "c", "b"]), &["c", "d"]),
    ] {
        let state = state();
        let (queries, outcome) = ask(&state, &one("1", 2), None, |_| answer.clone());
        assert_eq!(outcome, Ok(()));
        assert_eq!(queries.len(), 1);
        assert_eq!((queries[0].count, queries[0].available.len()), (2, 4));
        assert_eq!(held(&state, "1", "c"), expected, "{answer:?}");
    }
    let (_, outcome) =
        ask(&state(), &one("1", 1), None, |_| Preference::Failed("rpc error".to_owned()));
    let expected = "device plugin GetPreferredAllocation rpc failed with err: rpc error";
    assert_eq!(outcome, unexpected(expected));
}

#[test]
fn device_choice_asks_for_the_aligned_ones_first() {
    let devices: &[Listed<'_>] = &[
        ("a", true, Some(&[0])),
        ("b", true, Some(&[1])),
        ("c", true, Some(&[1])),
        ("d", true, Some(&[0])),
    ];
    let nodes = Some([1].into_iter().collect());
    let state = || state(&[(GPU, devices)], true);
    let first = state();
    let (queries, outcome) = ask(&first, &one("1", 1), nodes, |_| ids(&["a", "c"]));
    assert_eq!(outcome, Ok(()));
    assert_eq!(queries[0].available, ["b", "c"].map(str::to_owned).into());
    assert_eq!(held(&first, "1", "c"), ["c"]);
    let second = state();
    let (queries, outcome) = ask(&second, &one("1", 3), nodes, |_| ids(&["d"]));
    assert_eq!(outcome, Ok(()));
    assert_eq!(queries[0].chosen, ["b", "c"].map(str::to_owned).into());
    assert_eq!(queries[0].available.len(), 4);
    assert_eq!(held(&second, "1", "c"), ["b", "c", "d"]);
}

#[test]
fn device_choice_does_not_ask_for_ever() {
    let devices = ["a", "b"].map(|id| (id, true, None));
    let state = state(&[(GPU, &devices)], true);
    let mut preferences = Preferences::default();
    for _ in 0..MOST_QUERIES {
        let query =
            Query { resource: NIC.to_owned(), available: Ids::new(), chosen: Ids::new(), count: 0 };
        preferences.add(query, ids(&[]));
    }
    let own = one("1", 1);
    let mut selection = Selection::new(state.lock(), &own, &preferences, &NODES);
    assert_eq!(selection.allocate("c", None), Ok(()));
}

fn hint(nodes: &[u32], preferred: bool) -> Hint {
    Hint { nodes: Some(nodes.iter().copied().collect()), preferred }
}

fn hints(state: &Mutex<State>, pod: &Pod) -> Vec<Hint> {
    let preferences = Preferences::default();
    let mut selection = Selection::new(state.lock(), pod, &preferences, &NODES);
    let whole = selection.pod_hints().remove(GPU).unwrap();
    let own = selection.hints("c").remove(GPU).unwrap();
    assert_eq!(own, whole, "the pod has one container");
    own
}

#[test]
fn device_hints_by_request_and_free_devices() {
    let none = simple(&["a"]);
    assert_eq!(hints(&none, &one("1", 1)), [Hint { nodes: None, preferred: true }]);
    let devices: &[Listed<'_>] = &[
        ("a", true, Some(&[0])),
        ("b", true, Some(&[1])),
        ("c", true, Some(&[1])),
        ("d", true, Some(&[7])),
    ];
    let state = state(&[(GPU, devices)], false);
    let all = [hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    assert_eq!(hints(&state, &one("1", 1)), all);
    assert_eq!(hints(&state, &one("1", 2)), [hint(&[1], true), hint(&[0, 1], false)]);
    assert_eq!(hints(&state, &one("1", 3)), [hint(&[0, 1], true)]);
    assert!(hints(&state, &one("1", 5)).is_empty(), "there are not so many");
    choose(&state, &one("1", 1), Some([1].into_iter().collect())).unwrap();
    // Two would still fit on one node if all were free.
    assert_eq!(hints(&state, &one("2", 2)), [hint(&[0, 1], false)]);
    // What a pod holds already.
    assert_eq!(hints(&state, &one("1", 1)), [hint(&[1], true), hint(&[0, 1], false)]);
    assert!(hints(&state, &one("1", 2)).is_empty(), "it holds another number");
}

#[test]
fn device_hints_count_devices_of_init_containers() {
    let devices: &[Listed<'_>] = &[("a", true, Some(&[0])), ("b", true, Some(&[1]))];
    let state = state(&[(GPU, devices)], false);
    let own = pod("1", &[container("i", json!({GPU: 1}))], &[container("c", json!({GPU: 1}))]);
    let preferences = Preferences::default();
    let mut selection = Selection::new(state.lock(), &own, &preferences, &NODES);
    selection.allocate("i", Some([1].into_iter().collect())).unwrap();
    let found = selection.hints("c").remove(GPU).unwrap();
    assert_eq!(found, [hint(&[1], true), hint(&[0, 1], false)], "that of the init container again");
}

#[test]
fn device_hints_of_many_nodes_are_bounded() {
    let devices: Vec<(String, Vec<i64>)> =
        (0..64).map(|node| (format!("d{node}"), vec![node, i64::MAX, -5])).collect();
    let devices: Vec<_> =
        devices.iter().map(|(id, nodes)| (id.as_str(), true, Some(nodes.as_slice()))).collect();
    let state = state(&[(GPU, &devices)], false);
    let state = state.lock();
    let nodes: Vec<u32> = (0..64).collect();
    let found = topology::hints(&state, GPU, 2, &Ids::new(), &Ids::new(), &nodes);
    assert!(found.len() < 1 << 16 && !found.is_empty());
}

#[test]
fn device_requests_of_a_pod_are_its_peak() {
    let state = simple(&["a", "b", "c", "d"]);
    let init = [container("i", json!({GPU: 3}))];
    let own = pod("1", &init, &[container("c", json!({GPU: 1})), container("d", json!({GPU: 1}))]);
    let request = PodRequest::of(&own, &state.lock());
    assert_eq!(request.whole, [(GPU.to_owned(), 3)].into());
    assert_eq!(request.resources().collect::<Vec<_>>(), [GPU]);
}
