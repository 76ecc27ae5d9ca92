//! Evictions choose the right pod and are reported, on a real containerd and any cgroup version.
//! Thresholds are relative to what the machine has left, so that no test exhausts it.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Cluster, FOREVER, TIMEOUT, condition, container, phase, script, uid};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use kube::api::Api;
use longshore_testkit::{Disk, Host, available_memory, cgroup_file, total_memory, wait_until};
use serde_json::{Value, json};

const MI: u64 = 1 << 20;

/// Takes 8 MiB of memory at a time once the file is there, until somebody stops it: what nobody
/// reads from the pipe is kept.
const HOG: &str = "while [ ! -e /v/go ]; do sleep 0.05; done; \
                   while :; do dd if=/dev/zero bs=8M count=1 | sleep 3600 & sleep 0.02; done";

/// Thresholds that nothing meets but those given.
fn hard(thresholds: Value) -> Value {
    json!({"evictionHard": thresholds, "evictionPressureTransitionPeriod": "3s"})
}

async fn until_condition(cluster: &Cluster, type_: &str, status: &str) -> NodeCondition {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let what = format!("{type_} is {status}");
    wait_until(TIMEOUT, &what, async || {
        let node = nodes.get(&cluster.host.name()).await.map_err(|error| error.to_string())?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition.type_ == type_);
        let found = found.ok_or("no such condition")?;
        if found.status == status { Ok(found) } else { Err(found.status) }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"))
}

async fn until_evicted(cluster: &Cluster, name: &str) -> (Pod, String) {
    let pod = cluster
        .until(name, "evicted", |pod| match phase(pod) {
            "Failed" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    let status = pod.status.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"), "{status:?}");
    (pod, status.message.unwrap_or_default())
}

/// A spec with a container that asks for so much memory.
fn requesting(text: &str, requests: Value, limits: Value) -> Value {
    let mut spec = script(text);
    spec["containers"][0]["resources"] = json!({"requests": requests, "limits": limits});
    spec
}

fn hog() -> Value {
    let mut spec = requesting(HOG, json!({"memory": "16Mi"}), json!({}));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    spec
}

fn volume(cluster: &Cluster, pod: &Pod, name: &str) -> PathBuf {
    let pods = cluster.node.root_dir().join("pods");
    pods.join(uid(pod)).join("volumes/kubernetes.io~empty-dir").join(name)
}

/// What the daemon says of how quick it was.
fn show_times(cluster: &mut Cluster) {
    let log = cluster.node.daemon().log();
    log.lines().filter(|line| line.contains("pod selected for eviction")).for_each(|line| {
        eprintln!("{line}");
    });
}

/// Whether there is room is for `has_room` to say, once the hog is gone: other work on the machine
/// takes memory, too.
async fn hog_among_others(cluster: &mut Cluster, has_room: impl Fn() -> bool) {
    let exact = json!({"memory": "64Mi", "cpu": "100m"});
    cluster.create("guaranteed", requesting(FOREVER, exact.clone(), exact)).await;
    cluster.create("modest", requesting(FOREVER, json!({"memory": "32Mi"}), json!({}))).await;
    cluster.create("hog", hog()).await;
    for name in ["guaranteed", "modest", "hog"] {
        cluster.until_ready(name).await;
    }
    let hog = cluster.pod("hog").await;
    fs::write(volume(cluster, &hog, "v").join("go"), "").unwrap();

    let pressure = until_condition(cluster, "MemoryPressure", "True").await;
    assert_eq!(pressure.reason.as_deref(), Some("KubeletHasInsufficientMemory"));
    let (hog, message) = until_evicted(cluster, "hog").await;
    for name in ["guaranteed", "modest"] {
        assert_eq!(phase(&cluster.pod(name).await), "Running", "{name} is not the first to go");
    }
    show_times(cluster);
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: ")
            && message.contains(", available: ")
            && message.contains(". Container c was using ")
            && message.ends_with("request is 16Mi, has larger consumption of memory. "),
        "{message}"
    );
    assert_eq!(condition(&hog, "DisruptionTarget"), "True");
    let event = cluster.until_event("Evicted", "The node was low on resource: memory").await;
    let annotations = event.metadata.annotations.unwrap();
    assert_eq!(annotations["starved_resource"], "memory");
    assert_eq!(annotations["offending_containers"], "c");
    assert!(annotations.contains_key("offending_containers_usage"));
    cluster.until_event("EvictionThresholdMet", "Attempting to reclaim memory").await;
    if !has_room() {
        eprintln!("others took the memory: no calm is awaited");
        return;
    }
    let calm = until_condition(cluster, "MemoryPressure", "False").await;
    assert_eq!(calm.reason.as_deref(), Some("KubeletHasSufficientMemory"));
    for name in ["guaranteed", "modest"] {
        let pod = cluster.pod(name).await;
        assert_eq!((phase(&pod), condition(&pod, "Ready").as_str()), ("Running", "True"), "{name}");
    }
}

#[tokio::test]
async fn eviction_by_memory_pressure() {
    let available = available_memory().unwrap();
    let headroom = (available / 3).min(1024 * MI);
    let threshold = available - headroom;
    let amount = format!("{}Mi", threshold / MI);
    let mut cluster = Cluster::start_with(hard(json!({"memory.available": amount}))).await;
    hog_among_others(&mut cluster, || available_memory().unwrap() > threshold + headroom / 2).await;
}

#[tokio::test]
async fn eviction_by_allocatable_memory() {
    const ALLOCATABLE: u64 = 400 * MI;
    let mut config = hard(json!({"memory.available": "150Mi"}));
    config["kubeReserved"] = json!({"memory": (total_memory().unwrap() - ALLOCATABLE).to_string()});
    config["kernelMemcgNotification"] = json!(true);
    let mut cluster = Cluster::start_with(config).await;
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    let group = Path::new(cluster.host.cgroup_root().trim_start_matches('/')).join("kubepods");
    for limit in ["memory.max", "memory.limit_in_bytes"] {
        let file = cgroup_file("memory", &group.join(limit));
        if file.exists() {
            fs::write(&file, ALLOCATABLE.to_string()).unwrap();
        }
    }
    hog_among_others(&mut cluster, || true).await;
    let log = cluster.node.daemon().log();
    assert!(log.contains("allocatableMemory.available"), "it was the pods' memory");
}

/// Also CVE-2020-8557: what a container writes to the hosts file, which is the node's, counts.
#[tokio::test]
async fn eviction_by_ephemeral_storage_limits() {
    let cluster = Cluster::start().await;
    let limit = |size: &str| json!({"ephemeral-storage": size});
    let write = |megabytes: u32, to: &str| {
        format!("dd if=/dev/zero of={to} bs=1M count={megabytes}; {FOREVER}")
    };
    cluster.create("layer", requesting(&write(30, "/x"), json!({}), limit("10Mi"))).await;
    // Files of the node that a container may write to.
    cluster.create("hosts", requesting(&write(30, "/etc/hosts"), json!({}), limit("10Mi"))).await;
    let message = write(30, "/dev/termination-log");
    cluster.create("message", requesting(&message, json!({}), limit("10Mi"))).await;
    let print = format!("yes 0123456789abcdef | head -c 8000000; {FOREVER}");
    let mut logs = requesting(&print, json!({}), limit("5Mi"));
    let mut other = container("d", FOREVER);
    other["resources"] = json!({"limits": limit("100Mi")});
    logs["containers"].as_array_mut().unwrap().push(other);
    cluster.create("logs", logs).await;
    let on_volume = |megabytes: u32| {
        let mut spec = requesting(&write(megabytes, "/v/x"), json!({}), limit("100Mi"));
        spec["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "5Mi"}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        spec
    };
    cluster.create("volume", on_volume(12)).await;
    cluster.create("frugal", on_volume(2)).await;
    for (name, expected) in [
        ("volume", "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". "),
        ("logs", "Container c exceeded its local ephemeral storage limit \"5Mi\". "),
        ("layer", "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "),
        ("hosts", "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "),
        (
            "message",
            "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
        ),
    ] {
        let (pod, message) = until_evicted(&cluster, name).await;
        assert_eq!(message, expected);
        assert_eq!(condition(&pod, "DisruptionTarget"), "", "it was its own fault");
        cluster.until_event("Evicted", expected).await;
    }
    assert_eq!(phase(&cluster.pod("frugal").await), "Running");
}

#[tokio::test]
async fn eviction_by_disk_pressure() {
    let host = Host::start().expect("a host");
    // Where the node has its root directory.
    let disk = Disk::mount(&host, 256 * MI, host.dir().join("node/root")).unwrap();
    let mut cluster = Cluster::on(host, hard(json!({"nodefs.available": "100Mi"}))).await;
    let on_volume = |text: &str| {
        let mut spec = script(text);
        spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        spec
    };
    let stores = format!("dd if=/dev/zero of=/v/x bs=1M count=20; {FOREVER}");
    cluster.create("stores", on_volume(&stores)).await;
    cluster.until_ready("stores").await;
    let fills = format!("dd if=/dev/zero of=/v/x bs=1M count=160; {FOREVER}");
    cluster.create("fills", on_volume(&fills)).await;
    let pressure = until_condition(&cluster, "DiskPressure", "True").await;
    assert_eq!(pressure.reason.as_deref(), Some("KubeletHasDiskPressure"));
    let (pod, message) = until_evicted(&cluster, "fills").await;
    show_times(&mut cluster);
    assert!(
        message.starts_with(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: "
        ),
        "{message}"
    );
    assert_eq!(condition(&pod, "DisruptionTarget"), "True");
    let calm = until_condition(&cluster, "DiskPressure", "False").await;
    assert_eq!(calm.reason.as_deref(), Some("KubeletHasNoDiskPressure"));
    assert_eq!(phase(&cluster.pod("stores").await), "Running");
    for name in ["stores", "fills"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    let Cluster { node, apiserver, host, .. } = cluster;
    drop((node, disk, apiserver));
    host.assert_clean();
}

#[tokio::test]
async fn eviction_spares_critical_pods() {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static"},
        "spec": script(FOREVER),
    });
    let host = Host::start().expect("a host");
    let manifests = longshore_testkit::Node::manifests_on(&host);
    fs::create_dir_all(&manifests).unwrap();
    fs::write(manifests.join("static.json"), manifest.to_string()).unwrap();
    // There is always less.
    let threshold = format!("{}Mi", total_memory().unwrap() / MI - 1);
    let mut cluster = Cluster::on(host, hard(json!({"memory.available": threshold}))).await;
    until_condition(&cluster, "MemoryPressure", "True").await;
    let name = format!("static-{}", cluster.host.name());
    cluster.until_ready(&name).await;
    cluster.until_event("EvictionThresholdMet", "memory").await;
    let daemon = cluster.node.daemon();
    let log = wait_until(TIMEOUT, "the pod is spared", async || {
        let log = daemon.log();
        log.contains("cannot evict a critical pod").then_some(log).ok_or("not yet")
    });
    let log = log.await.unwrap();
    assert_eq!(phase(&cluster.pod(&name).await), "Running");
    let attempts = log.matches("Attempting to reclaim memory").count();
    assert!(attempts < 10, "{attempts} attempts to do what cannot be done");
}
