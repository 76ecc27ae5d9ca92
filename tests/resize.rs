//! In-place resize of pods, on a real runtime and real cgroups.

use crate::common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, condition, container, run_of, script, uid};
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use kube::api::{Patch, PatchParams};
use longshore_metrics::parse::{Page, parse};
use longshore_testkit::fakecri::Fault;
use longshore_testkit::{Host, wait_until};
use serde_json::{Value, json};

const MIB: i64 = 1 << 20;

/// A pod with one container of these requests and limits.
fn sized(requests: Value, limits: Value) -> Value {
    let mut spec = script(FOREVER);
    spec["containers"][0]["resources"] = json!({"requests": requests, "limits": limits});
    spec
}

fn same(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    sized(amounts.clone(), amounts)
}

fn of_container(requests: Value, limits: Value) -> Value {
    let resources = json!({"requests": requests, "limits": limits});
    json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
}

fn to(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    of_container(amounts.clone(), amounts)
}

/// As `kubectl patch --subresource resize` does it.
async fn patch(cluster: &Cluster, name: &str, patch: &Value) {
    let (pods, params) = (cluster.pods(), PatchParams::default());
    let patched = pods.patch_subresource("resize", name, &params, &Patch::Strategic(patch)).await;
    patched.expect("a resize is taken");
}

fn condition_of(pod: &Pod, type_: &str) -> Option<PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_).cloned()
}

fn reason(pod: &Pod, type_: &str) -> Option<String> {
    condition_of(pod, type_)?.reason
}

/// The node's CPUs, in thousandths.
async fn allocatable(cluster: &Cluster) -> i64 {
    let nodes: kube::Api<Node> = kube::Api::all(cluster.client.clone());
    let node = wait_until(TIMEOUT, "a node", async || nodes.get(&cluster.host.name()).await);
    let status = node.await.unwrap().status.unwrap();
    status.allocatable.unwrap()["cpu"].0.parse::<i64>().unwrap() * 1000
}

/// Until the status shows the requested resources.
async fn until_resized(cluster: &Cluster, name: &str) -> Pod {
    cluster
        .until(name, "resized", |pod| {
            let status = pod.status.as_ref().unwrap();
            let seen = status.observed_generation == pod.metadata.generation;
            let open =
                ["PodResizePending", "PodResizeInProgress"].map(|type_| condition_of(pod, type_));
            let resources = |pod: &Pod| {
                let statuses = pod.status.as_ref().unwrap().container_statuses.clone();
                let mut resources: Vec<_> =
                    statuses.into_iter().flatten().map(|s| (s.name, s.resources)).collect();
                resources.sort_by(|(a, _), (b, _)| a.cmp(b));
                resources
            };
            let mut wanted: Vec<_> = pod.spec.as_ref().unwrap().containers.clone();
            wanted.sort_by(|a, b| a.name.cmp(&b.name));
            let wanted: Vec<_> = wanted.into_iter().map(|c| (c.name, c.resources)).collect();
            match seen && open == [None, None] && resources(pod) == wanted {
                true => Ok(()),
                false => Err(format!("{seen} {open:?} {:?}", resources(pod))),
            }
        })
        .await
}

/// A number in a file of a cgroup; on cgroup v1, which the tests run on.
fn number(cluster: &Cluster, controller: &str, group: &str, file: &str) -> i64 {
    let root = cluster.host.cgroup_root();
    let path: PathBuf =
        ["/sys/fs/cgroup", controller, root.trim_matches('/'), "kubepods", group, file]
            .iter()
            .collect();
    let text = std::fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().parse().unwrap()
}

/// CPU shares, CPU quota and memory limit (MiB) of a group.
fn limits(cluster: &Cluster, group: &str) -> (i64, i64, i64) {
    let number = |controller, file| number(cluster, controller, group, file);
    (
        number("cpu", "cpu.shares"),
        number("cpu", "cpu.cfs_quota_us"),
        number("memory", "memory.limit_in_bytes") / MIB,
    )
}

/// A page of the node's.
async fn page(cluster: &Cluster, path: &str) -> Result<Page, String> {
    let path = format!("/api/v1/nodes/{}/proxy/{path}", cluster.host.name());
    let request = axum::http::Request::get(path).body(Vec::new()).unwrap();
    let text = cluster.client.request_text(request).await.map_err(|error| error.to_string())?;
    parse(&text).map_err(|error| error.to_string())
}

