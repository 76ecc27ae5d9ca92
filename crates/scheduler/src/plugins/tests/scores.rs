use proptest::prelude::*;
use serde_json::{Value, json};

use super::Cluster;
use crate::model::{ClaimKey, Selector, Workload, WorkloadKind};
use crate::testing::{merge, node, pod, profile};

fn on(name: &str, cpu: &str, host: &str, more: Value) -> std::sync::Arc<crate::model::Pod> {
    let mut all = json!({"spec": {"nodeName": host}});
    merge(&mut all, more);
    pod(name, cpu, all)
}

#[test]
fn scores_of_allocation() {
    let nodes = [node("n1", 4, json!({})), node("n2", 8, json!({}))];
    let cluster = Cluster::new(&nodes, &[on("o", "2", "n1", json!({}))]);
    let own = pod(
        "p",
        "1",
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}),
    );
    let cpu = json!([{"name": "cpu", "weight": 1}]);
    for (name, args, expected) in [
        // 25 % and 87 % of CPU are left, 88 % (the other counts 200 MiB) and 90 % of memory
        ("NodeResourcesFit", Value::Null, [56, 88]),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "LeastAllocated", "resources": cpu}}),
            [25, 87],
        ),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "MostAllocated", "resources": cpu}}),
            [75, 12],
        ),
        ("NodeResourcesLeastAllocated", json!({"resources": cpu}), [25, 87]),
        ("NodeResourcesMostAllocated", json!({"resources": cpu}), [75, 12]),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": cpu,
            "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}}}),
            [75, 12],
        ),
        (
            "RequestedToCapacityRatio",
            json!({"resources": cpu, "shape": [{"utilization": 50, "score": 10}, {"utilization": 100, "score": 0}]}),
            [50, 100],
        ),
    ] {
        assert_eq!(cluster.scores(name, args.clone(), &own), expected, "{name} {args}");
    }
}

#[test]
fn scores_of_balance_prefer_nodes_that_the_pod_evens_out() {
    let nodes = [node("n1", 10, json!({})), node("n2", 10, json!({}))];
    let memory = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "4Gi"}}}]}});
    let cluster = Cluster::new(&nodes, &[on("o", "0", "n1", memory)]);
    let own = pod("p", "4", json!({}));
    // on n1 the deviation goes from 20 to 0 %, on n2 from 0 to 20 %
    assert_eq!(cluster.scores("NodeResourcesBalancedAllocation", Value::Null, &own), [85, 65]);
    let best_effort = pod("p", "0", json!({}));
    assert_eq!(
        cluster.scores("NodeResourcesBalancedAllocation", Value::Null, &best_effort),
        [0, 0]
    );
}

#[test]
fn scores_of_taints_and_node_affinity() {
    let taint = |key: &str| json!({"key": key, "effect": "PreferNoSchedule"});
    let nodes = [
        node("n1", 4, json!({"metadata": {"labels": {"disk": "ssd", "new": "yes"}}})),
        node(
            "n2",
            4,
            json!({"metadata": {"labels": {"disk": "ssd"}}, "spec": {"taints": [taint("a")]}}),
        ),
        node("n3", 4, json!({"spec": {"taints": [taint("a"), taint("b")]}})),
    ];
    let cluster = Cluster::new(&nodes, &[]);
    let plain = pod("p", "1", json!({}));
    assert_eq!(cluster.scores("TaintToleration", Value::Null, &plain), [100, 50, 0]);
    let tolerating = pod("p", "1", json!({"spec": {"tolerations": [{"operator": "Exists"}]}}));
    assert_eq!(cluster.scores("TaintToleration", Value::Null, &tolerating), [100, 100, 100]);
    let term = |key: &str, weight: i32| json!({"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}});
    let preferring = pod(
        "p",
        "1",
        json!({"spec": {"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [term("disk", 30), term("new", 10)]}}}}),
    );
    assert_eq!(cluster.scores("NodeAffinity", Value::Null, &preferring), [100, 75, 0]);
}

#[test]
fn scores_of_images_count_size_and_spread() {
    let images =
        |size: i64| json!({"status": {"images": [{"names": ["image:latest"], "sizeBytes": size}]}});
    let nodes = [
        node("n1", 4, images(1_048_576_000)),
        node("n2", 4, images(20_000_000)),
        node("n3", 4, json!({})),
    ];
    let cluster = Cluster::new(&nodes, &[]);
    // two thirds of 1000 MiB, less the least, of what counts at most
    assert_eq!(cluster.scores("ImageLocality", Value::Null, &pod("p", "1", json!({}))), [65, 0, 0]);
}

#[test]
fn scores_of_affinity_to_pods_are_of_both_sides() {
    let zone =
        |name: &str, zone: &str| node(name, 4, json!({"metadata": {"labels": {"zone": zone}}}));
    let nodes = [zone("n1", "a"), zone("n2", "b"), zone("n3", "c")];
    let preferred = |kind: &str, app: &str, weight: i32| {
        json!({"spec": {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}}]}}}})
    };
    let app = |app: &str, more: Value| {
        let mut all = json!({"metadata": {"labels": {"app": app}}});
        merge(&mut all, more);
        all
    };
    let cluster = Cluster::new(
        &nodes,
        &[
            on("o1", "1", "n1", app("web", json!({}))),
            on("o2", "1", "n2", app("x", preferred("podAntiAffinity", "web", 50))),
            on("o3", "1", "n3", app("x", json!({}))),
        ],
    );
    // n1: 10 for it; n2: 50 against it
    let own = pod("p", "1", app("web", preferred("podAffinity", "web", 10)));
    assert_eq!(cluster.scores("InterPodAffinity", Value::Null, &own), [100, 0, 83]);
    // without preferences of its own, those of others count, unless the configuration ignores them
    let plain = pod("p", "1", app("web", json!({})));
    assert_eq!(cluster.scores("InterPodAffinity", Value::Null, &plain), [100, 0, 100]);
    let ignoring = json!({"ignorePreferredTermsOfExistingPods": true});
    assert_eq!(cluster.scores("InterPodAffinity", ignoring, &plain), [0, 0, 0]);
}

