//! Upstream's kubelet and kube-proxy give a node of kubeadm's to Longshore and take it back, under load.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::{Api, LogParams, PostParams};
use kube::{Client, ResourceExt};
use longshore_testkit::{BUSYBOX, Guest};
use serde_json::{Value, json};

use crate::cluster::{
    PodState, assert_load_was_served, client, is_ready, pod_states, serve, start_load, until,
    until_node, until_nothing_is_stale, until_served,
};
use crate::machine::{Fixture, Step};
use crate::upstream::{self, Programs, Runtime, change_to};

/// The name of the driver and of its volume.
const CSI: &str = "test.csi.longshore.dev";

/// What must be as it was when a node has changed hands.
#[derive(Debug, PartialEq)]
struct State {
    pods: BTreeMap<String, PodState>,
    /// Uid of the node, and since when it is Ready.
    node: (Option<String>, Option<Value>),
    /// Mounts below the kubelet's directory.
    mounts: Vec<String>,
    /// CPUs and memory nodes of the cgroup of `exact`.
    cpus: String,
    /// The entries of checkpoints about `exact`.
    checkpoints: Vec<Value>,
}

impl State {
    fn forget_ready_of_static_pods(&mut self) {
        let of_node = self.pods.iter_mut().filter(|(name, _)| name.starts_with("static-"));
        of_node.for_each(|(_, pod)| pod.forget_ready());
    }
}

/// A pod that has everything a kubelet keeps state about: exclusive CPUs, pinned memory, a device, a volume of CSI,
/// one in memory, a service account's token.
async fn create_exact(client: &Client) -> Pod {
    let create = PostParams::default();
    let drivers: Api<CSIDriver> = Api::all(client.clone());
    let driver = json!({"metadata": {"name": CSI}, "spec": {"attachRequired": false}});
    drivers.create(&create, &serde_json::from_value(driver).unwrap()).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
            "csi": {"driver": CSI, "volumeHandle": "data"},
        },
    });
    volumes.create(&create, &serde_json::from_value(volume).unwrap()).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}},
            "storageClassName": "", "volumeName": "data",
        },
    });
    claims.create(&create, &serde_json::from_value(claim).unwrap()).await.unwrap();
    let resources = json!({"cpu": "1", "memory": "32Mi", "example.com/resource": "1"});
    create_on_two(
        client,
        "exact",
        json!({
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "echo kept >/data/file; while :; do sleep 1; done"],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/data/file"]}, "timeoutSeconds": 20},
                "resources": {"requests": resources, "limits": resources},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"}],
            }],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        }),
    )
    .await
}

/// Creates a pod for the machine that changes hands, and waits until it is Ready. A kubelet rejects pods that want a
/// device as long as it does not know the plugin after its start: then it is created again, as a controller does it.
async fn create_on_two(client: &Client, name: &str, mut spec: Value) -> Pod {
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": "two"});
    spec["terminationGracePeriodSeconds"] = json!(1);
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    until(&format!("pod {name} to be Ready"), async || {
        let Some(found) = pods.get_opt(name).await.map_err(|error| error.to_string())? else {
            let created = pods.create(&PostParams::default(), &pod).await;
            return Err(format!("created: {created:?}"));
        };
        let status = found.status.clone().unwrap_or_default();
        if status.reason.as_deref() == Some("UnexpectedAdmissionError") {
            let deleted = pods.delete(name, &Default::default()).await;
            return Err(format!("deleted: {deleted:?}"));
        }
        if is_ready(&status.conditions) { Ok(found) } else { Err(format!("{status:?}")) }
    })
    .await
}

async fn until_pod_is_ready(client: &Client, name: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until(&format!("pod {name} to be Ready"), async || {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        let status = pod.status.clone().unwrap_or_default();
        if is_ready(&status.conditions) { Ok(pod) } else { Err(format!("{status:?}")) }
    })
    .await
}

