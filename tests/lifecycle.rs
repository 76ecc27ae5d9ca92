//! Lifecycle of pods on a real containerd: order of starts and stops, termination, and its causes.

use crate::common;

use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, condition, container, phase, run_of, script, uid};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use longshore_testkit::fakecri::Fault;
use longshore_testkit::{Host, wait_until};
use serde_json::{Value, json};

/// Leaves the machine's uptime at its start and at its end as its termination message, and takes a moment
/// to stop.
const CLOCKED: &str = "up() { cut -d' ' -f1 /proc/uptime; }; begin=$(up); \
    trap 'sleep 0.3; echo $begin $(up) >/dev/termination-log; exit 0' TERM; \
    while true; do sleep 1000 & wait $!; done";

#[tokio::test]
async fn sidecars_start_first_and_stop_last() {
    let cluster = Cluster::start().await;
    let sidecar = |name: &str| {
        let mut sidecar = container(name, CLOCKED);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let stamp = "up() { cut -d' ' -f1 /proc/uptime; }; begin=$(up); sleep 0.5; \
        echo $begin $(up) >/dev/termination-log";
    let mut spec = script(stamp);
    spec["restartPolicy"] = json!("Never");
    spec["terminationGracePeriodSeconds"] = json!(30);
    spec["initContainers"] = json!([sidecar("s1"), container("i", stamp), sidecar("s2")]);
    cluster.create("side", spec).await;
    let pod = until_phase(&cluster, "side", "Succeeded").await;
    let spans: Vec<(f64, f64)> =
        ["s1", "i", "s2", "c"].iter().map(|name| span(&status_of(&pod, name))).collect();
    let [s1, i, s2, c] = spans[..] else { unreachable!() };
    assert!(s1.0 < i.0 && i.1 <= s2.0 && s2.0 < c.0, "started in order: {spans:?}");
    assert!(c.1 < s2.1 && s2.1 + 0.25 < s1.1, "stopped in reverse, one by one: {spans:?}");
    for name in ["s1", "s2"] {
        assert_eq!(status_of(&pod, name).restart_count, 0, "{name}");
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn active_deadline_fails_the_pod() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["activeDeadlineSeconds"] = json!(3);
    cluster.create("late", spec).await;
    cluster.until_ready("late").await;
    let pod = until_phase(&cluster, "late", "Failed").await;
    let status = pod.status.as_ref().unwrap();
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(status.message.as_deref(), Some(message));
    let ended = terminated(&status_of(&pod, "c"));
    let start = status.start_time.as_ref().unwrap().0;
    let lived = ended.finished_at.unwrap().0.duration_since(start).as_secs();
    assert!((3..6).contains(&lived), "{lived} s");
    let event = cluster.until_event("DeadlineExceeded", message).await;
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    cluster.delete("late").await;
    cluster.until_gone("late").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn restart_rules_decide_about_restarts() {
    let cluster = Cluster::start().await;
    let mut spec = script("test -e /data/ran && exit 0; touch /data/ran; exit 42");
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/data"}]);
    spec["containers"][0]["restartPolicy"] = json!("Never");
    spec["containers"][0]["restartPolicyRules"] =
        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    cluster.create("again", spec.clone()).await;
    spec["containers"][0]["command"] = json!(["sh", "-c", "exit 43"]);
    cluster.create("once", spec).await;
    let pod = until_phase(&cluster, "again", "Succeeded").await;
    assert_eq!(run_of(&pod).0, 1);
    let pod = until_phase(&cluster, "once", "Failed").await;
    assert_eq!(run_of(&pod).0, 0);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn ephemeral_container_is_started_in_a_running_pod() {
    let cluster = Cluster::start().await;
    let before = {
        cluster.create("web", script(FOREVER)).await;
        run_of(&cluster.until_ready("web").await)
    };
    let debugger = container("debugger", "echo seen; exit 3");
    let patch = json!({"spec": {"ephemeralContainers": [debugger]}});
    let params = PatchParams::default();
    let pods = cluster.pods();
    pods.patch_ephemeral_containers("web", &params, &Patch::Strategic(&patch))
        .await
        .expect("a debugger");
    let pod = cluster
        .until("web", "its ephemeral container has terminated", |pod| {
            let statuses = pod.status.as_ref().unwrap().ephemeral_container_statuses.clone();
            let debugger = statuses.unwrap_or_default().into_iter().next().unwrap_or_default();
            let ended = debugger.state.and_then(|state| state.terminated);
            match ended.map(|ended| ended.exit_code) {
                Some(3) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert_eq!((run_of(&pod), condition(&pod, "Ready").as_str()), (before, "True"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let statuses = cluster.pod("web").await.status.unwrap().ephemeral_container_statuses.unwrap();
    assert_eq!(statuses[0].restart_count, 0, "an ephemeral container is started once");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn mount_failure_is_cleaned_up_and_retried() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["volumes"] = json!([{"name": "key", "secret": {"secretName": "late"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "key", "mountPath": "/key"}]);
    cluster.create("web", spec).await;
    cluster
        .until_event(
            "FailedMount",
            "MountVolume.SetUp failed for volume \"key\" : secret \"late\" not found",
        )
        .await;
    let pod = cluster
        .until("web", "says what it waits for", |pod| {
            let waiting = status_of(pod, "c").state.and_then(|state| state.waiting);
            let (reason, message) = waiting
                .map(|w| (w.reason.unwrap_or_default(), w.message.unwrap_or_default()))
                .unwrap_or_default();
            let sandbox = condition(pod, "PodReadyToStartContainers");
            match reason == "ContainerCreating" && message.contains("late") && sandbox == "False" {
                true => Ok(()),
                false => Err(format!("{reason}: {message}, sandbox {sandbox}")),
            }
        })
        .await;
    wait_until(TIMEOUT, "no sandbox", async || {
        match cluster.host.ctr(["containers", "ls", "-q"]).unwrap() {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    })
    .await
    .unwrap();
    assert_eq!(phase(&pod), "Pending");
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "late"}, "stringData": {"k": "v"},
    }))
    .unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    secrets.create(&PostParams::default(), &secret).await.expect("a secret");
    let pod = cluster.until_ready("web").await;
    assert_eq!(run_of(&pod).0, 0);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn deletion_during_sandbox_creation_leaves_none() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    proxy.inject("RunPodSandbox", Fault::Delay(Duration::from_secs(3)));
    let pod = cluster.create("web", script(FOREVER)).await;
    wait_until(TIMEOUT, "the sandbox is being made", async || match proxy.calls("RunPodSandbox") {
        0 => Err("not yet".to_owned()),
        _ => Ok(()),
    })
    .await
    .unwrap();
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    assert_eq!(proxy.calls("RunPodSandbox"), 1);
    assert_eq!(proxy.calls("CreateContainer"), 0);
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn termination_is_retried_after_failed_calls() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    let mut spec = script(FOREVER);
    spec["containers"].as_array_mut().unwrap().push(container("d", FOREVER));
    let pod = cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    let refusal = || Fault::Error(longshore_cri::Code::Internal, "no mood".to_owned());
    proxy.inject_times("StopContainer", refusal(), 1);
    proxy.inject_times("StopPodSandbox", refusal(), 1);
    cluster.delete("web").await;
    cluster.until_event("FailedKillPod", "no mood").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    assert_eq!(proxy.calls("StopContainer"), 3, "the other container is stopped once");
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn completed_pod_is_stopped_once() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    let mut spec = script("exit 0");
    spec["restartPolicy"] = json!("Never");
    let pod = cluster.create("job", spec).await;
    until_phase(&cluster, "job", "Succeeded").await;
    cluster.delete("job").await;
    cluster.until_gone("job").await;
    cluster.until_removed(&uid(&pod)).await;
    assert_eq!((proxy.calls("StopContainer"), proxy.calls("StopPodSandbox")), (0, 1));
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn inspection_failure_is_reported() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    let refusal = Fault::Error(longshore_cri::Code::Internal, "cannot say".to_owned());
    proxy.inject("ContainerStatus", refusal);
    cluster.create("web", script(FOREVER)).await;
    let event = cluster.until_event("FailedSync", "error determining status").await;
    assert!(event.message.unwrap().contains("cannot say"));
    proxy.release("ContainerStatus");
    assert_eq!(run_of(&cluster.until_ready("web").await).0, 0);
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_pre_stop_is_cut_short_by_a_shorter_grace_period() {
    let cluster = Cluster::start().await;
    let (mut spec, notes) = with_notes(&cluster, FOREVER);
    spec["containers"][0]["lifecycle"] =
        json!({"preStop": exec("echo hook >>/notes/all; sleep 200")});
    spec["terminationGracePeriodSeconds"] = json!(300);
    let pod = cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    cluster.delete("web").await;
    wait_until(TIMEOUT, "the hook runs", async || std::fs::metadata(&notes)).await.unwrap();
    let params = DeleteParams::default().grace_period(2);
    cluster.pods().delete("web", &params).await.expect("a shorter grace");
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "hook\n");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_post_start_failure_is_reported_and_restarts() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["containers"][0]["lifecycle"] = json!({"postStart": exec("exit 1")});
    cluster.create("web", spec).await;
    cluster.until_event("FailedPostStartHook", "PostStartHook failed").await;
    cluster
        .until("web", "waits after its second try", |pod| {
            let status = status_of(pod, "c");
            let waiting = status.state.and_then(|state| state.waiting).unwrap_or_default();
            let (reason, message) =
                (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default());
            match reason == "CrashLoopBackOff" && message.starts_with("back-off 10s restarting") {
                true if status.restart_count == 1 => Ok(()),
                _ => Err(format!("{} restarts, {reason}: {message}", status.restart_count)),
            }
        })
        .await;
    assert_eq!(condition(&cluster.pod("web").await, "Ready"), "False");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn failing_container_delays_no_other() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    proxy.inject("PullImage", Fault::Hang);
    let mut spec = script(FOREVER);
    spec["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut slow = container("d", FOREVER);
    slow["image"] = json!("longshore.local/far:1");
    slow["imagePullPolicy"] = json!("Always");
    spec["containers"].as_array_mut().unwrap().push(slow);
    cluster.create("web", spec).await;
    cluster.until_event("Killing", "Container c failed liveness probe, will be restarted").await;
    cluster
        .until("web", "restarts the one while the other is pulled", |pod| {
            match status_of(pod, "c").restart_count {
                0 => Err("not yet".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
    assert_eq!(proxy.pending("PullImage"), 1);
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    drop(proxy);
    cluster.host.assert_clean();
}

/// A spec with one container `c` that runs a script and shares a directory with the test, and a
/// file in it that the container knows as `/notes/all`.
fn with_notes(cluster: &Cluster, text: &str) -> (Value, std::path::PathBuf) {
    let dir = cluster.host.dir().join("notes");
    std::fs::create_dir(&dir).unwrap();
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "notes", "hostPath": {"path": dir}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "notes", "mountPath": "/notes"}]);
    (spec, dir.join("all"))
}

fn exec(text: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", text]}})
}

async fn until_phase(cluster: &Cluster, name: &str, wanted: &str) -> Pod {
    let check = |pod: &Pod| match phase(pod) {
        phase if phase == wanted => Ok(()),
        other => Err(other.to_owned()),
    };
    cluster.until(name, wanted, check).await
}

/// The status of a container in whichever list.
fn status_of(pod: &Pod, name: &str) -> ContainerStatus {
    let status = pod.status.clone().unwrap_or_default();
    let lists = [status.container_statuses, status.init_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status.name == name).unwrap_or_default()
}

fn terminated(status: &ContainerStatus) -> k8s_openapi::api::core::v1::ContainerStateTerminated {
    status.state.clone().and_then(|state| state.terminated).expect("it has ended")
}

/// Begin and end that a container left as its termination message.
fn span(status: &ContainerStatus) -> (f64, f64) {
    let message = terminated(status).message.unwrap_or_default();
    let mut numbers = message.split_whitespace().map(|word| word.parse().expect("an uptime"));
    (numbers.next().expect("its begin"), numbers.next().expect("its end"))
}