/// A metric about resizes.
async fn counted(cluster: &Cluster, name: &str, labels: &[(&str, &str)]) -> f64 {
    let page = page(cluster, "metrics").await.unwrap();
    page.sum(&format!("kubelet_{name}"), labels).unwrap_or(0.0)
}

/// The memory limits (MiB) that the node's stats show for a pod and of its container.
async fn reported_limits(cluster: &Cluster, pod: &str) -> Result<[i64; 2], String> {
    let page = page(cluster, "metrics/cadvisor").await?;
    let of = |labels: &[(&str, &str)]| {
        let mut samples = page.samples("container_spec_memory_limit_bytes", labels);
        samples.next().map_or(0, |sample| sample.value as i64 / MIB)
    };
    Ok([
        of(&[("pod", pod), ("container", ""), ("image", "")]),
        of(&[("pod", pod), ("container", "c")]),
    ])
}

fn group_of(pod: &Pod, class: &str) -> String {
    format!("{class}pod{}", uid(pod))
}

fn run_group(pod: &Pod, class: &str) -> String {
    let (_, id) = run_of(pod);
    format!("{}/{}", group_of(pod, class), id.trim_start_matches("containerd://"))
}

fn unified() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

#[tokio::test]
async fn resize_cpu_and_memory_in_place() {
    let cluster = Cluster::start().await;
    cluster.create("web", same("100m", "64Mi")).await;
    let before = cluster.until_ready("web").await;
    let (pod, run) = (group_of(&before, ""), run_group(&before, ""));
    for (cpu, memory, expected) in [
        ("200m", "128Mi", (204, 20_000, 128)),
        ("50m", "256Mi", (51, 5_000, 256)),
        ("300m", "32Mi", (307, 30_000, 32)),
        ("100m", "64Mi", (102, 10_000, 64)),
    ] {
        patch(&cluster, "web", &to(cpu, memory)).await;
        let resized = until_resized(&cluster, "web").await;
        assert_eq!(run_of(&resized), run_of(&before), "not restarted");
        let allocated = &resized.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(allocated.allocated_resources.as_ref().unwrap()["cpu"].0, cpu);
        if !unified() {
            assert_eq!(limits(&cluster, &run), expected, "container {cpu} {memory}");
            assert_eq!(limits(&cluster, &pod), expected, "pod {cpu} {memory}");
        }
    }
    let started = cluster.until_event("ResizeStarted", "\"generation\":2").await;
    assert_eq!(
        started.message.unwrap(),
        r#"Pod resize started: {"containers":[{"name":"c","resources":{"limits":{"cpu":"200m","memory":"128Mi"},"requests":{"cpu":"200m","memory":"128Mi"}}}],"generation":2}"#
    );
    let done = cluster.until_event("ResizeCompleted", "\"generation\":5").await;
    assert!(done.message.unwrap().starts_with("Pod resize completed: {\"containers\""));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_several_containers_and_the_pod() {
    let cluster = Cluster::start().await;
    let amounts = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        json!({"requests": amounts, "limits": amounts})
    };
    let restart = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let mut spec = script(FOREVER);
    let mut sidecar = container("side", FOREVER);
    sidecar["restartPolicy"] = json!("Always");
    sidecar["resources"] = amounts("100m", "32Mi");
    spec["initContainers"] = json!([sidecar]);
    spec["containers"] = json!([container("c", FOREVER), container("d", FOREVER)]);
    spec["containers"][0]["resources"] = amounts("300m", "64Mi");
    spec["containers"][1]["resources"] = amounts("100m", "64Mi");
    spec["containers"][1]["resizePolicy"] = restart;
    cluster.create("web", spec).await;
    let before = cluster.until_ready("web").await;
    let patched = json!({"spec": {
        "initContainers": [{"name": "side", "resources": amounts("200m", "32Mi")}],
        "containers": [
            {"name": "c", "resources": amounts("100m", "128Mi")},
            {"name": "d", "resources": amounts("400m", "32Mi")},
        ],
    }});
    patch(&cluster, "web", &patched).await;
    let resized = until_resized(&cluster, "web").await;
    assert_eq!(run_of(&resized), run_of(&before));
    let statuses = resized.status.as_ref().unwrap().container_statuses.clone().unwrap();
    let restarts: Vec<_> = statuses.iter().map(|s| (s.name.as_str(), s.restart_count)).collect();
    assert_eq!(restarts, [("c", 0), ("d", 1)]);
    if !unified() {
        let pod = group_of(&resized, "");
        assert_eq!(limits(&cluster, &pod), (716, 70_000, 192));
        assert_eq!(limits(&cluster, &run_group(&resized, "")), (102, 10_000, 128));
    }
    cluster.until_event("Killing", "Container d resize requires restart").await;
    // And back, which lowers what was raised.
    let back = json!({"spec": {
        "containers": [
            {"name": "c", "resources": amounts("50m", "32Mi")},
            {"name": "d", "resources": amounts("50m", "32Mi")},
        ],
    }});
    patch(&cluster, "web", &back).await;
    let resized = until_resized(&cluster, "web").await;
    if !unified() {
        assert_eq!(limits(&cluster, &group_of(&resized, "")), (307, 30_000, 96));
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_policy_restarts_the_container() {
    let cluster = Cluster::start().await;
    let mut spec = same("100m", "64Mi");
    spec["restartPolicy"] = json!("Never");
    spec["containers"][0]["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    cluster.create("web", spec).await;
    let before = run_of(&cluster.until_ready("web").await);
    patch(&cluster, "web", &to("200m", "64Mi")).await;
    assert_eq!(run_of(&until_resized(&cluster, "web").await), before);
    patch(&cluster, "web", &to("200m", "32Mi")).await;
    let resized = until_resized(&cluster, "web").await;
    assert_eq!(run_of(&resized).0, 1);
    if !unified() {
        assert_eq!(limits(&cluster, &run_group(&resized, "")), (204, 20_000, 32));
        assert_eq!(limits(&cluster, &group_of(&resized, "")), (204, 20_000, 32));
    }
    assert_eq!(condition(&resized, "Ready"), "True");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_is_deferred_until_resources_are_free() {
    let cluster = Cluster::start().await;
    let most = allocatable(&cluster).await;
    let request = |milli: i64| json!({"cpu": format!("{milli}m")});
    cluster.create("big", sized(request(most - 300), json!({}))).await;
    cluster.create("low", sized(request(100), json!({}))).await;
    let mut important = sized(request(100), json!({}));
    important["priorityClassName"] = json!("system-cluster-critical");
    cluster.create("high", important).await;
    for name in ["big", "low", "high"] {
        cluster.until_ready(name).await;
    }
    for name in ["low", "high"] {
        patch(&cluster, name, &of_container(request(most - 200), json!({}))).await;
        let waits = cluster
            .until(name, "Deferred", |pod| match reason(pod, "PodResizePending") {
                Some(reason) if reason == "Deferred" => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        let pending = condition_of(&waits, "PodResizePending").unwrap();
        assert_eq!(
            pending.message.unwrap(),
            format!(
                "Node didn't have enough resource: cpu, requested: {}, used: {}, capacity: {most}",
                most - 200,
                most - 200
            )
        );
        assert_eq!(pending.observed_generation, Some(2));
        let status = &waits.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(status.allocated_resources.as_ref().unwrap()["cpu"].0, "100m");
    }
    cluster.until_event("ResizeDeferred", "Pod resize OutOfcpu: {\"containers\"").await;
    let increases = [("resource", "cpu"), ("requirement", "requests"), ("operation", "increase")];
    assert_eq!(counted(&cluster, "container_requested_resizes_total", &increases).await, 2.0);
    assert_eq!(counted(&cluster, "pod_pending_resizes", &[("reason", "deferred")]).await, 2.0);

    // One that gives back makes room for nobody yet; one that goes makes room for the first.
    cluster.delete("big").await;
    until_resized(&cluster, "high").await;
    let low = cluster.pod("low").await;
    assert_eq!(reason(&low, "PodResizePending").as_deref(), Some("Deferred"));
    // A resize that is taken back is not waited for any more, and one that shrinks makes room.
    patch(&cluster, "high", &of_container(request(150), json!({}))).await;
    until_resized(&cluster, "high").await;
    let low = until_resized(&cluster, "low").await;
    if !unified() {
        let shares = number(&cluster, "cpu", &run_group(&low, "burstable/"), "cpu.shares");
        assert_eq!(shares, (most - 200) * 1024 / 1000);
    }
    for (trigger, expected) in [("pod_terminated", 1.0), ("pod_resized", 1.0), ("", 0.0)] {
        let labels = [("retry_trigger", trigger)];
        let accepted = counted(&cluster, "pod_deferred_accepted_resizes_total", &labels).await;
        assert_eq!(accepted, expected, "{trigger:?}");
    }
    let success = [("success", "true")];
    let steps = counted(&cluster, "pod_resize_duration_milliseconds_count", &success).await;
    assert!(steps >= 3.0, "{steps}");
    assert_eq!(counted(&cluster, "pod_pending_resizes", &[]).await, 0.0);
    assert_eq!(counted(&cluster, "pod_in_progress_resizes", &[]).await, 0.0);
    patch(&cluster, "low", &of_container(request(most - 100), json!({}))).await;
    cluster
        .until("low", "Deferred again", |pod| {
            reason(pod, "PodResizePending").map(|_| ()).ok_or_else(|| "not yet".to_owned())
        })
        .await;
    patch(&cluster, "low", &of_container(request(most - 200), json!({}))).await;
    until_resized(&cluster, "low").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_below_memory_usage_is_refused() {
    let cluster = Cluster::start().await;
    let mut spec = sized(json!({"memory": "64Mi"}), json!({"memory": "64Mi"}));
    // Holds some memory of its own, so that it uses more than it will be wanted to.
    spec["containers"][0]["command"] =
        json!(["sh", "-c", format!("x=$(head -c 8000000 /dev/zero | tr '\\0' x); {FOREVER}")]);
    cluster.create("web", spec).await;
    let before = cluster.until_ready("web").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let memory = |amount: &str| of_container(json!({"memory": amount}), json!({"memory": amount}));
    patch(&cluster, "web", &memory("4Mi")).await;
    let held = cluster
        .until("web", "not resized", |pod| match condition_of(pod, "PodResizeInProgress") {
            Some(condition) if condition.reason.as_deref() == Some("Error") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let message = condition_of(&held, "PodResizeInProgress").unwrap().message.unwrap();
    assert!(message.starts_with("cannot decrease memory limits: "), "{message}");
    assert!(message.contains("memory limit (4194304) below current usage ("), "{message}");
    let status = &held.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
    assert_eq!(status.allocated_resources.as_ref().unwrap()["memory"].0, "4Mi");
    assert_eq!(status.resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0, "64Mi");
    cluster.until_event("ResizeError", "cannot decrease memory limits").await;
    let failures = [("success", "false")];
    assert!(counted(&cluster, "pod_resize_duration_milliseconds_count", &failures).await >= 1.0);
    assert_eq!(counted(&cluster, "pod_in_progress_resizes", &[]).await, 1.0);
    if !unified() {
        let file = "memory.limit_in_bytes";
        assert_eq!(number(&cluster, "memory", &run_group(&held, "burstable/"), file), 64 * MIB);
        assert_eq!(number(&cluster, "memory", &group_of(&held, "burstable/"), file), 64 * MIB);
    }
    patch(&cluster, "web", &memory("128Mi")).await;
    let resized = until_resized(&cluster, "web").await;
    assert_eq!(run_of(&resized), run_of(&before));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_infeasible_is_reported() {
    let cluster = Cluster::start_with(json!({
        "cpuManagerPolicy": "static", "systemReserved": {"cpu": "100m"},
    }))
    .await;
    cluster.create("web", same("100m", "64Mi")).await;
    cluster.until_ready("web").await;
    patch(&cluster, "web", &to("200m", "64Mi")).await;
    let refused = cluster
        .until("web", "Infeasible", |pod| match reason(pod, "PodResizePending") {
            Some(reason) if reason == "Infeasible" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let message = condition_of(&refused, "PodResizePending").unwrap().message.unwrap();
    let expected =
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    assert_eq!(message, expected);
    cluster.until_event("ResizeInfeasible", "Pod resize Infeasible: ").await;
    let why = [("reason_detail", "guaranteed_pod_cpu_manager_static_policy")];
    assert_eq!(counted(&cluster, "pod_infeasible_resizes_total", &why).await, 1.0);
    assert_eq!(counted(&cluster, "pod_pending_resizes", &[("reason", "infeasible")]).await, 1.0);
    // Memory is not the CPU manager's.
    patch(&cluster, "web", &to("100m", "128Mi")).await;
    until_resized(&cluster, "web").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_pod_level_resources() {
    let cluster = Cluster::start().await;
    let whole = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        json!({"requests": amounts, "limits": amounts})
    };
    let mut spec = script(FOREVER);
    spec["resources"] = whole("200m", "64Mi");
    cluster.create("web", spec).await;
    let before = cluster.until_ready("web").await;
    for (cpu, memory, expected) in
        [("400m", "128Mi", (409, 40_000, 128)), ("100m", "32Mi", (102, 10_000, 32))]
    {
        patch(&cluster, "web", &json!({"spec": {"resources": whole(cpu, memory)}})).await;
        let resized = until_resized(&cluster, "web").await;
        assert_eq!(run_of(&resized), run_of(&before));
        let actual = resized.status.as_ref().unwrap().resources.as_ref().unwrap();
        assert_eq!(actual.limits.as_ref().unwrap()["memory"].0, memory);
        if !unified() {
            assert_eq!(limits(&cluster, &group_of(&resized, "")), expected);
            let run = limits(&cluster, &run_group(&resized, ""));
            assert_eq!((run.1, run.2), (expected.1, expected.2));
        }
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_is_shown_in_stats_of_idle_pods() {
    let cluster = Cluster::start().await;
    let mut spec = same("50m", "16Mi");
    spec["resources"] = json!({"limits": {"cpu": "200m", "memory": "64Mi"}});
    cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    for memory in [64, 128, 32] {
        let limits = json!({"limits": {"cpu": "200m", "memory": format!("{memory}Mi")}});
        patch(&cluster, "web", &json!({"spec": {"resources": limits}})).await;
        until_resized(&cluster, "web").await;
        wait_until(TIMEOUT, "the stats show it", async || {
            match reported_limits(&cluster, "web").await? {
                actual if actual == [memory, 16] => Ok(()),
                actual => Err(format!("{actual:?}, not {memory} and 16")),
            }
        })
        .await
        .unwrap();
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_continues_after_a_restart() {
    let host = Host::start().expect("a host");
    let (mut cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    cluster.create("web", same("100m", "64Mi")).await;
    let mut restarting = same("100m", "64Mi");
    restarting["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    cluster.create("again", restarting).await;
    let before = cluster.until_ready("web").await;
    cluster.until_ready("again").await;
    proxy.inject("UpdateContainerResources", Fault::Hang);
    proxy.inject("CreateContainer", Fault::Hang);
    for name in ["web", "again"] {
        patch(&cluster, name, &to("200m", "128Mi")).await;
        cluster
            .until(name, "being resized", |pod| {
                condition_of(pod, "PodResizeInProgress")
                    .map(|_| ())
                    .ok_or_else(|| "not yet".to_owned())
            })
            .await;
    }
    wait_until(TIMEOUT, "calls hang", async || match proxy.unmet() {
        unmet if unmet.is_empty() => Ok(()),
        unmet => Err(format!("{unmet:?}")),
    })
    .await
    .unwrap();
    cluster.node.daemon().kill().expect("killed");
    proxy.release_all();
    cluster.node.restart(&cluster.host).expect("started again");
    let resized = until_resized(&cluster, "web").await;
    assert_eq!(run_of(&resized), run_of(&before));
    let restarted = |pod: &Pod| match (run_of(pod).0, condition(pod, "Ready").as_str()) {
        (1, "True") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    cluster.until("again", "restarted once", restarted).await;
    let again = until_resized(&cluster, "again").await;
    assert_eq!(run_of(&again).0, 1, "restarted once");
    if !unified() {
        for pod in [&resized, &again] {
            assert_eq!(limits(&cluster, &run_group(pod, "")), (204, 20_000, 128));
            assert_eq!(limits(&cluster, &group_of(pod, "")), (204, 20_000, 128));
        }
    }
    for name in ["web", "again"] {
        let done = |event: &k8s_openapi::api::core::v1::Event| {
            event.reason.as_deref() == Some("ResizeCompleted")
                && event.involved_object.name.as_deref() == Some(name)
        };
        wait_until(TIMEOUT, "an event", async || {
            let events: kube::Api<k8s_openapi::api::core::v1::Event> =
                kube::Api::namespaced(cluster.client.clone(), "default");
            let all = events.list(&Default::default()).await.map_err(|error| error.to_string())?;
            all.items.iter().find(|event| done(event)).map(|_| ()).ok_or_else(|| name.to_owned())
        })
        .await
        .unwrap();
    }
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_allocation_survives_a_restart() {
    let mut cluster = Cluster::start().await;
    let most = allocatable(&cluster).await;
    let request = |milli: i64| json!({"cpu": format!("{milli}m")});
    cluster.create("big", sized(request(most - 300), json!({}))).await;
    cluster.create("web", sized(request(100), json!({}))).await;
    cluster.until_ready("big").await;
    let before = cluster.until_ready("web").await;
    patch(&cluster, "web", &of_container(request(most - 200), json!({}))).await;
    let waits = |pod: &Pod| match reason(pod, "PodResizePending") {
        Some(reason) if reason == "Deferred" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let waiting = cluster.until("web", "Deferred", waits).await;
    let files = ["allocated_pods_state", "actuated_pods_state"];
    let files = files.map(|file| cluster.node.root_dir().join(file));
    for file in &files {
        wait_until(TIMEOUT, "a checkpoint", async || {
            let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
            let uid = format!("\\\"{}\\\":{{\\\"ContainerResources\\\":", uid(&before));
            if text.contains(&uid) && text.contains("100m") { Ok(()) } else { Err(text) }
        })
        .await
        .unwrap();
    }
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "the node runs again", async || match cluster.node.daemon().log() {
        log if log.contains("node started") => Ok(()),
        log => Err(log),
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = cluster.pod("web").await;
    assert_eq!(after.metadata.resource_version, waiting.metadata.resource_version);
    assert_eq!(run_of(&after), run_of(&before));

    // A file that cannot be trusted is a matter for a person.
    cluster.node.daemon().kill().expect("killed");
    let good = std::fs::read_to_string(&files[0]).unwrap();
    std::fs::write(&files[0], good.replace("100m", "200m")).unwrap();
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "the daemon refuses", async || match cluster.node.daemon().log() {
        log if log.contains("checkpoint is corrupted")
            && log.contains("please drain this node and delete pod resource information")
            && log.contains("allocated_pods_state") =>
        {
            Ok(())
        }
        log => Err(log),
    })
    .await
    .unwrap();
    std::fs::write(&files[0], good).unwrap();
    cluster.node.restart(&cluster.host).expect("started again");
    for name in ["web", "big"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_runtime_errors_are_reported_and_retried() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    cluster.create("web", same("100m", "64Mi")).await;
    let before = cluster.until_ready("web").await;
    let refusal = Fault::Error(longshore_cri::Code::Internal, "not today".to_owned());
    proxy.inject("UpdateContainerResources", refusal);
    patch(&cluster, "web", &to("200m", "64Mi")).await;
    let failed = cluster
        .until("web", "not resized", |pod| match condition_of(pod, "PodResizeInProgress") {
            Some(condition) if condition.reason.as_deref() == Some("Error") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let condition = condition_of(&failed, "PodResizeInProgress").unwrap();
    assert!(condition.message.unwrap().contains("not today"));
    assert_eq!(condition.observed_generation, Some(2));
    cluster.until_event("ResizeError", "not today").await;
    // Another generation is another matter, and the one that is given is that which counts.
    patch(&cluster, "web", &to("300m", "64Mi")).await;
    proxy.release_all();
    let resized = until_resized(&cluster, "web").await;
    assert_eq!(run_of(&resized), run_of(&before));
    cluster.until_event("ResizeCompleted", "\"generation\":3").await;
    if !unified() {
        assert_eq!(limits(&cluster, &run_group(&resized, "")), (307, 30_000, 64));
        assert_eq!(limits(&cluster, &group_of(&resized, "")), (307, 30_000, 64));
    }
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn resize_of_init_container() {
    let cluster = Cluster::start().await;
    let amounts = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        json!({"requests": amounts, "limits": amounts})
    };
    let mut spec = same("20m", "32Mi");
    let mut init = container("first", FOREVER);
    init["resources"] = amounts("20m", "32Mi");
    spec["initContainers"] = json!([init]);
    cluster.create("web", spec).await;
    let of_init = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.init_container_statuses.clone()?;
        let resources = statuses.first()?.resources.clone()?;
        Some(resources.limits?["cpu"].0.clone())
    };
    for (cpu, memory, quota) in [("50m", "64Mi", 5_000), ("20m", "32Mi", 2_000)] {
        let resources = amounts(cpu, memory);
        let running = |pod: &Pod| of_init(pod).map(|_| ()).ok_or_else(|| "not yet".to_owned());
        cluster.until("web", "in its init phase", running).await;
        let patched =
            json!({"spec": {"initContainers": [{"name": "first", "resources": resources}]}});
        patch(&cluster, "web", &patched).await;
        let resized = cluster
            .until("web", "resized", |pod| {
                let open = condition_of(pod, "PodResizeInProgress");
                match (of_init(pod).as_deref(), &open) {
                    (Some(now), None) if now == cpu => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        if !unified() {
            let group = group_of(&resized, "");
            assert_eq!(number(&cluster, "cpu", &group, "cpu.cfs_quota_us"), quota);
        }
    }
    cluster.host.assert_clean();
}
