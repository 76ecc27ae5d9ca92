//! Start and stop of containers with hooks, sidecars and image updates, as upstream's node suite has it
//! ("Containers Lifecycle").

use std::time::Duration;

use longshore_testkit::scripted::Behaviour;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::testing::{Node, pod};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A container that runs until it is stopped, which takes so many seconds.
fn stops_in(node: &Node, name: &str, count: u64) {
    let behaviour = Behaviour { stops_in: seconds(count), exits: None };
    node.runtime.set_behaviour(name, behaviour);
}

fn exits(node: &Node, name: &str, after: u64, code: i32) {
    let behaviour = Behaviour { exits: Some((seconds(after), code)), ..Behaviour::default() };
    node.runtime.set_behaviour(name, behaviour);
}

fn container(name: &str, more: Value) -> Value {
    let mut container = json!({"name": name, "image": format!("registry.test/{name}:1")});
    for (key, value) in more.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

fn sidecar(name: &str, more: Value) -> Value {
    let mut sidecar = container(name, more);
    sidecar["restartPolicy"] = json!("Always");
    sidecar
}

/// A preStop hook with a command of that name.
fn pre_stop(command: &str) -> Value {
    json!({"lifecycle": {"preStop": {"exec": {"command": [command]}}}})
}

/// Seconds between the first stop or exit of the pod and a call.
fn at(node: &Node, since: Instant, method: &str, about: &str) -> u64 {
    let calls = node.runtime.calls(method, about);
    let first = calls.iter().find(|at| **at >= since);
    first.map_or(u64::MAX, |at| at.duration_since(since).as_secs())
}

pub(super) fn exit_codes(status: &Value) -> Vec<(String, i64)> {
    let all = ["initContainerStatuses", "containerStatuses"];
    let all = all.iter().flat_map(|key| status[*key].as_array().into_iter().flatten());
    all.map(|container| {
        let code = &container["state"]["terminated"]["exitCode"];
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        (name, code.as_i64().unwrap_or(-1))
    })
    .collect()
}

/// A command of a preStop hook that outlives the grace period ends with its container, two seconds
/// later: so it does upstream, and it may be about to finish.
#[tokio::test(start_paused = true)]
async fn hook_pre_stop_that_is_overdue_ends_with_its_container() {
    let node = Node::start().await;
    for name in ["s1", "s2", "s3"] {
        stops_in(&node, name, 5);
        let hook = format!("hook-{name}");
        node.runtime.world().lasting.insert(hook, seconds(1000));
    }
    exits(&node, "c", 5, 0);
    let sidecars = ["s1", "s2", "s3"].map(|name| sidecar(name, pre_stop(&format!("hook-{name}"))));
    let spec = json!({"restartPolicy": "Never", "initContainers": sidecars});
    node.api.put_pod(pod("p", spec, json!({})));
    node.phase(60, "p", "Succeeded").await;
    let began = node.runtime.calls("ExecSync", "hook-s1")[0];
    for name in ["s1", "s2", "s3"] {
        let hook = format!("hook-{name}");
        assert_eq!(at(&node, began, "ExecSync", &hook), 0, "all hooks begin at once");
        assert_eq!(at(&node, began, "StopContainer", name), 30, "{name}");
        assert_eq!(at(&node, began, "EndOfExecSync", &hook), 32, "{name}");
    }
    assert_eq!(node.api.event("FailedPreStopHook").as_deref(), Some("PreStopHook failed"));
    node.api.delete_pod("p", 30);
    node.clean().await;
}

/// Grace periods that are too short: who is killed, and which phase the pod has then.
#[tokio::test(start_paused = true)]
async fn sidecars_share_the_grace_period_of_their_pod() {
    struct Case {
        /// How long containers take to stop, and their preStop hooks.
        stops: [(&'static str, u64, u64); 4],
        phase: &'static str,
        /// The exit codes, 143 for those that stopped by themselves.
        codes: [i64; 4],
    }
    let cases = [
        // The regular container exceeds it.
        Case {
            stops: [("s1", 1, 0), ("s2", 20, 0), ("s3", 1, 0), ("c", 20, 0)],
            phase: "Failed",
            codes: [143, 137, 143, 137],
        },
        // Its preStop hook does.
        Case {
            stops: [("s1", 1, 0), ("s2", 20, 0), ("s3", 1, 0), ("c", 20, 20)],
            phase: "Failed",
            codes: [143, 137, 143, 137],
        },
        // The preStop hook of a sidecar does.
        Case {
            stops: [("s1", 1, 1), ("s2", 20, 30), ("s3", 1, 1), ("c", 1, 0)],
            phase: "Failed",
            codes: [143, 137, 143, 143],
        },
    ];
    for Case { stops, phase, codes } in cases {
        let node = Node::start().await;
        let made = stops.map(|(name, stop, hook)| {
            stops_in(&node, name, stop);
            let command = format!("hook-{name}");
            node.runtime.world().lasting.insert(command.clone(), seconds(hook));
            let hooks = if hook > 0 { pre_stop(&command) } else { json!({}) };
            if name == "c" { hooks } else { sidecar(name, hooks) }
        });
        let [s1, s2, s3, regular] = made;
        let spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "initContainers": [s1, s2, s3],
        });
        let mut whole = pod("p", spec, regular);
        whole["metadata"]["finalizers"] = json!(["keep.test/it"]);
        node.api.put_pod(whole);
        node.running(30, &["c", "s1", "s2", "s3"]).await;
        node.api.delete_pod("p", 5);
        node.within(30, "all have ended", |node| {
            node.runtime.running().is_empty() && node.api.status("p")["phase"] == phase
        })
        .await;
        let expected: Vec<(String, i64)> =
            stops.iter().zip(codes).map(|((name, ..), code)| ((*name).to_owned(), code)).collect();
        assert_eq!(exit_codes(&node.api.status("p")), expected);
        assert_eq!(node.violations(), Vec::<String>::new());
    }
}

/// A new image replaces a container whatever the restart policy, and no other container.
#[tokio::test(start_paused = true)]
async fn image_update_restarts_that_container_only() {
    for policy in ["Always", "OnFailure", "Never"] {
        let node = Node::start().await;
        let spec = json!({
            "restartPolicy": policy,
            "initContainers": [
                sidecar("s1", json!({})), container("i", json!({})), sidecar("s2", json!({})),
            ],
        });
        exits(&node, "i", 20, 0);
        node.api.put_pod(pod("p", spec, json!({})));
        node.running(10, &["i", "s1"]).await;
        let update = |kind: &str, index: usize| {
            node.api.change_pod("p", |pod| {
                let image = &mut pod["spec"][kind][index]["image"];
                *image = json!(image.as_str().unwrap_or_default().replace(":1", ":2"));
            });
        };
        // A sidecar is replaced while the pod is initialized; an init container that runs is not,
        // nor is what has not started begun for it.
        update("initContainers", 0);
        update("initContainers", 1);
        update("containers", 0);
        node.within(15, "the sidecar runs again", |node| {
            let status = &node.api.status("p")["initContainerStatuses"][0];
            status["restartCount"] == 1 && status["image"] == "registry.test/s1:2"
        })
        .await;
        assert_eq!(node.runtime.running(), ["i", "s1"]);
        node.running(60, &["c", "s1", "s2"]).await;
        assert_eq!(node.runtime.count("StartContainer", "i"), 1, "{policy}");
        assert_eq!(node.api.status("p")["containerStatuses"][0]["restartCount"], 0);
        // An init container that has completed does not run again.
        update("initContainers", 2);
        node.within(15, "the sidecar runs again", |node| {
            node.api.status("p")["initContainerStatuses"][2]["restartCount"] == 1
        })
        .await;
        let starts = ["s1", "i", "s2", "c"].map(|name| node.runtime.count("StartContainer", name));
        assert_eq!(starts, [2, 1, 2, 1], "{policy}");
        // Nothing is replaced while the pod terminates.
        stops_in(&node, "c", 20);
        node.api.delete_pod("p", 30);
        update("containers", 0);
        node.within(60, "the object is gone", |node| node.api.objects().pods.is_empty()).await;
        assert_eq!(node.runtime.count("StartContainer", "c"), 1, "{policy}");
        node.clean().await;
    }
}

/// After the loss of the sandbox, as by a reboot, containers start in their order again.
#[tokio::test(start_paused = true)]
async fn containers_start_in_their_order_after_a_reboot() {
    let mut node = Node::start().await;
    let spec = json!({
        "initContainers": [container("i1", json!({})), sidecar("s", json!({})), container("i2", json!({}))],
    });
    exits(&node, "i1", 5, 0);
    exits(&node, "i2", 5, 0);
    node.api.put_pod(pod("p", spec, json!({})));
    node.running(30, &["c", "s"]).await;
    for updated in [false, true] {
        let before = ["i1", "s", "i2", "c"].map(|name| node.runtime.count("StartContainer", name));
        node.kill_daemon().await;
        node.runtime.lose_sandboxes();
        node.start_daemon().await;
        if updated {
            node.api.change_pod("p", |pod| {
                pod["spec"]["containers"][0]["image"] = json!("registry.test/image:2");
            });
        }
        node.within(120, "all run again", |node| {
            let status = node.api.status("p");
            let regular = &status["containerStatuses"][0];
            let counts = regular["restartCount"].as_u64() >= Some(1);
            let image = if updated { "registry.test/image:2" } else { "registry.test/image:1" };
            counts && regular["image"] == image && !regular["state"]["running"].is_null()
        })
        .await;
        let last = |name: &str| *node.runtime.calls("StartContainer", name).last().unwrap();
        let order = ["i1", "s", "i2", "c"].map(last);
        assert!(order.is_sorted(), "{order:?}");
        let after = ["i1", "s", "i2", "c"].map(|name| node.runtime.count("StartContainer", name));
        assert!(after.iter().zip(before).all(|(after, before)| *after > before), "{after:?}");
    }
    node.api.delete_pod("p", 30);
    node.clean().await;
}

/// A pod that is deleted while it is initialized does not wait for what has not started.
#[tokio::test(start_paused = true)]
async fn sidecars_that_have_not_started_delay_no_termination() {
    let node = Node::start().await;
    let probe =
        json!({"startupProbe": {"exec": {"command": ["starting"]}, "failureThreshold": 600}});
    let spec = json!({
        "initContainers": [sidecar("s1", probe), sidecar("s2", pre_stop("hook"))],
        "terminationGracePeriodSeconds": 180,
    });
    node.runtime.world().failing.insert("starting".to_owned());
    stops_in(&node, "s1", 1);
    node.api.put_pod(pod("p", spec, json!({})));
    node.running(10, &["s1"]).await;
    node.api.delete_pod("p", 180);
    node.within(5, "the object is gone", |node| node.api.objects().pods.is_empty()).await;
    assert_eq!(node.runtime.count("StartContainer", "s2"), 0);
    node.clean().await;
}
