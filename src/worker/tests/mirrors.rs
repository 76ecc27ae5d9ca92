//! Static pods and their mirror pods: removed, edited, added again.

use std::time::Duration;

use longshore_testkit::scripted::Behaviour;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::testing::{Node, static_pod};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A static pod whose container ends only when its grace is over.
fn version(of: &str) -> Value {
    let spec = json!({"terminationGracePeriodSeconds": 20});
    static_pod("p", of, spec, json!({"image": format!("registry.test/image:{of}")}))
}

/// A node on which the static pod of the first version runs, and the UID of its mirror pod.
async fn running() -> (Node, String) {
    let node = Node::start().await;
    node.runtime.set_behaviour("c", Behaviour { stops_in: seconds(1000), exits: None });
    node.api.put_manifests(&[version("1")]);
    node.phase(5, "p", "Running").await;
    let uid = node.api.uid("p");
    (node, uid)
}

/// For so many seconds the mirror pod is that object, and shows that its pod runs.
async fn stays(node: &Node, uid: &str, count: u64) {
    for _ in 0..count * 5 {
        assert_eq!(node.api.uid("p"), uid);
        assert_eq!(node.api.status("p")["phase"], "Running");
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn mirror_pod_stays_until_its_removed_static_pod_has_ended() {
    let (node, uid) = running().await;
    node.api.put_manifests(&[]);
    stays(&node, &uid, 19).await;
    node.within(5, "the mirror is gone", |node| node.api.objects().pods.is_empty()).await;
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn mirror_pod_is_recreated_once_the_edited_static_pod_may_start() {
    let (node, uid) = running().await;
    // Of many edits only the last one is started.
    for edit in 2..100 {
        node.api.put_manifests(&[version(&edit.to_string())]);
        stays_for(&node, &uid, 100).await;
    }
    node.api.put_manifests(&[version("last")]);
    stays(&node, &uid, 9).await;
    node.within(5, "another mirror runs", |node| {
        node.api.uid("p") != uid && node.api.status("p")["phase"] == "Running"
    })
    .await;
    let pod = node.api.objects().pods["p"].clone();
    assert_eq!(pod["spec"]["containers"][0]["image"], "registry.test/image:last");
    assert_eq!(node.runtime.count("StartContainer", "c"), 2);
    node.api.put_manifests(&[]);
    node.within(30, "the mirror is gone", |node| node.api.objects().pods.is_empty()).await;
    node.clean().await;
}

async fn stays_for(node: &Node, uid: &str, millis: u64) {
    assert_eq!(node.api.uid("p"), uid);
    assert_eq!(node.api.status("p")["phase"], "Running");
    sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn static_pod_that_is_added_again_restarts_its_containers() {
    let (node, uid) = running().await;
    node.api.put_manifests(&[]);
    sleep(seconds(1)).await;
    node.api.put_manifests(&[version("1")]);
    stays(&node, &uid, 18).await;
    node.within(20, "its container runs again", |node| {
        let container = &node.api.status("p")["containerStatuses"][0];
        container["restartCount"] == 1 && !container["state"]["running"].is_null()
    })
    .await;
    assert_eq!(node.api.uid("p"), uid, "its mirror pod was there all the time");
    assert_eq!(node.runtime.running(), ["c"]);
    node.api.put_manifests(&[]);
    node.within(30, "the mirror is gone", |node| node.api.objects().pods.is_empty()).await;
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn static_pod_that_is_removed_while_it_waits_for_its_predecessor_is_forgotten() {
    let (node, uid) = running().await;
    node.api.put_manifests(&[version("2")]);
    sleep(seconds(1)).await;
    node.api.put_manifests(&[]);
    stays(&node, &uid, 18).await;
    node.within(5, "the mirror is gone", |node| node.api.objects().pods.is_empty()).await;
    node.clean().await;
    assert_eq!(node.runtime.count("StartContainer", "c"), 1);
}

#[tokio::test(start_paused = true)]
async fn mirror_pod_that_others_delete_is_recreated_and_its_pod_runs_on() {
    for grace in [0, 30] {
        let (node, uid) = running().await;
        node.api.delete_pod("p", grace);
        node.within(10, "another mirror runs", |node| {
            ![uid.as_str(), ""].contains(&node.api.uid("p").as_str())
                && node.api.status("p")["phase"] == "Running"
        })
        .await;
        assert_eq!(node.runtime.count("StartContainer", "c"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn mirror_pod_keeps_its_times_over_a_restart_of_the_daemon() {
    let (mut node, uid) = running().await;
    node.within(5, "it is ready", |node| is_ready(&node.api.status("p"))).await;
    node.kill_daemon().await;
    let long_ago = json!("2001-02-03T04:05:06Z");
    if let Some(pod) = node.api.objects().pods.get_mut("p") {
        pod["status"]["startTime"] = long_ago.clone();
        for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"] = long_ago.clone();
        }
    }
    node.start_daemon().await;
    for _ in 0..60 {
        sleep(seconds(1)).await;
        let status = node.api.status("p");
        assert!(is_ready(&status), "{status}");
        assert_eq!(status["startTime"], long_ago);
        for condition in status["conditions"].as_array().unwrap() {
            assert_eq!(condition["lastTransitionTime"], long_ago, "{condition}");
        }
    }
    assert_eq!(node.api.uid("p"), uid);
    node.api.put_manifests(&[]);
    node.clean().await;
}

fn is_ready(status: &Value) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
