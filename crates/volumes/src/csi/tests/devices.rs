//! Volumes that are devices.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use longshore_csi::Code;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_csi::v1::volume_capability::AccessType;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use serde_json::json;

use super::world::{DRIVER, World, unattached, user};
use crate::host::loops;

async fn world(capabilities: &[Type]) -> World {
    let options = CsiOptions::new(DRIVER).with(capabilities.iter().copied());
    let world = World::start(options, unattached()).await;
    world.volume("pv", json!({"volumeMode": "Block"}));
    world
}

#[tokio::test]
async fn block_volume_is_published_per_pod_and_unpublished_as_root() {
    for capabilities in [&[Type::StageUnstageVolume][..], &[]] {
        let mut world = world(capabilities).await;
        let staged = !capabilities.is_empty();
        let (one, two) = (user("u1", "pv"), user("u2", "pv"));
        let mounted = world.mount(&one).await.unwrap();
        let device = mounted["data"].device.clone().unwrap();
        let link = world.root.join("node/pods/u1/volumeDevices/kubernetes.io~csi/pv");
        assert_eq!(device, link);
        assert!(fs::metadata(&device).unwrap().file_type().is_block_device());
        world.restart();
        assert_eq!(world.mount(&one).await.unwrap(), mounted, "it stands");
        world.mount(&two).await.unwrap();

        let devices = world.root.join("node/plugins/kubernetes.io/csi/volumeDevices");
        let publish = &world.driver.publishes()[0];
        assert_eq!(publish.target_path, devices.join("publish/pv/u1").display().to_string());
        let staging = devices.join("staging/pv").display().to_string();
        assert_eq!(publish.staging_target_path, if staged { staging } else { String::new() });
        let access = publish.volume_capability.clone().unwrap().access_type;
        assert!(matches!(access, Some(AccessType::Block(_))), "{access:?}");
        assert!(devices.join("pv/data/vol_data.json").exists());

        for pod in [&one, &two] {
            world.remove(pod).await.unwrap();
        }
        let all = ["Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage"];
        let expected = if staged { &all[..] } else { &all[1..5] };
        world.wait_calls(expected).await;
        world.wait_clean().await;
    }
}

#[tokio::test]
async fn block_volume_errors_are_reported_and_retried_as_root() {
    let world = world(&[Type::StageUnstageVolume]).await;
    let pod = user("u1", "pv");
    let fault = Fault::Error(Code::Internal, "no disk".to_owned());
    for (method, operation) in [
        ("NodeStageVolume", "MapVolume.SetUpDevice"),
        ("NodePublishVolume", "MapVolume.MapPodDevice"),
    ] {
        world.driver.inject(method, fault.clone());
        let error = world.mount(&pod).await.unwrap_err();
        assert!(error.starts_with(&format!("{operation} failed for volume \"pv\" : ")), "{error}");
        assert!(error.contains("desc = no disk"), "{error}");
        world.driver.release(method);
    }
    world.mount(&pod).await.unwrap();
    world.driver.inject("NodeUnpublishVolume", fault);
    assert!(world.remove(&pod).await.is_err());
    world.driver.release("NodeUnpublishVolume");
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn block_volume_held_open_is_unmapped_once_closed_as_root() {
    let world = world(&[]).await;
    let pod = user("u1", "pv");
    world.mount(&pod).await.unwrap();
    let bound = world.root.join("node/plugins/kubernetes.io/csi/volumeDevices/pv/dev/u1");
    let looked_at = fs::File::open(loops::find(&bound).unwrap().unwrap()).unwrap();
    let volumes = world.volumes.clone();
    let removing = tokio::spawn(async move { volumes.remove_pod("u1").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!removing.is_finished());
    drop(looked_at);
    removing.await.unwrap().unwrap();
    world.wait_clean().await;
}
