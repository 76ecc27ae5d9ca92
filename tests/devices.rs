//! Pods with devices of a plugin on a real node: what containers get, the node's and the pods' status,
//! restarts of the daemon and the end of the plugin.

use crate::common;

use std::path::PathBuf;

use common::{Cluster, FOREVER, TIMEOUT, run_of, script, uid};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use longshore_devices::pod_resources::v1::ListPodResourcesRequest;
use longshore_devices::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient;
use longshore_devices::testing::{Script, ScriptedPlugin, device};
use longshore_devices::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

const GPU: &str = "example.com/gpu";

fn folder(cluster: &Cluster) -> PathBuf {
    cluster.node.root_dir().join("device-plugins")
}

/// A plugin with two devices, which gives a device node, a mount and a variable.
async fn plugin(cluster: &Cluster, name: &str) -> ScriptedPlugin {
    let device_node = DeviceSpec {
        container_path: "/dev/gpu".to_owned(),
        host_path: "/dev/zero".to_owned(),
        permissions: "rw".to_owned(),
    };
    let library = cluster.host.dir().join("library");
    std::fs::create_dir_all(&library).unwrap();
    let mount = Mount {
        container_path: "/library".to_owned(),
        host_path: library.display().to_string(),
        read_only: true,
    };
    let response = ContainerAllocateResponse {
        devices: vec![device_node],
        mounts: vec![mount],
        ..ContainerAllocateResponse::default()
    };
    let devices = ["a", "b"].map(|id| device(id, "Healthy")).into();
    let script = Script { response, ..Script::default() };
    // The daemon removes what is there when it starts.
    let daemon = folder(cluster).join("kubelet.sock");
    let listens = async || tokio::net::UnixStream::connect(&daemon).await.map(drop);
    wait_until(TIMEOUT, "the daemon's socket", listens).await.unwrap();
    let plugin = ScriptedPlugin::start(&folder(cluster), name, devices, script).unwrap();
    wait_until(TIMEOUT, "registration", async || plugin.register(GPU).await).await.unwrap();
    plugin
}

/// Until the node has that capacity and allocatable.
async fn until_node_has(cluster: &Cluster, capacity: &str, allocatable: &str) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "devices of the node", async || {
        let node = nodes.get(&cluster.host.name()).await.map_err(|error| error.to_string())?;
        let status = node.status.unwrap_or_default();
        let of = |list: &Option<std::collections::BTreeMap<String, _>>| {
            let list: Value = serde_json::to_value(list).unwrap();
            list[GPU].as_str().unwrap_or_default().to_owned()
        };
        let found = (of(&status.capacity), of(&status.allocatable));
        match found == (capacity.to_owned(), allocatable.to_owned()) {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    })
    .await
    .unwrap();
}

fn with_gpu(text: &str) -> Value {
    let mut spec = script(text);
    let amounts = json!({GPU: "1"});
    spec["containers"][0]["resources"] = json!({"limits": amounts, "requests": amounts});
    spec
}

