//! Online expansion of volumes.

use std::time::Duration;

use longshore_csi::Code;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use serde_json::{Value, json};

use super::world::{DRIVER, World, unattached, until, user};

const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/pv";
const VOLUME: &str = "/api/v1/persistentvolumes/pv";

async fn world(fields: Value) -> World {
    let capabilities = [Type::StageUnstageVolume, Type::ExpandVolume];
    let world = World::start(CsiOptions::new(DRIVER).with(capabilities), unattached()).await;
    world.volume("pv", fields);
    world
}

/// Sets the size of the claim and its volume, in the order of controllers, so that the volume is
/// never larger than the claim requests.
fn ask(world: &World, size: &str, status: Value) {
    let mut claim = world.api.get(CLAIM).unwrap();
    claim["spec"]["resources"] = json!({"requests": {"storage": size}});
    json_patch::merge(&mut claim["status"], &status);
    world.api.put(CLAIM, claim);
    let mut volume = world.api.get(VOLUME).unwrap();
    volume["spec"]["capacity"]["storage"] = json!(size);
    world.api.put(VOLUME, volume);
}

/// The status of a pending node resize.
fn pending(size: &str) -> Value {
    json!({
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
    })
}

fn expanded(world: &World) -> Vec<i64> {
    let ranges = world.driver.expansions().into_iter();
    ranges.filter_map(|asked| asked.capacity_range).map(|range| range.required_bytes).collect()
}

async fn end(world: World, pods: &[k8s_openapi::api::core::v1::Pod]) {
    for pod in pods {
        world.remove(pod).await.unwrap();
    }
    until("it is unstaged", || world.driver.count("NodeUnstageVolume") == 1).await;
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_online_expansion_happens_once_for_several_pods_as_root() {
    for fields in [json!({}), json!({"volumeMode": "Block"})] {
        let world = world(fields).await;
        let pods = [user("u1", "pv"), user("u2", "pv")];
        for pod in &pods {
            world.mount(pod).await.unwrap();
        }
        // The controller is at work.
        let mut begun = pending("2Gi");
        begun["allocatedResourceStatuses"]["storage"] = json!("ControllerResizeInProgress");
        ask(&world, "2Gi", begun);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(expanded(&world), [0; 0]);
        ask(&world, "2Gi", pending("2Gi"));
        let capacity = || world.api.get(CLAIM).unwrap()["status"]["capacity"]["storage"].clone();
        until("the claim's status is updated", || capacity() == "2Gi").await;
        let status = world.api.get(CLAIM).unwrap()["status"].clone();
        assert_eq!(status["allocatedResourceStatuses"], json!({}));
        assert_eq!(status["conditions"], json!([]));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(expanded(&world), [2 << 30], "expanded once for all pods");
        ask(&world, "3Gi", pending("3Gi"));
        until("the claim's status is updated again", || capacity() == "3Gi").await;
        assert_eq!(expanded(&world), [2 << 30, 3 << 30]);
        end(world, &pods).await;
    }
}

#[tokio::test]
async fn csi_online_expansion_after_another_node_updated_the_claim_as_root() {
    let world = world(json!({"accessModes": ["ReadWriteMany"]})).await;
    let pods = [user("u1", "pv")];
    world.mount(&pods[0]).await.unwrap();
    ask(&world, "2Gi", json!({"capacity": {"storage": "2Gi"}}));
    until("it is made larger here too", || expanded(&world) == [2 << 30]).await;
    end(world, &pods).await;
}

#[tokio::test]
async fn csi_online_expansion_of_a_changed_persistent_volume_as_root() {
    let world = world(json!({})).await;
    let pods = [user("u1", "pv")];
    world.mount(&pods[0]).await.unwrap();
    let mut volume = world.api.get(VOLUME).unwrap();
    volume["spec"]["capacity"]["storage"] = json!("2Gi");
    world.api.put(VOLUME, volume);
    let capacity = || world.api.get(CLAIM).unwrap()["status"]["capacity"]["storage"].clone();
    until("the claim's status is updated", || capacity() == "2Gi").await;
    assert_eq!(expanded(&world), [2 << 30]);
    end(world, &pods).await;
}

#[tokio::test]
async fn csi_online_expansion_is_retried_unless_volume_in_use_as_root() {
    let world = world(json!({})).await;
    let pods = [user("u1", "pv")];
    world.mount(&pods[0]).await.unwrap();
    let fault = |code, message: &str| Fault::Error(code, message.to_owned());
    world.driver.inject("NodeExpandVolume", fault(Code::Internal, "too soon"));
    ask(&world, "2Gi", pending("2Gi"));
    until("it is tried again", || expanded(&world).len() > 1).await;
    world.driver.release("NodeExpandVolume");
    let capacity = || world.api.get(CLAIM).unwrap()["status"]["capacity"]["storage"].clone();
    until("the claim's status is updated", || capacity() == "2Gi").await;

    world.driver.inject("NodeExpandVolume", fault(Code::FailedPrecondition, "in use"));
    let before = expanded(&world).len();
    ask(&world, "3Gi", pending("3Gi"));
    until("it is tried", || expanded(&world).len() > before).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(expanded(&world).len(), before + 1, "not while it is in use");
    world.driver.release("NodeExpandVolume");
    end(world, &pods).await;
}

#[tokio::test]
async fn csi_unpublish_waits_for_expansion_as_root() {
    for fields in [json!({}), json!({"volumeMode": "Block"})] {
        let world = world(fields).await;
        let pod = user("u1", "pv");
        world.mount(&pod).await.unwrap();
        world.driver.inject("NodeExpandVolume", Fault::Hang);
        ask(&world, "2Gi", pending("2Gi"));
        until("the driver is asked", || world.driver.count("NodeExpandVolume") == 1).await;
        let volumes = world.volumes.clone();
        let removing = tokio::spawn(async move { volumes.remove_pod("u1").await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(world.driver.count("NodeUnpublishVolume"), 0, "one thing at a time");
        world.driver.release("NodeExpandVolume");
        removing.await.unwrap().unwrap();
        end(world, &[]).await;
    }
}

#[tokio::test]
async fn csi_online_expansion_skips_read_only_volumes_as_root() {
    let world = world(json!({})).await;
    let mut pod = user("u1", "pv");
    let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
    volumes[0].persistent_volume_claim.as_mut().unwrap().read_only = Some(true);
    world.mount(&pod).await.unwrap();
    ask(&world, "2Gi", pending("2Gi"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(expanded(&world), [0; 0]);
    end(world, &[pod]).await;
}
