//! CSI migration of in-tree volumes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_testkit::csi::CsiOptions;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::paths::attachment_name;
use super::super::vol_data::FILE;
use super::world::{World, pod, unattached, user};

const AWS: &str = "ebs.csi.aws.com";
const AZURE: &str = "disk.csi.azure.com";
const SHARES: &str = "file.csi.azure.com";
const VMWARE: &str = "csi.vsphere.vmware.com";

/// A spec with another volume source.
fn spec(source: Value) -> Value {
    let mut spec = json!({"csi": null});
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    spec
}

fn inline(uid: &str, source: Value) -> Pod {
    let mut volume = json!({"name": "data"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    pod(uid, json!([volume]), json!({"fsGroup": 4711}))
}

fn vol_data(world: &World, volume: &str) -> BTreeMap<String, String> {
    let path = format!("node/pods/u1/volumes/kubernetes.io~csi/{volume}/{FILE}");
    serde_json::from_slice(&fs::read(world.root.join(&path)).unwrap()).unwrap()
}

#[tokio::test]
async fn csi_migration_of_a_claim_as_root() {
    let world = World::start(CsiOptions::new(AWS), unattached()).await;
    let source = json!({"volumeID": "aws://a/vol-1", "fsType": "xfs", "partition": 2});
    world.volume("pv", spec(json!({"awsElasticBlockStore": source, "mountOptions": ["noatime"]})));
    let user = user("u1", "pv");
    let mounted = world.mount(&user).await.unwrap()["data"].clone();
    assert_eq!(mounted.path, world.root.join("node/pods/u1/volumes/kubernetes.io~csi/pv/mount"));
    fs::write(mounted.path.join("file"), "content").unwrap();
    let stage = &world.driver.stages()[0];
    assert_eq!(stage.volume_id, "vol-1");
    assert_eq!(stage.volume_context, [("partition".to_owned(), "2".to_owned())].into());
    let staged = world.root.join("node/plugins/kubernetes.io/csi").join(AWS);
    assert!(stage.staging_target_path.starts_with(staged.to_str().unwrap()), "{stage:?}");
    let vol_data = vol_data(&world, "pv");
    assert_eq!(
        [&*vol_data["driverName"], &*vol_data["volumeHandle"], &*vol_data["specVolID"]],
        [AWS, "vol-1", "pv"]
    );
    assert!(world.root.join("driver/volumes/vol-1/file").exists());
    world.remove(&user).await.unwrap();
    world.wait_calls(&["Stage", "Publish", "Unpublish", "Unstage"]).await;
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_migration_volumes_in_use_have_the_drivers_name_as_root() {
    let world = World::start(CsiOptions::new(AWS), Value::Null).await;
    world.volume("pv", spec(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})));
    let claimed = user("u1", "pv");
    let described = inline("u2", json!({"awsElasticBlockStore": {"volumeID": "vol-2"}}));
    for (pod, handle) in [(&claimed, "vol-1"), (&described, "vol-2")] {
        let name = attachment_name(handle, AWS, "n1");
        let attachment = json!({"spec": {"attacher": AWS}, "status": {"attached": true}});
        world.api.put(&format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"), attachment);
        world.mount(pod).await.unwrap();
    }
    let in_use = world.volumes.devices().in_use();
    let names = ["vol-1", "vol-2"].map(|handle| format!("kubernetes.io/csi/{AWS}^{handle}"));
    assert_eq!(in_use.borrow().attached(), names);
    for pod in [&claimed, &described] {
        world.remove(pod).await.unwrap();
    }
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_migration_of_inline_volumes_shares_by_handle_as_root() {
    for (driver, source, name, handle) in [
        (AZURE, json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d"}}), "/s/d", "/s/d"),
        (
            VMWARE,
            json!({"vsphereVolume": {"volumePath": "[ds 1] kubevols/v.vmdk", "fsType": "ext4"}}),
            "csi.vsphere.vmware.com-[ds 1] kubevols/v.vmdk",
            "[ds 1] kubevols/v.vmdk",
        ),
    ] {
        let mut world = World::start(CsiOptions::new(driver), unattached()).await;
        let (one, two) = (inline("u1", source.clone()), inline("u2", source));
        let mounted = world.mount(&one).await.unwrap()["data"].clone();
        let dir = name.replace('/', "~");
        let path = format!("node/pods/u1/volumes/kubernetes.io~csi/{dir}/mount");
        assert_eq!((mounted.path, mounted.name), (world.root.join(&path), dir.clone()));
        let vol_data = vol_data(&world, &dir);
        assert_eq!([&*vol_data["specVolID"], &*vol_data["volumeHandle"]], [name, handle]);
        world.restart();
        world.mount(&one).await.unwrap();
        world.mount(&two).await.unwrap();
        assert_eq!(world.calls(), ["Stage", "Publish", "Publish"], "{driver}");
        let publish = &world.driver.publishes()[0];
        assert_eq!((publish.volume_id.as_str(), publish.readonly), (handle, false));
        world.restart();
        world.remove(&one).await.unwrap();
        world.remove(&two).await.unwrap();
        world
            .wait_calls(&["Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage"])
            .await;
        world.wait_clean().await;
    }
}

#[tokio::test]
async fn csi_migration_azure_file_secret_namespace_as_root() {
    let world = World::start(CsiOptions::new(SHARES), unattached()).await;
    let source = json!({"azureFile": {"secretName": "acme", "shareName": "s", "readOnly": true}});
    let pod = inline("u1", source);
    let missing = world.mount(&pod).await.unwrap_err();
    assert!(
        missing.starts_with("MountVolume.MountDevice failed for volume \"#acme#s#data#ns\" : fetching NodeStageSecretRef ns/acme failed: "),
        "{missing}"
    );
    world.api.put("/api/v1/namespaces/ns/secrets/acme", json!({"data": {"key": "a2V5"}}));
    let mounted = world.mount(&pod).await.unwrap()["data"].clone();
    assert!(mounted.read_only, "as the pod says");
    assert_eq!(world.driver.stages()[0].secrets["key"], "key");
    let publish = &world.driver.publishes()[0];
    assert_eq!((publish.readonly, publish.volume_context["sharename"].as_str()), (true, "s"));
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_migration_node_affinity_uses_driver_topology_as_root() {
    let labels =
        json!({"topology.ebs.csi.aws.com/zone": "here", "topology.kubernetes.io/zone": "there"});
    let node = json!({"metadata": {"name": "n1", "labels": labels}});
    let node = Arc::new(serde_json::from_value(node).unwrap());
    let (_known, node) = watch::channel(Some(node));
    let world = World::start_on(CsiOptions::new(AWS), unattached(), Some(node)).await;
    let zone = |zone: &str| {
        json!([{"matchExpressions": [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]}])
    };
    let volume = |name: &str| {
        let affinity = json!({"required": {"nodeSelectorTerms": zone(name)}});
        let source = json!({"volumeID": format!("vol-{name}")});
        world.volume(name, spec(json!({"awsElasticBlockStore": source, "nodeAffinity": affinity})));
    };
    volume("here");
    volume("there");
    let (far, near) = (user("u1", "there"), user("u2", "here"));
    let error = world.mount(&far).await.unwrap_err();
    let expected = "MountVolume.NodeAffinity check failed for volume \"there\" : no matching NodeSelectorTerms";
    assert_eq!(error, expected);
    world.mount(&near).await.unwrap();
    for pod in [&far, &near] {
        world.remove(pod).await.unwrap();
    }
    world.wait_clean().await;
}