#[test]
fn scores_of_spread_by_default_follow_services_and_controllers() {
    let nodes = [node("n1", 4, json!({})), node("n2", 4, json!({}))];
    let web = json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]}});
    let mut cluster = Cluster::new(&nodes, &[on("o", "1", "n1", web.clone())]);
    let own = pod("p", "1", web);
    assert_eq!(cluster.scores("PodTopologySpread", Value::Null, &own), [0, 0]);
    let selector = Selector::of_map(Some(&[("app".to_owned(), "web".to_owned())].into()));
    let key = ClaimKey { namespace: "default".into(), name: "web".into() };
    cluster
        .objects
        .workloads
        .insert(Workload { kind: WorkloadKind::ReplicaSet, key }, selector.clone());
    // one pod of ln(4) and the skew of 3, against the skew alone; zones lack
    assert_eq!(cluster.scores("PodTopologySpread", Value::Null, &own), [66, 100]);
    assert_eq!(cluster.scores("SelectorSpread", Value::Null, &own), [0, 100]);
    assert_eq!(cluster.scores("ServiceSpreading", Value::Null, &own), [0, 0]);
    cluster.objects.services.insert("default".into(), [("web".into(), selector)].into());
    assert_eq!(cluster.scores("ServiceSpreading", Value::Null, &own), [0, 100]);
}

#[test]
fn scores_of_classic_priorities() {
    let avoid = json!({"preferAvoidPods": [{"podSignature": {"podController": {"apiVersion": "v1", "kind": "ReplicationController", "name": "x", "uid": "u"}}}]});
    let annotation = json!({"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/preferAvoidPods": avoid.to_string()}}});
    let cluster = Cluster::new(&[node("n1", 4, annotation), node("n2", 4, json!({}))], &[]);
    let own = pod(
        "p",
        "1",
        json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ReplicationController", "name": "x", "uid": "u", "controller": true}]}}),
    );
    assert_eq!(cluster.scores("NodePreferAvoidPods", Value::Null, &own), [0, 100]);
    assert_eq!(cluster.scores("EqualPriority", Value::Null, &own), [1, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Scores are from 0 to 100, and the same each time.
    #[test]
    fn scores_are_in_range_and_deterministic(
        loads in prop::collection::vec((0usize..4, 0u32..5000, 0usize..3), 0..12),
        cpus in prop::collection::vec(0u32..16, 4),
        own in 0u32..5000,
    ) {
        let nodes: Vec<_> = cpus.iter().enumerate().map(|(index, cpus)| node(&format!("n{index}"), *cpus, json!({
            "metadata": {"labels": {"zone": (index % 2).to_string()}},
            "spec": {"taints": [{"key": index.to_string(), "effect": "PreferNoSchedule"}]},
        }))).collect();
        let apps = ["a", "b", "c"];
        let term = |app: &str, weight: usize| json!([{"weight": weight + 1, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}}]);
        let more = |app: usize| json!({
            "metadata": {"labels": {"app": apps[app]}},
            "spec": {
                "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": term(apps[app], app)},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": term(apps[(app + 1) % 3], 3 * app)}},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "a"}}}],
            },
        });
        let pods: Vec<_> = loads.iter().enumerate().map(|(index, (host, cpu, app))| {
            on(&format!("o{index}"), &format!("{cpu}m"), &format!("n{host}"), more(*app))
        }).collect();
        let cluster = Cluster::new(&nodes, &pods);
        let pod = pod("p", &format!("{own}m"), more(0));
        for (plugin, _) in profile().scores {
            let scores = cluster.scores(plugin.name(), Value::Null, &pod);
            prop_assert!(scores.iter().all(|score| (0..=100).contains(score)), "{}: {:?}", plugin.name(), scores);
            prop_assert_eq!(&scores, &cluster.scores(plugin.name(), Value::Null, &pod));
        }
        for name in ["NodeResourcesMostAllocated", "SelectorSpread", "NodePreferAvoidPods"] {
            let scores = cluster.scores(name, Value::Null, &pod);
            prop_assert!(scores.iter().all(|score| (0..=100).contains(score)), "{}: {:?}", name, scores);
        }
    }
}
