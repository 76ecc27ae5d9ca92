//! Mounted CSI volumes: order of calls, sharing, and settings of the CSIDriver.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use longshore_csi::Code;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_csi::v1::volume_capability::AccessType;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use serde_json::{Value, json};

use super::super::paths::attachment_name;
use super::world::{DRIVER, World, pod, unattached, until, user};
use crate::Mounted;

#[tokio::test]
async fn csi_volume_is_staged_once_and_published_to_each_pod_as_root() {
    let policy = json!({
        "attachRequired": false, "podInfoOnMount": true,
        "tokenRequests": [{"audience": "vault"}],
    });
    let world = World::start(CsiOptions::new(DRIVER), policy).await;
    let secret = |name: &str| json!({"name": name, "namespace": "secrets"});
    world.volume(
        "pv",
        json!({
            "mountOptions": ["noatime"],
            "csi": {
                "fsType": "xfs", "volumeAttributes": {"tier": "gold"},
                "nodeStageSecretRef": secret("stage"), "nodePublishSecretRef": secret("publish"),
            },
        }),
    );
    for name in ["stage", "publish"] {
        let path = format!("/api/v1/namespaces/secrets/secrets/{name}");
        world.api.put(
            &path,
            json!({"data": {"for": if name == "stage" { "c3RhZ2U=" } else { "cHVibGlzaA==" }}}),
        );
    }
    let (one, two) = (user("u1", "pv"), user("u2", "pv"));
    let mounted = world.mount(&one).await.unwrap();
    let path = world.root.join("node/pods/u1/volumes/kubernetes.io~csi/pv/mount");
    let expected = Mounted { name: "pv".to_owned(), path: path.clone(), ..Mounted::default() };
    assert_eq!(mounted["data"], expected);
    fs::write(path.join("file"), "content").unwrap();
    let mounted = world.mount(&two).await.unwrap();
    assert_eq!(fs::read_to_string(mounted["data"].path.join("file")).unwrap(), "content");
    assert_eq!(world.mount(&one).await.unwrap()["data"], expected, "it stands");
    assert_eq!(world.calls(), ["Stage", "Publish", "Publish"]);

    let stage = &world.driver.stages()[0];
    assert_eq!(stage.secrets["for"], "stage");
    assert_eq!(stage.volume_context, [("tier".to_owned(), "gold".to_owned())].into());
    let publish = &world.driver.publishes()[0];
    assert_eq!((publish.secrets["for"].as_str(), publish.readonly), ("publish", false));
    let capability = publish.volume_capability.clone().unwrap();
    assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("no mount") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("xfs", vec!["noatime".to_owned()]));
    let context = |key: &str| publish.volume_context[&format!("csi.storage.k8s.io/{key}")].clone();
    let reported =
        ["pod.name", "pod.namespace", "pod.uid", "serviceAccount.name", "ephemeral"].map(context);
    assert_eq!(reported, ["pod-u1", "ns", "u1", "robot", "false"]);
    let tokens: Value = serde_json::from_str(&context("serviceAccount.tokens")).unwrap();
    assert_eq!(tokens["vault"]["token"], "token-for-vault");

    world.remove(&one).await.unwrap();
    assert_eq!(world.calls()[3..], ["Unpublish"], "another pod has it still");
    world.remove(&two).await.unwrap();
    world.wait_calls(&["Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage"]).await;
    world.wait_clean().await;
    assert!(world.root.join("driver/volumes/handle-of-pv/file").exists(), "data is the driver's");
}

#[tokio::test]
async fn csi_fs_group_policy_and_mount_group_capability_as_root() {
    let plain = [Type::StageUnstageVolume];
    let capabilities = [Type::StageUnstageVolume, Type::VolumeMountGroup];
    for (policy, capabilities, fs_type, modes, by_node, by_driver) in [
        ("None", &plain[..], "ext4", "ReadWriteOnce", false, ""),
        ("File", &plain[..], "", "ReadWriteMany", true, ""),
        ("ReadWriteOnceWithFSType", &plain[..], "ext4", "ReadWriteOnce", true, ""),
        ("ReadWriteOnceWithFSType", &plain[..], "ext4", "ReadWriteOncePod", true, ""),
        ("ReadWriteOnceWithFSType", &plain[..], "", "ReadWriteOnce", false, ""),
        ("ReadWriteOnceWithFSType", &plain[..], "ext4", "ReadWriteMany", false, ""),
        ("File", &capabilities[..], "ext4", "ReadWriteOnce", false, "4711"),
    ] {
        let options = CsiOptions::new(DRIVER).with(capabilities.iter().copied());
        let policy_object = json!({"attachRequired": false, "fsGroupPolicy": policy});
        let world = World::start(options, policy_object).await;
        world.volume("pv", json!({"accessModes": [modes], "csi": {"fsType": fs_type}}));
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "pv"}});
        let pod = pod("u1", json!([volume]), json!({"fsGroup": 4711}));
        let mounted = world.mount(&pod).await.unwrap();
        let gid = fs::metadata(&mounted["data"].path).unwrap().gid();
        let case = format!("{policy} {capabilities:?} {fs_type:?} {modes}");
        assert_eq!(gid == 4711, by_node, "{case}");
        let asked = [
            world.driver.stages()[0].volume_capability.clone(),
            world.driver.publishes()[0].volume_capability.clone(),
        ];
        for capability in asked {
            let Some(AccessType::Mount(mount)) = capability.unwrap().access_type else { panic!() };
            assert_eq!(mount.volume_mount_group, by_driver, "{case}");
        }
        world.remove(&pod).await.unwrap();
        world.wait_clean().await;
    }
}

