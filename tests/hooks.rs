//! Lifecycle hooks on a real containerd.

use crate::common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Cluster, FOREVER, condition, run_of, script};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// A pod with one container that sees a folder of the host as `/data` and has these hooks.
fn hooked(cluster: &Cluster, text: &str, lifecycle: Value) -> Value {
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "data", "hostPath": {"path": folder(cluster)}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    spec["containers"][0]["lifecycle"] = lifecycle;
    spec
}

fn folder(cluster: &Cluster) -> std::path::PathBuf {
    let folder = cluster.host.dir().join("data");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn exec(text: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", text]}})
}

fn status_of(pod: &Pod) -> ContainerStatus {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.unwrap_or_default().into_iter().next().unwrap_or_default()
}

fn written(cluster: &Cluster, file: &str) -> String {
    fs::read_to_string(folder(cluster).join(file)).unwrap_or_default()
}

#[tokio::test]
async fn hook_post_start_success_marks_the_container_started() {
    let cluster = Cluster::start().await;
    let wait = "while [ ! -e /data/go ]; do sleep 0.1; done; echo hook >>/data/log";
    let mut spec = hooked(&cluster, FOREVER, json!({"postStart": exec(wait)}));
    spec["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["cat", "/data/log"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut second = common::container("d", FOREVER);
    second["lifecycle"] = json!({"postStart": {"sleep": {"seconds": 1}}});
    spec["containers"].as_array_mut().unwrap().push(second);
    cluster.create("waits", spec).await;
    cluster.until_event("Started", "Container started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = cluster.pod("waits").await;
    assert_eq!(condition(&pod, "Ready"), "False");
    assert!(
        !status_of(&pod).ready && status_of(&pod).started != Some(true),
        "{:?}",
        status_of(&pod)
    );
    let other = pod.status.unwrap().container_statuses.unwrap()[1].container_id.clone();
    assert_eq!(other, None, "the next container waits for the hook");
    let start = Instant::now();
    fs::write(folder(&cluster).join("go"), "").unwrap();
    let pod = cluster.until_ready("waits").await;
    assert!(start.elapsed() >= Duration::from_secs(1), "the second hook takes a second");
    assert_eq!(run_of(&pod).0, 0, "nothing is probed before the hook is over");
    assert_eq!(written(&cluster, "log"), "hook\n");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_post_start_failure_stops_the_container() {
    let cluster = Cluster::start().await;
    let lifecycle = json!({
        "postStart": exec("echo secret; exit 3"),
        "preStop": exec("echo bye >/data/log"),
    });
    cluster.create("fails", hooked(&cluster, FOREVER, lifecycle)).await;
    let event = cluster.until_event("FailedPostStartHook", "PostStartHook failed").await;
    assert_eq!(event.message.as_deref(), Some("PostStartHook failed"), "nothing leaks");
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{c}"));
    cluster.until_event("Killing", "FailedPostStartHook").await;
    let pod = cluster
        .until("fails", "shows why", |pod| {
            let waiting = status_of(pod).state.and_then(|state| state.waiting);
            match waiting.map(|waiting| (waiting.reason, waiting.message.unwrap_or_default())) {
                Some((Some(reason), message))
                    if reason == "PostStartHookError" || message.contains("PostStartHookError") =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let waiting = status_of(&pod).state.unwrap().waiting.unwrap();
    let message = waiting.message.unwrap();
    for part in [
        "Exec lifecycle hook ([sh -c echo secret; exit 3]) for Container \"c\" in Pod",
        "exited with 3",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let ended = status_of(&pod).last_state.and_then(|state| state.terminated);
    assert!(ended.is_some(), "{:?}", status_of(&pod));
    assert_eq!(written(&cluster, "log"), "bye\n", "its preStop hook ran first");
    cluster.delete("fails").await;
    cluster.until_gone("fails").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_pre_stop_runs_within_the_grace_period() {
    let cluster = Cluster::start().await;
    let text =
        "trap 'echo term >>/data/log; exit 0' TERM; while true; do sleep 1000 & wait $!; done";
    let pre_stop = exec(
        "echo hook >>/data/log; while [ ! -e /data/go ]; do sleep 0.1; done; echo done >>/data/log",
    );
    let mut spec = hooked(&cluster, text, json!({"postStart": exec("true"), "preStop": pre_stop}));
    spec["terminationGracePeriodSeconds"] = json!(60);
    spec["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "!", "-e", "/data/go"]}, "periodSeconds": 1});
    cluster.create("orderly", spec).await;

    let mut hangs = hooked(&cluster, FOREVER, json!({"preStop": exec("sleep 1000")}));
    hangs["terminationGracePeriodSeconds"] = json!(3);
    cluster.create("hangs", hangs).await;
    let fails = json!({"preStop": {"httpGet": {"port": 1, "path": "/"}}});
    cluster.create("fails", hooked(&cluster, FOREVER, fails)).await;
    let sleeps = json!({"preStop": {"sleep": {"seconds": 2}}});
    let mut sleeps = hooked(&cluster, FOREVER, sleeps);
    sleeps["terminationGracePeriodSeconds"] = json!(30);
    cluster.create("sleeps", sleeps).await;
    for name in ["orderly", "hangs", "fails", "sleeps"] {
        cluster.until_ready(name).await;
    }

    for (name, least) in [("fails", 0), ("hangs", 3), ("sleeps", 2)] {
        let start = Instant::now();
        cluster.delete(name).await;
        cluster.until_gone(name).await;
        let took = start.elapsed().as_secs();
        assert!(took >= least, "{name} took {took} s");
        // The one that hangs has failed too, later.
        if name == "fails" {
            let event = cluster.until_event("FailedPreStopHook", "PreStopHook failed").await;
            assert_eq!(event.involved_object.name.as_deref(), Some("fails"));
            assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{c}"));
        }
    }

    cluster.delete("orderly").await;
    wait_until(common::TIMEOUT, "the hook runs", async || match written(&cluster, "log") {
        log if log == "hook\n" => Ok(()),
        log => Err(log),
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pod = cluster.pod("orderly").await;
    assert!(status_of(&pod).ready, "it still serves: {:?}", status_of(&pod));
    assert_eq!(condition(&pod, "Ready"), "True");
    fs::write(folder(&cluster).join("go"), "").unwrap();
    cluster.until_gone("orderly").await;
    assert_eq!(written(&cluster, "log"), "hook\ndone\nterm\n");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_pre_stop_runs_for_orphans() {
    let mut cluster = Cluster::start().await;
    let mut spec = hooked(&cluster, FOREVER, json!({"preStop": exec("echo bye >/data/log")}));
    spec["terminationGracePeriodSeconds"] = json!(30);
    cluster.create("orphan", spec).await;
    cluster.until_ready("orphan").await;
    cluster.node.daemon().kill().expect("killed");
    let force = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    cluster.pods().delete("orphan", &force).await.expect("deleted");
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(common::TIMEOUT, "the hook ran", async || match written(&cluster, "log") {
        log if log == "bye\n" => Ok(()),
        log => Err(log),
    })
    .await
    .unwrap();
    cluster.host.assert_clean();
}
