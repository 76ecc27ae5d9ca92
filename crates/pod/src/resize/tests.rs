use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::resources::requests;

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 2},
        "spec": spec,
    }))
    .unwrap()
}

fn with_resources(name: &str, requests: Value, limits: Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn one(requests: Value, limits: Value) -> Pod {
    pod(json!({"containers": [with_resources("c", requests, limits)]}))
}

fn requested(pod: &Pod) -> PodResources {
    PodResources::requested(pod.spec.as_ref().unwrap(), Gates::default())
}

/// A file written by the Go kubelet.
const WRITTEN: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

#[test]
fn resize_checkpoint_reads_upstream_files() {
    let entries = decode(WRITTEN.as_bytes()).unwrap();
    let requests = entries["pod1"].containers["container1"].requests.as_ref().unwrap();
    assert_eq!((requests["cpu"].0.as_str(), &entries["pod1"].pod), ("1Ki", &None));
    // What it writes for pods without resources, for a nil map, and for no pods at all.
    for (data, expected) in [
        (r#"{"entries":{"u":{"ContainerResources":{"c":{}},"PodLevelResources":null}}}"#, 1),
        (r#"{"entries":{"u":{"ContainerResources":null,"PodLevelResources":{}}}}"#, 1),
        ("{}", 0),
    ] {
        let checksum = super::checkpoint::checksum(data);
        let file = json!({"data": data, "checksum": checksum}).to_string();
        assert_eq!(decode(file.as_bytes()).unwrap().len(), expected, "{data}");
    }
}

#[test]
fn resize_checkpoint_is_written_as_upstream() {
    let pod = pod(json!({
        "resources": {"limits": {"cpu": "2"}},
        "containers": [with_resources("c", json!({"memory": "1Mi", "cpu": "100m"}), json!({"cpu": "1"})), {"name": "d"}],
    }));
    let file = encode(&BTreeMap::from([("u".to_owned(), Arc::new(requested(&pod)))])).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(
        file["data"].as_str().unwrap(),
        r#"{"entries":{"u":{"ContainerResources":{"c":{"limits":{"cpu":"1"},"requests":{"cpu":"100m","memory":"1Mi"}},"d":{}},"PodLevelResources":{"limits":{"cpu":"2"}}}}}"#
    );
    let nothing = encode(&BTreeMap::new()).unwrap();
    assert!(String::from_utf8(nothing).unwrap().contains(r#""data":"{}""#));
}

#[test]
fn resize_checkpoint_rejects_damaged_files() {
    for (damaged, expected) in [
        (WRITTEN.replace("1Ki", "2Ki"), "checkpoint is corrupted"),
        (WRITTEN.replace("1178570812", "1"), "its checksum is 1, and 1178570812 of what it holds"),
        (WRITTEN[..40].to_owned(), "not a checkpoint"),
        (String::new(), "not a checkpoint"),
        ("null".to_owned(), "not a checkpoint"),
    ] {
        let error = decode(damaged.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{damaged}: {error}");
    }
}

#[test]
fn resize_compares_quantities_by_value() {
    let pod = one(json!({"cpu": "1"}), json!({"memory": "1Gi"}));
    let gates = Gates::default();
    let equal = requested(&one(json!({"cpu": "1000m"}), json!({"memory": "1024Mi"})));
    assert_eq!(allocated(&pod, &equal, gates), None);
    let less = requested(&one(json!({"cpu": "500m"}), json!({"memory": "1Gi"})));
    let current = allocated(&pod, &less, gates).unwrap();
    assert_eq!(requested(&current), less);
    assert_eq!(current.metadata, pod.metadata);
    // A container without an entry is left as it is.
    assert_eq!(allocated(&pod, &PodResources::default(), gates), None);
    let as_a_whole = PodResources { pod: Some(less.containers["c"].clone()), ..equal };
    assert!(allocated(&pod, &as_a_whole, gates).is_some());
    assert_eq!(allocated(&pod, &as_a_whole, Gates { resize_pods: false, ..gates }), None);
}

#[test]
fn resize_containers_without_limits_get_those_of_the_pod() {
    let pod = pod(json!({
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
        "containers": [with_resources("c", json!({}), json!({"cpu": "1"}))],
    }));
    let pod_spec = pod.spec.as_ref().unwrap();
    let limits = |gates| {
        let amounts = Amounts::of(&effective(pod_spec, &pod_spec.containers[0], gates));
        (amounts.cpu_limit, amounts.memory_limit)
    };
    assert_eq!(limits(Gates::default()), (1000, 1 << 30));
    assert_eq!(limits(Gates { resize_pods: false, ..Gates::default() }), (1000, 0));
}

#[test]
fn resize_is_infeasible_without_node_support() {
    let rules = Rules { pod_level: true, ..Rules::default() };
    let all = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        one(amounts.clone(), amounts)
    };
    let cpus = Rules { static_cpus: true, ..rules };
    let memory = Rules { static_memory: true, ..rules };
    let swap = Rules { limited_swap: true, ..rules };
    let burstable = |memory: &str| one(json!({"memory": memory}), json!({}));
    let mut restarting = burstable("1Gi");
    restarting.spec.as_mut().unwrap().containers[0].resize_policy = serde_json::from_value(
        json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]),
    )
    .unwrap();
    let as_a_whole = |cpu: &str| {
        pod(json!({"resources": {"limits": {"cpu": cpu}}, "containers": [{"name": "c"}]}))
    };
    for (requested, current, rules, expected) in [
        (guaranteed("2", "1Gi"), guaranteed("1", "1Gi"), rules, None),
        (
            guaranteed("2", "1Gi"),
            guaranteed("1", "1Gi"),
            cpus,
            Some(
                "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"",
            ),
        ),
        (guaranteed("1", "2Gi"), guaranteed("1", "1Gi"), cpus, None),
        (
            guaranteed("1", "2Gi"),
            guaranteed("1", "1Gi"),
            memory,
            Some(
                "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"",
            ),
        ),
        (one(all.clone(), json!({})), burstable("1Gi"), cpus, None),
        (
            burstable("2Gi"),
            burstable("1Gi"),
            swap,
            Some("In-place resize of containers with swap is not supported."),
        ),
        (burstable("2Gi"), restarting, swap, None),
        (guaranteed("1", "2Gi"), guaranteed("1", "1Gi"), swap, None),
        (
            as_a_whole("2"),
            as_a_whole("1"),
            Rules::default(),
            Some("InPlacePodLevelResourcesVerticalScaling is disabled"),
        ),
        (as_a_whole("2"), as_a_whole("1"), rules, None),
    ] {
        let found = infeasible(&requested, &current, rules);
        let found = found.map(|why| why.to_string());
        assert_eq!(found.as_deref(), expected, "{:?} {rules:?}", requested.spec);
    }
}

#[test]
fn resize_rank_by_decrease_priority_and_waiting_time() {
    let at = |seconds| Some(Timestamp::from_second(seconds).unwrap());
    let of = |priority: i32, memory: &str, limit: bool| {
        let amounts = json!({"cpu": "1", "memory": memory});
        let mut pod = one(amounts.clone(), if limit { amounts } else { json!({}) });
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    let before = of(0, "1Gi", false);
    let rank = |pod: &Pod, since| Rank::new(pod, &before, since);
    let order = [
        rank(&of(-5, "1Mi", false), None),
        rank(&of(9, "2Gi", false), at(9)),
        rank(&of(3, "2Gi", true), at(9)),
        rank(&of(3, "2Gi", false), at(1)),
        rank(&of(3, "2Gi", false), at(2)),
        rank(&of(3, "2Gi", false), None),
    ];
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
}

#[test]
fn resize_events_contain_the_requested_resources() {
    let pod = pod(json!({
        "initContainers": [{"name": "i"}],
        "containers": [with_resources("c", json!({"cpu": "1"}), json!({}))],
    }));
    assert_eq!(
        message("started", &pod, Some(2), ""),
        r#"Pod resize started: {"initContainers":[{"name":"i","resources":{}}],"containers":[{"name":"c","resources":{"limits":{},"requests":{"cpu":"1"}}}],"generation":2}"#
    );
    let error = message("error", &one(json!({}), json!({})), None, "so \"it\" is");
    assert!(error.ends_with(r#""generation":0,"error":"so \"it\" is"}"#), "{error}");
}

prop_compose! {
    fn resources()(amounts in prop::collection::vec(prop::option::of(1i64..5000), 4)) -> Value {
        let [cpu, memory, most_cpu, most_memory] = amounts[..] else { unreachable!() };
        let list = |cpu: Option<i64>, memory: Option<i64>| {
            let mut list = serde_json::Map::new();
            list.extend(cpu.map(|cpu| ("cpu".to_owned(), json!(format!("{cpu}m")))));
            list.extend(memory.map(|memory| ("memory".to_owned(), json!(format!("{memory}Mi")))));
            list
        };
        json!({"requests": list(cpu, memory), "limits": list(most_cpu, most_memory)})
    }
}

prop_compose! {
    fn any_pod()(all in prop::collection::vec(resources(), 1..4)) -> Pod {
        let containers = all.into_iter().enumerate();
        let containers: Vec<Value> =
            containers.map(|(i, own)| json!({"name": format!("c{i}"), "resources": own})).collect();
        pod(json!({"containers": containers}))
    }
}

proptest! {
    #[test]
    fn resize_checkpoint_round_trips(pods in prop::collection::btree_map("[a-z\"<é]{1,8}", any_pod(), 0..4)) {
        let entries: BTreeMap<_, _> =
            pods.iter().map(|(uid, pod)| (uid.clone(), Arc::new(requested(pod)))).collect();
        prop_assert_eq!(decode(&encode(&entries).unwrap()).unwrap(), entries);
    }

    #[test]
    fn resize_checkpoint_detects_a_damaged_byte(at in 0..WRITTEN.len(), byte in 0u8..128) {
        let mut damaged = WRITTEN.as_bytes().to_vec();
        prop_assume!(damaged[at] != byte);
        damaged[at] = byte;
        // White space and duplicate fields aside, the damage is found; it never decodes to
        // something else.
        if let Ok(read) = decode(&damaged) {
            prop_assert_eq!(read, decode(WRITTEN.as_bytes()).unwrap());
        }
    }

    #[test]
    fn resize_allocation_replaces_requested_resources(pod in any_pod(), other in any_pod()) {
        let gates = Gates::default();
        let given = requested(&other);
        let current = allocated(&pod, &given, gates).unwrap_or_else(|| pod.clone());
        prop_assert_eq!(allocated(&current, &given, gates), None);
        prop_assert_eq!(allocated(&pod, &requested(&pod), gates), None);
    }

    /// The pod's cgroup must hold its containers during the whole resize.
    #[test]
    fn resize_ceiling_is_above_allocated_and_actuated(pod in any_pod(), other in any_pod()) {
        let gates = Gates::default();
        let actuated = PodResources::in_force(other.spec.as_ref().unwrap(), gates);
        let above = ceiling(&pod, &actuated);
        let covers = |name: &str, of: &ResourceRequirements| {
            let (_, container) = spec::container(&above, name).unwrap();
            let (top, own) = (Amounts::of(container.resources.as_ref().unwrap()), Amounts::of(of));
            let within = |top: i128, own: i128| top == 0 || own != 0 && own <= top;
            top.cpu_request >= own.cpu_request
                && top.memory_request >= own.memory_request
                && within(top.cpu_limit, own.cpu_limit)
                && within(top.memory_limit.into(), own.memory_limit.into())
        };
        for container in &pod.spec.as_ref().unwrap().containers {
            prop_assert!(covers(&container.name, container.resources.as_ref().unwrap()));
            if let Some(now) = actuated.containers.get(&container.name) {
                prop_assert!(covers(&container.name, now));
            }
        }
        let sum = |pod: &Pod| qos::milli_of(Some(&requests(pod.spec.as_ref().unwrap())), "cpu");
        prop_assert!(sum(&above) >= sum(&pod));
        prop_assert_eq!(ceiling(&pod, &PodResources::default()), pod);
    }
}