#[tokio::test]
async fn csi_read_write_once_pod_admits_one_pod_as_root() {
    let capabilities = [Type::StageUnstageVolume, Type::SingleNodeMultiWriter];
    let world = World::start(CsiOptions::new(DRIVER).with(capabilities), unattached()).await;
    world.volume("pv", json!({"accessModes": ["ReadWriteOncePod"]}));
    let (one, two) = (user("u1", "pv"), user("u2", "pv"));
    world.mount(&one).await.unwrap();
    let mode = world.driver.publishes()[0].volume_capability.unwrap_mode();
    assert_eq!(mode, Mode::SingleNodeSingleWriter);
    let error = world.mount(&two).await.unwrap_err();
    let expected = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(error, expected);
    world.remove(&one).await.unwrap();
    world.mount(&two).await.unwrap();
    world.remove(&two).await.unwrap();
    world.wait_clean().await;
}

trait UnwrapMode {
    fn unwrap_mode(&self) -> Mode;
}

impl UnwrapMode for Option<longshore_csi::v1::VolumeCapability> {
    fn unwrap_mode(&self) -> Mode {
        self.as_ref().unwrap().access_mode.unwrap().mode()
    }
}

#[tokio::test]
async fn csi_inline_volume_needs_ephemeral_lifecycle_mode_as_root() {
    let world = World::start(CsiOptions::new(DRIVER), Value::Null).await;
    let volume = json!({"name": "scratch", "csi": {
        "driver": DRIVER, "readOnly": true, "volumeAttributes": {"size": "small"},
    }});
    let pod = pod("u1", json!([volume]), Value::Null);
    let error = world.mount(&pod).await.unwrap_err();
    assert!(error.contains("volume mode \"Ephemeral\" not supported by driver csi.example.com (no CSIDriver object)"), "{error}");
    world.set_policy(json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true}));
    let mounted = world.mount(&pod).await.unwrap();
    assert!(mounted["scratch"].read_only);
    assert!(fs::write(mounted["scratch"].path.join("file"), "").is_err(), "it is read-only");
    let publish = &world.driver.publishes()[0];
    assert_eq!(publish.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(publish.volume_context["size"], "small");
    assert_eq!(publish.staging_target_path, "");
    assert_eq!(world.calls(), ["Publish"]);
    world.remove(&pod).await.unwrap();
    assert_eq!(world.calls(), ["Publish", "Unpublish"]);
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_volume_waits_for_attachment_as_root() {
    let world = World::start(CsiOptions::new(DRIVER), Value::Null).await;
    world.volume("pv", json!({}));
    let name = attachment_name("handle-of-pv", DRIVER, "n1");
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
    let spec =
        json!({"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}});
    world.api.put(&path, json!({"spec": spec, "status": {"attached": false}}));
    let pod = user("u1", "pv");
    let early = tokio::time::timeout(Duration::from_millis(600), world.mount(&pod)).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(world.calls(), Vec::<String>::new());
    let in_use = world.volumes.devices().in_use();
    let name = "kubernetes.io/csi/csi.example.com^handle-of-pv";
    assert_eq!(in_use.borrow().attached(), [name], "reported before it is attached");
    let status = |fields: Value| world.api.put(&path, json!({"spec": spec, "status": fields}));
    status(json!({"attached": false, "attachError": {"message": "no slot is free"}}));
    let error = world.mount(&pod).await.unwrap_err();
    assert_eq!(error, "MountVolume.WaitForAttach failed for volume \"pv\" : no slot is free");
    status(json!({"attached": true, "attachmentMetadata": {"device": "/dev/x"}}));
    world.mount(&pod).await.unwrap();
    let expected = [("device".to_owned(), "/dev/x".to_owned())].into();
    assert_eq!(world.driver.stages()[0].publish_context, expected);
    assert_eq!(world.driver.publishes()[0].publish_context, expected);
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_attach_limit_rejects_the_pod() {
    let policy = json!({"nodeAllocatableUpdatePeriodSeconds": 60});
    let mut world = World::start(CsiOptions::new(DRIVER), Value::Null).await;
    let inner = std::sync::Arc::get_mut(&mut world.volumes.inner).unwrap();
    inner.csi.attach_timeout = Duration::from_millis(500);
    world.volume("pv", json!({}));
    let name = attachment_name("handle-of-pv", DRIVER, "n1");
    let full = json!({"attached": false, "attachError": {"message": "full", "errorCode": 8}});
    world.api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"),
        json!({
            "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}},
            "status": full,
        }),
    );
    let pod = user("u1", "pv");
    let error = world.volumes.mount(&pod).await.unwrap_err();
    assert_eq!(error.rejects(), None, "the driver does not ask for that: {error}");
    world.set_policy(policy);
    let error = world.volumes.mount(&pod).await.unwrap_err();
    assert_eq!(error.rejects(), Some("VolumeAttachmentLimitExceeded"), "{error}");
    assert!(error.to_string().ends_with("volume attachment limit: full"), "{error}");
    let exhausted = world.exhausted();
    exhausted.notified().await;
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_requires_republish_as_root() {
    let policy = json!({"attachRequired": false, "requiresRepublish": true});
    let world = World::start(CsiOptions::new(DRIVER), policy).await;
    world.volume("pv", json!({}));
    let pod = user("u1", "pv");
    let mounted = world.mount(&pod).await.unwrap();
    world.mount(&pod).await.unwrap();
    assert_eq!(world.calls(), ["Stage", "Publish", "Publish"]);
    // The mount is kept if republishing fails.
    let fault = Fault::Error(Code::Internal, "no".into());
    world.driver.inject("NodePublishVolume", fault);
    world.mount(&pod).await.unwrap();
    fs::write(mounted["data"].path.join("file"), "works").unwrap();
    assert!(world.root.join("driver/volumes/handle-of-pv/file").exists());
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_volume_stats_come_from_the_driver_as_root() {
    let world = World::start(CsiOptions::new(DRIVER), unattached()).await;
    world.volume("pv", json!({}));
    let pod = user("u1", "pv");
    assert_eq!(world.volumes.persistent_mounts(&pod), [], "it is not there yet");
    world.mount(&pod).await.unwrap();
    let volume = world.volumes.persistent_mounts(&pod).pop().unwrap();
    assert!(volume.is_csi());
    let known = world.volumes.stats(&volume).await.unwrap();
    assert!(known.capacity >= known.available && known.capacity > 0, "{known:?}");
    assert!(known.inodes > 0 && known.condition.is_none(), "{known:?}");
    assert_eq!(world.driver.count("NodeGetVolumeStats"), 1);
    let fault = Fault::Error(Code::Internal, "no answer".into());
    world.driver.inject("NodeGetVolumeStats", fault);
    let error = world.volumes.stats(&volume).await.unwrap_err().to_string();
    assert!(error.contains("no answer"), "no fallback after an error: {error}");
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_volume_stats_fall_back_to_statfs_as_root() {
    let options = CsiOptions::new(DRIVER).with([Type::StageUnstageVolume]);
    let world = World::start(options, unattached()).await;
    world.volume("pv", json!({}));
    let pod = user("u1", "pv");
    world.mount(&pod).await.unwrap();
    let volume = world.volumes.persistent_mounts(&pod).pop().unwrap();
    assert!(world.volumes.stats(&volume).await.unwrap().capacity > 0);
    assert_eq!(world.driver.count("NodeGetVolumeStats"), 0);
    world.remove(&pod).await.unwrap();
    world.wait_clean().await;
}

#[tokio::test]
async fn csi_volume_is_expanded_on_mount_as_root() {
    let capabilities = [Type::StageUnstageVolume, Type::ExpandVolume];
    let world = World::start(CsiOptions::new(DRIVER).with(capabilities), unattached()).await;
    world.volume("pv", json!({"capacity": {"storage": "2Gi"}, "csi": {"fsType": "ext4"}}));
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/pv";
    let mut claim = world.api.get(path).unwrap();
    claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
    claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    claim["status"]["conditions"] = json!([
        {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"},
    ]);
    world.api.put(path, claim);
    let pod = user("u1", "pv");
    let fault = Fault::Error(Code::Internal, "too soon".into());
    world.driver.inject("NodeExpandVolume", fault);
    let error = world.mount(&pod).await.unwrap_err();
    assert!(error.contains("code = Internal desc = too soon"), "{error}");
    let status = world.api.get(path).unwrap()["status"].clone();
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    assert!(status["conditions"].to_string().contains("NodeResizeError"), "{status}");
    world.driver.release("NodeExpandVolume");
    world.mount(&pod).await.unwrap();
    let asked = world.driver.expansions().pop().unwrap();
    assert_eq!(asked.capacity_range.unwrap().required_bytes, 2 << 30);
    assert!(
        asked.volume_path.ends_with("/mount")
            && asked.staging_target_path.ends_with("/globalmount")
    );
    let status = world.api.get(path).unwrap()["status"].clone();
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert_eq!(status["allocatedResourceStatuses"], json!({}));
    assert_eq!(status["conditions"], json!([{"type": "Other", "status": "True"}]));
    let calls = world.driver.count("NodeExpandVolume");
    world.mount(&pod).await.unwrap();
    assert_eq!(world.driver.count("NodeExpandVolume"), calls, "it is as large as it should be");
    world.remove(&pod).await.unwrap();
    until("it is unstaged", || world.driver.count("NodeUnstageVolume") == 1).await;
    world.wait_clean().await;
}
