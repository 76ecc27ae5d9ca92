//! Devices of a DRA driver on a real runtime: a driver on sockets registers with the daemon, prepares the claim
//! of a pod, and gives the container a device by CDI where the runtime knows it.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Cluster, FOREVER, TIMEOUT, container, script, uid};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use longshore_dra::testing::{Behaviour, ScriptedDriver};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn claims(cluster: &Cluster) -> Api<ResourceClaim> {
    Api::namespaced(cluster.client.clone(), "default")
}

/// A claim for one device.
async fn create_claim(cluster: &Cluster, name: &str) {
    let claim = json!({
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": DRIVER}},
        ]}},
    });
    let claim = serde_json::from_value(claim).unwrap();
    claims(cluster).create(&PostParams::default(), &claim).await.unwrap();
}

/// What the scheduler does: the claim is allocated, and reserved for the pod.
async fn allocate(cluster: &Cluster, name: &str, pod: &str, pod_uid: &str) {
    let status = json!({"status": {
        "allocation": {"devices": {"results": [
            {"request": "gpu", "driver": DRIVER, "pool": "pool", "device": "0"},
        ]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": pod_uid}],
    }});
    let (params, patch) = (PatchParams::default(), Patch::Merge(status));
    claims(cluster).patch_status(name, &params, &patch).await.unwrap();
}

/// A slice of the driver with one device.
fn slice(node: &str) -> ResourceSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "slice"},
        "spec": {
            "driver": DRIVER, "nodeName": node,
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "0"}],
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn dra_driver_gives_a_pod_its_device() {
    let cluster = Cluster::start().await;
    let has_cdi = cluster.host.describe_devices(&json!({
        "cdiVersion": "0.6.0", "kind": "example.com/device",
        "devices": [{"name": "0", "containerEdits": {"env": ["DEVICE=gpu0"]}}],
    }));
    let has_cdi = has_cdi.unwrap();
    let class: DeviceClass =
        serde_json::from_value(json!({"metadata": {"name": DRIVER}, "spec": {}})).unwrap();
    let classes = Api::all(cluster.client.clone());
    classes.create(&PostParams::default(), &class).await.unwrap();
    create_claim(&cluster, "mine").await;

    // The pod waits for its claim, then for its driver.
    let mut spec = script(&format!("echo device=$DEVICE; {FOREVER}"));
    spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "mine"}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "gpu", "request": "gpu"}]});
    let without = container("without", &format!("echo device=$DEVICE; {FOREVER}"));
    spec["containers"].as_array_mut().unwrap().push(without);
    let pod = cluster.create("p", spec).await;
    let reason = "FailedPrepareDynamicResources";
    cluster.until_event(reason, "is not allowed to use ResourceClaim mine").await;
    allocate(&cluster, "mine", "p", &uid(&pod)).await;
    cluster.until_event(reason, "DRA driver gpu.example.com is not registered").await;
    let driver = ScriptedDriver::new(DRIVER);
    driver.set_devices(
        "mine",
        vec![ScriptedDriver::device("0", &["gpu"], &["example.com/device=0"])],
    );
    driver.on_prepare(Behaviour::Fails("burnt".to_owned()));
    let registry = cluster.node.root_dir().join("plugins_registry");
    let mut listening =
        driver.listen(&cluster.host.dir().join("dra"), &registry, &["v1.DRAPlugin"]);
    cluster
        .until_event(reason, "NodePrepareResources: rpc error: code = Internal desc = burnt")
        .await;
    driver.on_prepare(Behaviour::Well);
    cluster.until_ready("p").await;
    for (name, device) in [("c", "gpu0"), ("without", "")] {
        let expected = format!("device={}", if has_cdi { device } else { "" });
        let params =
            kube::api::LogParams { container: Some(name.to_owned()), ..Default::default() };
        wait_until(TIMEOUT, &expected, async || {
            let logs =
                cluster.pods().logs("p", &params).await.map_err(|error| error.to_string())?;
            if logs.trim() == expected { Ok(()) } else { Err(logs) }
        })
        .await
        .unwrap();
    }

    // A daemon that is killed finds the claim again, and unprepares it at the end of the pod.
    let mut cluster = cluster;
    cluster.node.daemon().kill().unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    cluster.delete("p").await;
    cluster.until_gone("p").await;
    assert_eq!(driver.prepared(), Vec::<String>::new());
    let checkpoint = std::fs::read_to_string(cluster.node.root_dir().join("dra_manager_state"));
    let checkpoint: Value = serde_json::from_str(&checkpoint.unwrap()).unwrap();
    assert!(checkpoint["Data"].as_str().unwrap().ends_with(r#""ClaimInfoStateList":null}"#));

    // Slices of a driver that is gone are deleted, after half a minute.
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    slices.create(&PostParams::default(), &slice(&cluster.host.name())).await.unwrap();
    listening.withdraw();
    wait_until(TIMEOUT, "the slice is deleted", async || {
        let left = slices.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        if left.items.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
}