/// Waits until whoever is the kubelet now starts a pod that gets a device, serves its log and ends it.
async fn until_new_pods_work(client: &Client, name: &str) {
    let device = json!({"example.com/resource": "1"});
    create_on_two(
        client,
        name,
        json!({"containers": [{
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sh", "-c", "echo started; while :; do sleep 1; done"],
            "resources": {"limits": device, "requests": device},
        }]}),
    )
    .await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let log = until("its log", async || {
        pods.logs(name, &LogParams::default()).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(log, "started\n");
    pods.delete(name, &Default::default()).await.unwrap();
    until(&format!("the end of {name}"), async || match pods.get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn state(guest: &mut Guest, client: &Client, exact: &Pod) -> State {
    let nodes: Api<Node> = Api::all(client.clone());
    let node =
        until("the node", async || nodes.get("two").await.map_err(|error| error.to_string())).await;
    let conditions = json!(node.status.as_ref().and_then(|status| status.conditions.as_ref()));
    let ready = conditions.as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True", "{ready}");
    let uid = exact.uid().unwrap();
    let container = json!(exact.status)["containerStatuses"][0]["containerID"].to_string();
    let container = container.trim_matches('"').split("//").nth(1).unwrap().to_owned();
    let mounts = guest
        .run("sed -nE 's#^[0-9]+ [0-9]+ ([^ ]+ [^ ]+ /var/lib/kubelet/(pods|plugins)/[^ ]+) .*#\\1#p' /proc/self/mountinfo | sort")
        .await
        .unwrap();
    let cpus = guest
        .run(&format!(
            "find /sys/fs/cgroup/kubepods.slice -name '*{container}*' -exec cat {{}}/cpuset.cpus {{}}/cpuset.mems \\;"
        ))
        .await
        .unwrap();
    let mut checkpoints = Vec::new();
    for file in
        ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"]
    {
        let text = guest.run(&format!("cat /var/lib/kubelet/{file}")).await.unwrap();
        let all: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}: {text}"));
        let own = match all["Data"]["PodDeviceEntries"].as_array() {
            Some(entries) => {
                json!(entries.iter().filter(|e| e["PodUID"] == uid).collect::<Vec<_>>())
            }
            None => all["entries"][&uid].clone(),
        };
        assert!(!own.is_null() && own != json!([]), "{file} has nothing of {uid}: {text}");
        checkpoints.push(own);
    }
    State {
        pods: pod_states(client).await,
        node: (node.uid(), Some(ready["lastTransitionTime"].clone())),
        mounts: mounts.lines().map(str::to_owned).collect(),
        cpus,
        checkpoints,
    }
}

async fn node_changes_hands(runtime: Runtime) {
    let fixture = Fixture::new(&format!("swap-{runtime:?}").to_lowercase());
    fixture.add_upstream(runtime);
    let step = Step::new("boot, up");
    let one = &mut fixture.machine("one", 1).await;
    one.run("dpkg --install *.deb && longshore up").await.unwrap();
    let two = &mut fixture.bare_machine("two", 2).await;
    upstream::install(two, runtime).await;
    drop(step);

    let step = Step::new("kubeadm join, with upstream's kubelet");
    let client = &client(one).await;
    let line = one.run("longshore token create").await.unwrap();
    upstream::join(two, client, runtime, &line).await;
    change_to(two, Programs::Upstream).await;
    until_node(client, "two", true).await;
    drop(step);

    let step = Step::new("pods and a service");
    let address = serve(client, "web", 2).await;
    until_served(client, "web", 2).await;
    two.run(&format!(
        "mkdir -p /etc/kubernetes/manifests
         echo '{}' >/etc/kubernetes/manifests/static.yaml",
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "100000"],
            }]},
        })
    ))
    .await
    .unwrap();
    let exact = create_exact(client).await;
    until_pod_is_ready(client, "static-two").await;
    until_new_pods_work(client, "before").await;
    let mut before = state(two, client, &exact).await;
    assert!(!before.cpus.trim().is_empty() && before.mounts.len() >= 4, "{before:?}");
    eprintln!("vm: {before:?}");
    drop(step);

    start_load(two, &address).await;
    for programs in [
        Programs::Longshore,
        Programs::Upstream,
        Programs::LongshoreNode,
        Programs::Upstream,
        Programs::Longshore,
    ] {
        let _step = Step::new(&format!("to {programs:?} and at work"));
        change_to(two, programs).await;
        until_new_pods_work(client, &format!("new-{programs:?}").to_lowercase()).await;
        let mut now = state(two, client, &exact).await;
        if programs == Programs::Upstream {
            // A static pod whose mirror pod it has not seen yet is Ready anew, for upstream's kubelet.
            now.forget_ready_of_static_pods();
            before.forget_ready_of_static_pods();
        }
        assert_eq!(now, before, "{programs:?}");
        before = state(two, client, &exact).await;
    }
    assert_load_was_served(two).await;
    until_nothing_is_stale(two, client, "two", runtime.list_sandboxes()).await;

    // `longshore reset` leaves a node of kubeadm's alone, and says whose it is.
    let refused = two.run("longshore reset --yes").await.unwrap_err().to_string();
    assert!(refused.contains("kubeadm reset"), "{refused}");

    let step = Step::new("kubeadm reset, while the node is Longshore's");
    two.run(&format!("kubeadm reset --force --cri-socket={}", runtime.socket())).await.unwrap();
    let left = two
        .run(&format!(
            "systemctl is-active kubelet
             {}
             ls /etc/kubernetes/manifests
             ls /var/lib/kubelet | grep -v plugins
             grep /var/lib/kubelet/pods /proc/mounts
             true",
            runtime.list_sandboxes()
        ))
        .await
        .unwrap();
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["inactive"], "after reset");
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.delete("two", &Default::default()).await.unwrap();
    drop(step);

    let step = Step::new("kubeadm join, with Longshore in the kubelet's place");
    let line = one.run("longshore token create").await.unwrap();
    upstream::join(two, client, runtime, &line).await;
    until_node(client, "two", true).await;
    until_new_pods_work(client, "joined").await;
    drop(step);

    // kubeadm asks a program of that name for its version.
    let step = Step::new(
        "kubeadm reset and join, without a program of upstream's, Longshore as kubelet and kube-proxy",
    );
    two.run(&format!("kubeadm reset --force --cri-socket={}", runtime.socket())).await.unwrap();
    nodes.delete("two", &Default::default()).await.unwrap();
    upstream::configure(two, Programs::LongshoreNode).await;
    two.run(
        "systemctl stop kube-proxy && ln -sf longshore /usr/bin/kubelet && rm /usr/bin/kube-proxy",
    )
    .await
    .unwrap();
    let line = one.run("longshore token create").await.unwrap();
    upstream::join(two, client, runtime, &line).await;
    until_node(client, "two", true).await;
    until_new_pods_work(client, "joined-again").await;
    until_served(client, "web", 2).await;
    start_load(two, &address).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_load_was_served(two).await;
    drop(step);
}

#[tokio::test]
#[ignore = "boots two virtual machines: `make vm-machines PEERS=…` runs it"]
async fn swap_on_containerd() {
    node_changes_hands(Runtime::Containerd).await;
}

#[tokio::test]
#[ignore = "boots two virtual machines: `make vm-machines PEERS=…` runs it"]
async fn swap_on_another_containerd() {
    node_changes_hands(Runtime::OtherContainerd).await;
}

#[tokio::test]
#[ignore = "boots two virtual machines: `make vm-machines PEERS=…` runs it"]
async fn swap_on_docker() {
    node_changes_hands(Runtime::Docker).await;
}