fn health(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap()["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
        .clone()
}

fn healthy(id: &str, health: &str) -> Value {
    json!([{"name": GPU, "resources": [{"resourceID": id, "health": health}]}])
}

#[tokio::test]
async fn devices_of_a_plugin_reach_containers_and_outlive_the_daemon() {
    let mut cluster = Cluster::start().await;
    let first = plugin(&cluster, "first.sock").await;
    until_node_has(&cluster, "2", "2").await;
    let text = format!("[ $DEVICES = a ] && [ -c /dev/gpu ] && [ -d /library ] && {FOREVER}");
    let pod = cluster.create("gpu", with_gpu(&text)).await;
    let before = cluster.until_ready("gpu").await;
    assert_eq!(health(&before), healthy("a", "Healthy"));
    first.list(vec![device("a", "Unhealthy"), device("b", "Healthy")]);
    until_node_has(&cluster, "2", "1").await;
    cluster
        .until("gpu", "a device that is not healthy", |pod| match health(pod) {
            found if found == healthy("a", "Unhealthy") => Ok(()),
            found => Err(found.to_string()),
        })
        .await;

    // The reply of the PodResources API.
    let socket = cluster.node.root_dir().join("pod-resources/kubelet.sock");
    let endpoint = longshore_grpc::Endpoint::parse(socket.to_str().unwrap()).unwrap();
    let mut client = PodResourcesListerClient::new(endpoint.channel());
    let listed = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
    let own = listed.pod_resources.iter().find(|own| own.name == "gpu").unwrap();
    assert_eq!(own.containers[0].devices[0].device_ids, ["a"]);

    // The daemon is killed: the pod runs on, and its device is not given to another one.
    cluster.node.daemon().kill().expect("killed");
    first.stop().await;
    cluster.node.restart(&cluster.host).expect("started again");
    let second = plugin(&cluster, "second.sock").await;
    until_node_has(&cluster, "2", "2").await;
    cluster.create("other", with_gpu(&format!("[ $DEVICES = b ] && {FOREVER}"))).await;
    cluster.until_ready("other").await;
    assert_eq!(run_of(&cluster.until_ready("gpu").await), run_of(&before));
    assert!(second.calls().contains(&"Allocate b".to_owned()), "{:?}", second.calls());

    // A third one finds none, and has one once the first is gone.
    cluster.create("late", with_gpu(FOREVER)).await;
    cluster
        .until("late", "rejected", |pod| {
            let status = pod.status.clone().unwrap_or_default();
            let message = status.message.unwrap_or_default();
            let expected = "Allocate failed due to requested number of devices unavailable for \
                        example.com/gpu. Requested: 1, Available: 0, which is unexpected";
            match (status.reason.as_deref(), message.contains(expected)) {
                (Some("UnexpectedAdmissionError"), true) => Ok(()),
                other => Err(format!("{other:?}: {message}")),
            }
        })
        .await;
    cluster.delete("gpu").await;
    cluster.until_gone("gpu").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.create("next", with_gpu(&format!("[ $DEVICES = a ] && {FOREVER}"))).await;
    cluster.until_ready("next").await;

    // The plugin is killed: the pods run on.
    second.stop().await;
    until_node_has(&cluster, "2", "0").await;
    cluster.until_ready("next").await;
    for name in ["next", "other", "late"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    cluster.host.assert_clean();
}

/// Kills the daemon, then the plugin and the container of a pod, as a machine that crashes.
async fn crash(cluster: &mut Cluster, plugin: ScriptedPlugin, pod: &Pod) {
    cluster.node.daemon().kill().expect("killed");
    plugin.stop().await;
    let (_, id) = run_of(pod);
    let id = id.trim_start_matches("containerd://").to_owned();
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", &id]).expect("a container is killed");
}

#[tokio::test]
async fn devices_of_pods_that_have_to_start_again_after_a_crash() {
    let mut cluster = Cluster::start().await;
    let first = plugin(&cluster, "first.sock").await;
    until_node_has(&cluster, "2", "2").await;
    cluster.create("gpu", with_gpu(&format!("[ $DEVICES = a ] && {FOREVER}"))).await;
    let pod = cluster.until_ready("gpu").await;

    // Where the node is told so, the pod waits for its plugin.
    crash(&mut cluster, first, &pod).await;
    cluster.node.restart_with(&cluster.host, "--wait-for-device-plugins").expect("started");
    cluster.until_event("Failed", "waiting for the device plugin of example.com/gpu").await;
    let second = plugin(&cluster, "second.sock").await;
    let pod = cluster
        .until("gpu", "started again", |pod| match run_of(pod) {
            (1, id) if common::condition(pod, "Ready") == "True" && !id.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;

    // As upstream has it, it is rejected.
    crash(&mut cluster, second, &pod).await;
    let flag = "--wait-for-device-plugins=false";
    cluster.node.restart_with(&cluster.host, flag).expect("started");
    cluster
        .until("gpu", "rejected", |pod| {
            let status = pod.status.clone().unwrap_or_default();
            let message = status.message.unwrap_or_default();
            let expected = "Allocate failed due to no healthy devices present; cannot allocate \
                            unhealthy devices example.com/gpu, which is unexpected";
            match (status.reason.as_deref(), message.contains(expected)) {
                (Some("UnexpectedAdmissionError"), true) => Ok(()),
                other => Err(format!("{other:?}: {message}")),
            }
        })
        .await;
    cluster.delete("gpu").await;
    cluster.until_gone("gpu").await;
    cluster.host.assert_clean();
}
