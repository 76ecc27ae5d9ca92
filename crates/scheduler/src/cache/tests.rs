#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::{atom, node, pod};

fn on(name: &str, cpu: &str, host: &str) -> Arc<Pod> {
    pod(name, cpu, json!({"spec": {"nodeName": host}}))
}

#[test]
fn cache_counts_assumed_pods_until_they_are_forgotten() {
    let mut cache = Cache::new(None);
    let mut snapshot = Snapshot::default();
    cache.set_node(node("n1", 4, json!({})));
    let own = pod("p", "500m", json!({}));
    cache.assume(own.clone(), &atom("n1")).unwrap();
    assert_eq!(
        cache.assume(own.clone(), &atom("n1")),
        Err(CacheError::IsKnown("default/p".into()))
    );
    cache.update(&mut snapshot);
    assert_eq!(snapshot.node(&atom("n1")).unwrap().requested.milli_cpu, 500);
    assert_eq!(cache.sizes(), [1, 1, 1]);
    cache.forget(&own).unwrap();
    assert_eq!(cache.forget(&own), Err(CacheError::IsNotAssumed("default/p".into())));
    cache.update(&mut snapshot);
    assert_eq!(snapshot.node(&atom("n1")).unwrap().requested.milli_cpu, 0);
    assert_eq!(cache.sizes(), [1, 0, 0]);
}

#[test]
fn cache_confirms_assumed_pods_on_the_node_that_the_api_says() {
    let mut cache = Cache::new(None);
    for name in ["n1", "n2"] {
        cache.set_node(node(name, 4, json!({})));
    }
    cache.assume(pod("p", "1", json!({})), &atom("n1")).unwrap();
    cache.set_pod(on("p", "1", "n2"));
    assert!(!cache.is_assumed("p"));
    assert!(cache.node(&atom("n1")).unwrap().pods.is_empty());
    assert_eq!(cache.node(&atom("n2")).unwrap().requested.milli_cpu, 1000);
    assert!(cache.forget(&on("p", "1", "n2")).is_err());
}

#[test]
fn cache_expires_assumed_pods_that_stay_unseen_after_their_binding() {
    let seconds = Duration::from_secs;
    let mut cache = Cache::new(Some(seconds(30)));
    cache.set_node(node("n1", 4, json!({})));
    for name in ["binding", "bound"] {
        cache.assume(pod(name, "1", json!({})), &atom("n1")).unwrap();
    }
    cache.finish_binding("bound", seconds(10));
    assert!(cache.expire(seconds(40)).is_empty());
    let expired = cache.expire(seconds(41));
    assert_eq!(expired.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["bound"]);
    assert!(cache.is_assumed("binding"));
}

#[test]
fn cache_keeps_pods_of_nodes_that_come_later_and_go_first() {
    let mut cache = Cache::new(None);
    let mut snapshot = Snapshot::default();
    cache.set_pod(on("p", "1", "n1"));
    cache.update(&mut snapshot);
    assert!(snapshot.nodes().is_empty());
    cache.set_node(node("n1", 4, json!({})));
    cache.update(&mut snapshot);
    assert_eq!(snapshot.nodes().len(), 1);
    assert_eq!(snapshot.nodes()[0].pods.len(), 1);
    cache.remove_node(&atom("n1"));
    cache.update(&mut snapshot);
    assert!(snapshot.nodes().is_empty());
    cache.remove_pod("p");
    assert_eq!(cache.sizes(), [0, 0, 0]);
}

#[test]
fn cache_snapshot_takes_zones_in_turn_and_counts_images() {
    let mut cache = Cache::new(None);
    let mut snapshot = Snapshot::default();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")] {
        cache.set_node(node(
            name,
            4,
            json!({
                "metadata": {"labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"images": [{"names": ["image:1"], "sizeBytes": 100}]},
            }),
        ));
    }
    cache.update(&mut snapshot);
    let names: Vec<_> = snapshot.nodes().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a1", "b1", "a2", "a3"]);
    assert_eq!(snapshot.nodes_with_image(&atom("image:1")), 4);
    cache.remove_node(&atom("b1"));
    cache.set_node(node("a1", 4, json!({})));
    cache.update(&mut snapshot);
    assert_eq!(snapshot.nodes_with_image(&atom("image:1")), 2);
}

#[test]
fn cache_copies_only_nodes_that_changed() {
    let mut cache = Cache::new(None);
    let mut snapshot = Snapshot::default();
    for name in ["n1", "n2"] {
        cache.set_node(node(name, 4, json!({})));
    }
    cache.update(&mut snapshot);
    let before: Vec<_> = snapshot.nodes().to_vec();
    cache.set_pod(on("p", "1", "n2"));
    // the snapshot is as it was until it is updated
    assert!(snapshot.node(&atom("n2")).unwrap().pods.is_empty());
    cache.update(&mut snapshot);
    assert!(Arc::ptr_eq(&before[0], &snapshot.nodes()[0]));
    assert!(!Arc::ptr_eq(&before[1], &snapshot.nodes()[1]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However pods and nodes come and go, sums are those of the pods that are there.
    #[test]
    fn cache_sums_are_those_of_its_pods(steps in prop::collection::vec((0u8..6, 0u8..4, 0u8..3), 1..60)) {
        let mut cache = Cache::new(None);
        let mut snapshot = Snapshot::default();
        for (step, number, host) in steps {
            let (name, host) = (format!("p{number}"), format!("n{host}"));
            match step {
                0 => { cache.set_node(node(&host, 4, json!({}))); }
                1 => { cache.remove_node(&atom(&host)); }
                2 => { cache.set_pod(on(&name, "100m", &host)); }
                3 => { let _ = cache.assume(pod(&name, "100m", json!({})), &atom(&host)); }
                4 => { let _ = cache.forget(&pod(&name, "100m", json!({}))); }
                _ => { cache.remove_pod(&name); }
            }
            cache.update(&mut snapshot);
            let mut total = 0;
            for info in cache.nodes.values() {
                let sum: i64 = info.pods.iter().map(|pod| pod.requests.milli_cpu).sum();
                prop_assert_eq!(sum, info.requested.milli_cpu);
                total += info.pods.len();
                let seen = snapshot.node(&info.name).map(|info| info.generation);
                prop_assert_eq!(seen, info.node.as_ref().map(|_| info.generation));
            }
            prop_assert_eq!(total, cache.pods.len());
            prop_assert_eq!(cache.assumed, cache.pods.values().filter(|own| own.assumed.is_some()).count());
        }
    }
}
