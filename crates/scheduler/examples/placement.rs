//! How many pods a second the scheduler places without an API: `cargo run --release -p
//! longshore-scheduler --example placement -- [nodes] [pods]`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use longshore_metrics::Registry;
use longshore_scheduler::config::default_profiles;
use longshore_scheduler::metrics::Metrics;
use longshore_scheduler::model::{ClaimKey, Node, Pod, Selector, Workload, WorkloadKind};
use longshore_scheduler::plugins;
use longshore_scheduler::scheduler::{Action, Change, Outcome, Scheduler, Settings};
use serde_json::{Value, json};

fn node(number: usize) -> Arc<Node> {
    let name = format!("node-{number}");
    let node = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
        }},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    });
    Arc::new(Node::new(&serde_json::from_value(node).unwrap()))
}

fn pod(number: usize, more: &Value) -> Arc<Pod> {
    let name = format!("pod-{number}");
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "pause", "resources": {
            "requests": {"cpu": "100m", "memory": "100Mi"}}}]},
    });
    for (key, value) in more.as_object().unwrap() {
        for (name, value) in value.as_object().unwrap() {
            pod[key][name] = value.clone();
        }
    }
    Arc::new(Pod::new(&serde_json::from_value(pod).unwrap()).unwrap())
}

fn run(title: &str, nodes: usize, pods: usize, more: &Value) {
    let profiles = default_profiles(&plugins::Registry::default()).unwrap();
    let metrics = Metrics::new(&Registry::default());
    let mut scheduler = Scheduler::new(profiles, Settings::default(), metrics);
    let start = Instant::now();
    for number in 0..nodes {
        let node = node(number);
        scheduler.apply(Change::Node(node.name.clone(), Some(node)), start.elapsed());
    }
    let key = ClaimKey { namespace: "default".into(), name: "web".into() };
    let workload = Workload { kind: WorkloadKind::ReplicaSet, key };
    let selector = Selector::of_map(Some(&[("app".to_owned(), "web".to_owned())].into()));
    scheduler.apply(Change::Workload(workload, Some(selector)), start.elapsed());
    let pods: Vec<_> = (0..pods).map(|number| pod(number, more)).collect();
    for pod in &pods {
        scheduler.apply(Change::Pod(pod.uid.clone(), Some(pod.clone())), start.elapsed());
    }
    let start = Instant::now();
    let mut bound = 0usize;
    while let Some(mut attempt) = scheduler.begin(start.elapsed()) {
        let candidates = scheduler.candidates(&mut attempt);
        scheduler.finish(attempt, candidates, None, start.elapsed());
        for action in scheduler.take_actions() {
            if let Action::Bind { pod, node } = action {
                bound += 1;
                let on_node = Arc::new(pod.on(&node));
                scheduler.outcome(Outcome::Bound(pod.uid.clone()), start.elapsed());
                scheduler.apply(Change::Pod(pod.uid.clone(), Some(on_node)), start.elapsed());
            }
        }
    }
    let took = start.elapsed();
    let rate = f64::from(u32::try_from(bound).unwrap()) / took.as_secs_f64();
    println!("{title}: {bound} pods on {nodes} nodes in {took:.2?}, {rate:.0} a second");
}

fn main() {
    let number = |index: usize, default: usize| {
        std::env::args().nth(index).map_or(default, |text| text.parse().unwrap())
    };
    let (nodes, pods) = (number(1, 1000), number(2, 5000));
    run("plain", nodes, pods, &json!({}));
    run(
        "replica set",
        nodes,
        pods,
        &json!({"metadata": {"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]}}),
    );
    run(
        "topology spread",
        nodes,
        pods,
        &json!({"spec": {"topologySpreadConstraints": [
        {"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"app": "web"}}}]}}),
    );
    run(
        "anti-affinity",
        nodes,
        pods.min(nodes),
        &json!({"spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}]}}}}),
    );
}
